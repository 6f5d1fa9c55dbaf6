//! The path of this machine's anchor of a vault: a small file outside of it.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::Uuid;
use lacuna_vault::store::default_anchor_path;
use std::path::{Path, PathBuf};

/// The default path of the anchor of a vault: `lacuna/anchors/UUID` in `XDG_STATE_HOME`; if that is
/// not set, in `/var/lib` for root and in `~/.local/state` for other users.
///
/// Errors: [`Kind::Usage`] if neither that variable nor `HOME` names a directory.
pub fn default_anchor(uuid: Uuid) -> Result<PathBuf> {
    default_anchor_path(&uuid.0)
}

/// The absolute path of the anchor. Refuses a path inside the vault, which would be rolled back
/// with it.
///
/// Errors: [`Kind::Usage`]; [`Kind::NotFound`] if the parent directory of `given` does not exist.
pub(crate) fn anchor_path(vault: &Path, given: Option<&Path>, uuid: Uuid) -> Result<PathBuf> {
    let path = match given {
        Some(path) => std::path::absolute(path)
            .map_err(|e| Error::io(format!("cannot use {} for the anchor", path.display()), &e))?,
        None => default_anchor(uuid)?,
    };
    let refused = |found: &str| {
        Error::new(Kind::Usage, format!("cannot use {} for the anchor of the vault", path.display()))
            .found(found)
            .expected(
                "a file outside of the vault that stays on this machine, and is not copied with the vault",
            )
    };
    if path.is_dir() {
        return Err(refused("a directory"));
    }
    let vault = std::path::absolute(vault)
        .map_err(|e| Error::io(format!("cannot find the vault {}", vault.display()), &e))?;
    if resolve_existing(&path).starts_with(resolve_existing(&vault)) {
        return Err(refused("a place inside of the vault"));
    }
    // A mistyped path would start an empty anchor.
    if let Some(above) = path.parent().filter(|above| given.is_some() && !above.is_dir()) {
        return Err(refused(&format!("no directory {}", above.display()))
            .with_kind(Kind::NotFound)
            .hint("check the path, or make the directory first"));
    }
    Ok(path)
}

/// The absolute path with symbolic links resolved, as far as it exists.
fn resolve_existing(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = there else { return path.to_owned() };
    real.join(path.strip_prefix(above).unwrap_or(Path::new("")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_lies_outside_of_its_vault() {
        let dir = tempfile::tempdir().unwrap();
        let vault = dir.path().join("v");
        std::fs::create_dir(&vault).unwrap();
        let uuid = Uuid([7; 16]);
        let at = |path: PathBuf| anchor_path(&vault, Some(&path), uuid).map_err(|e| e.kind());
        for inside in ["v/anchor", "v/a/b", "v/../v/anchor", "v"] {
            assert_eq!(at(dir.path().join(inside)), Err(Kind::Usage), "{inside}");
        }
        let new = dir.path().join("new");
        assert!(anchor_path(&new, Some(&new.join("anchor")), uuid).is_err());
        let outside = dir.path().join("new/anchor");
        assert_eq!(at(outside.clone()), Err(Kind::NotFound));
        std::fs::create_dir(outside.parent().unwrap()).unwrap();
        assert_eq!(at(outside.clone()), Ok(outside));
        assert!(default_anchor(uuid).unwrap().ends_with(format!("lacuna/anchors/{uuid}")));
    }
}
