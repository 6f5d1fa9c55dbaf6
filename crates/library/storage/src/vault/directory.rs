//! The place of a vault: a directory of its own with the header in the file `lacuna.vault`.

use lacuna_contracts::{Action, Error, Hint, Kind, Result};
use lacuna_header::{HEADER_AREA, medium_len};
use lacuna_medium::{FileMedium, LOCK_FILE, check_takes_files};
use lacuna_vault::store::FILES;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The name of the file with the header of a vault.
pub const HEADER_FILE: &str = "lacuna.vault";

/// Whether a directory is a vault: it has a file with a vault's header. A symbolic link does not
/// count: a user with write access to the directory could point it to any file.
pub fn is_vault(path: &Path) -> bool {
    path.is_dir() && std::fs::symlink_metadata(path.join(HEADER_FILE)).is_ok_and(|about| about.is_file())
}

/// Whether a directory has files of a vault, but no header.
pub fn lacks_header(dir: &Path) -> bool {
    let about = |file: &str| std::fs::symlink_metadata(dir.join(file));
    // A header that cannot be examined is not missing.
    let lacks = about(HEADER_FILE).is_err_and(|e| e.kind() == ErrorKind::NotFound);
    dir.is_dir() && lacks && FILES.iter().any(|file| about(file).is_ok())
}

/// The file for the header of a vault without one: it is removed again unless a header is restored
/// to it.
#[derive(Default)]
pub(crate) struct NewHeaderFile(Option<PathBuf>);

impl NewHeaderFile {
    /// Makes the file if the vault lacks it.
    pub(crate) fn make(dir: &Path) -> Result<NewHeaderFile> {
        if !lacks_header(dir) {
            return Ok(NewHeaderFile(None));
        }
        let path = dir.join(HEADER_FILE);
        FileMedium::create(&path, medium_len(HEADER_AREA))?;
        Ok(NewHeaderFile(Some(path)))
    }

    /// Keeps the file, which contains a header now.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewHeaderFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Refuses a directory that is not a vault.
///
/// Errors: [`Kind::NotFound`].
pub(crate) fn check_is_vault(dir: &Path) -> Result<()> {
    let what = format!("{} is not a vault", dir.display());
    let kind = std::fs::metadata(dir).map_err(|e| Error::io(format!("cannot open {}", dir.display()), &e))?;
    let refused = |found: &str| Error::new(Kind::NotFound, what.clone()).found(found);
    if !kind.is_dir() {
        return Err(refused("a file").expected("the directory of a vault"));
    }
    match std::fs::symlink_metadata(dir.join(HEADER_FILE)) {
        Ok(about) if about.is_file() => return Ok(()),
        Ok(about) => {
            let found = if about.is_symlink() { "a symbolic link" } else { "something that is no file" };
            return Err(refused(&format!("{found} in the place of {HEADER_FILE}"))
                .expected("a regular file")
                .hint("another program or person put it there; restore the directory from a backup"));
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(Error::io(format!("cannot look for {HEADER_FILE} in {}", dir.display()), &e)),
    }
    let error = if lacks_header(dir) {
        refused("the files of a vault without its header")
            .hint(Hint::from("restore it from a backup: ").action(Action("vault::restore_header")))
    } else {
        refused("a directory without a header")
            .hint("check the path, or make a vault in an empty directory first")
    };
    Err(error.expected(format!("a directory with the file {HEADER_FILE} in it")))
}

/// Refuses a directory in which this user cannot make files; `what` is the failure.
fn check_writable(folder: &Path, what: &str) -> Result<()> {
    check_takes_files(folder)
        .map_err(|e| Error::io(what, &e).hint("choose a directory that you may write to, or use sudo"))
}

/// The directory of a new vault during its creation: the created files are removed unless it is
/// kept.
pub(crate) struct NewVaultDir {
    dir: PathBuf,
    made: bool,
    /// Whether the file of the header in it is that of this vault, and so every other file.
    is_ours: bool,
    kept: bool,
}

impl NewVaultDir {
    /// Refuses a place that cannot have a vault, before anything is written.
    ///
    /// Errors: [`Kind::Exists`] if something is there, [`Kind::NotFound`] if the parent directory
    /// does not exist; those of the system if this user may not write there.
    pub(crate) fn check_available(dir: &Path) -> Result<()> {
        let what = format!("cannot make a vault in {}", dir.display());
        let mut entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let missing = format!("no directory {}", parent.display());
                let refused = || Error::new(Kind::NotFound, &what).found(missing).hint("make it first");
                return if parent.is_dir() { check_writable(parent, &what) } else { Err(refused()) };
            }
            Err(e) if e.kind() == ErrorKind::NotADirectory => {
                return Err(Error::new(Kind::Exists, what)
                    .found("a file")
                    .expected("an empty directory, or a path where nothing exists"));
            }
            Err(e) => return Err(Error::io(what, &e)),
        };
        if entries.next().is_none() {
            return check_writable(dir, &what);
        }
        let found = if is_vault(dir) { "a vault" } else { "a directory that is not empty" };
        Err(Error::new(Kind::Exists, what)
            .found(found)
            .expected("an empty directory, or a path where nothing exists")
            .hint("choose another directory; its files can be copied into the vault once it is open"))
    }

    /// Creates the directory if it does not exist.
    pub(crate) fn make(dir: &Path) -> Result<NewVaultDir> {
        let made = match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => true,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => false,
            Err(e) => return Err(Error::io(format!("cannot make the directory {}", dir.display()), &e)),
        };
        Ok(NewVaultDir { dir: dir.to_owned(), made, is_ours: false, kept: false })
    }

    /// Makes the file of the header, the first of the vault. Errors: [`Kind::Exists`] if something
    /// has come into the directory since [`NewVaultDir::check_available`]: it is not touched.
    pub(crate) fn make_header(&mut self) -> Result<FileMedium> {
        NewVaultDir::check_available(&self.dir)?;
        let medium = FileMedium::create(&self.dir.join(HEADER_FILE), medium_len(HEADER_AREA))?;
        self.is_ours = true;
        Ok(medium)
    }

    /// Keeps the directory: the vault is complete.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl NewVaultDir {
    /// Removes the files of the failed vault. The directory was empty when its header was made, so
    /// files with these names belong to it.
    fn remove_files(&self) {
        for file in FILES.into_iter().chain([HEADER_FILE, LOCK_FILE]) {
            let _ = std::fs::remove_file(self.dir.join(file));
        }
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.len() == 2 && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

impl Drop for NewVaultDir {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if self.is_ours {
            self.remove_files();
        }
        if self.made {
            let _ = std::fs::remove_dir(&self.dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterOptions;
    use crate::Cost;
    use crate::CreateOptions;
    use crate::DiskRef;
    use crate::HeaderOpener;
    use crate::Passphrase;
    use crate::PassphraseMatch;
    use crate::PoolAccess;
    use crate::Shape;
    use crate::Silent;
    use crate::erase;
    use crate::header::{self, RestoreOverrides};
    use crate::public_info;
    use crate::unlock;
    use crate::vault::{self, NewVault, OpenVaultOptions};
    use lacuna_header::Location;
    use lacuna_medium::Access;

    #[test]
    fn a_vault_is_made_only_in_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        let kind = |path: &Path| NewVaultDir::check_available(path).map_err(|e| e.kind());
        assert_eq!(kind(dir.path()), Ok(()));
        assert_eq!(kind(&dir.path().join("new")), Ok(()));
        assert_eq!(kind(&dir.path().join("no/new")), Err(Kind::NotFound));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(kind(&dir.path().join("file")), Err(Kind::Exists));
        assert_eq!(kind(dir.path()), Err(Kind::Exists));
    }

    #[test]
    fn a_failed_creation_leaves_nothing_of_the_vault() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("v");
        let mut place = NewVaultDir::make(&at).unwrap();
        place.make_header().unwrap();
        std::fs::create_dir(at.join("a0")).unwrap();
        for file in FILES.into_iter().chain(["lock", "a0/b1"]) {
            std::fs::write(at.join(file), "").unwrap();
        }
        assert!(is_vault(&at) && check_is_vault(&at).is_ok());
        std::fs::remove_file(at.join(HEADER_FILE)).unwrap();
        assert!(check_is_vault(&at).unwrap_err().to_string().contains("without its header"));
        drop(place);
        assert!(!at.exists());
        NewVaultDir::make(&at).unwrap().keep();
        assert!(at.exists());
    }

    /// The anchor is created after the files of the store. If that fails, the files are removed,
    /// and the next attempt succeeds.
    #[test]
    fn a_failed_anchor_leaves_nothing_of_the_vault() {
        let home = tempfile::tempdir().unwrap();
        let (empty, missing) = (home.path().join("empty"), home.path().join("missing"));
        std::fs::create_dir(&empty).unwrap();
        let create = |dir: &Path, anchor: PathBuf| {
            let cost = Cost::fixed(1024, 1).unwrap();
            let new = NewVault { anchor: Some(anchor), cost, ..NewVault::new(dir) };
            vault::create(&new, &Silent, || Ok(Passphrase::new(b"correct horse".to_vec())))
        };
        for dir in [&empty, &missing] {
            let failed = create(dir, PathBuf::from("/proc/nothing is made here/anchor")).err().unwrap();
            assert!(failed.to_string().contains("anchor"), "{failed}");
        }
        assert!(std::fs::read_dir(&empty).unwrap().next().is_none() && !missing.exists());
        for dir in [&empty, &missing] {
            create(dir, dir.with_extension("anchor")).unwrap();
        }
    }

    /// A vault that comes into the directory while a passphrase is asked for stays whole.
    #[test]
    fn a_vault_that_was_made_meanwhile_is_not_removed() {
        let home = tempfile::tempdir().unwrap();
        let secret = || Passphrase::new(b"correct horse".to_vec());
        for dir in ["empty", "missing"].map(|name| home.path().join(name)) {
            if dir.ends_with("empty") {
                std::fs::create_dir(&dir).unwrap();
            }
            let new = |anchor: &str| NewVault {
                anchor: Some(dir.with_extension(anchor)),
                cost: Cost::fixed(1024, 1).unwrap(),
                ..NewVault::new(&dir)
            };
            let (first, second) = (new("first"), new("second"));
            let refused = vault::create(&first, &Silent, || {
                vault::create(&second, &Silent, || Ok(secret())).unwrap();
                Ok(secret())
            });
            assert_eq!(refused.err().unwrap().kind(), Kind::Exists);
            let opening = OpenVaultOptions { anchor: second.anchor.clone(), ..OpenVaultOptions::default() };
            vault::open(&dir, vec![secret()], opening, &Silent).unwrap().close().unwrap();
        }
    }

    fn opened(open: HeaderOpener<'_>) -> Result<PassphraseMatch> {
        let secret = vec![Passphrase::new(b"correct horse".to_vec())];
        Ok((open(&secret)?, secret))
    }

    /// A user with write access to a vault's directory cannot redirect any command to another file.
    #[test]
    fn a_linked_or_foreign_header_is_refused_by_every_verb() {
        let home = tempfile::tempdir().unwrap();
        let (dir, victim) = (home.path().join("v"), home.path().join("disk"));
        let cost = Cost::fixed(1024, 1).unwrap();
        let secret = || Passphrase::new(b"correct horse".to_vec());
        let anchor = Some(home.path().join("anchor"));
        let new = NewVault { anchor, cost, ..NewVault::new(&dir) };
        vault::create(&new, &Silent, || Ok(secret())).unwrap();
        let (location, cluster, pool_access) =
            (Location::Path(dir.clone()), ClusterOptions::default(), PoolAccess::default());
        let backup = header::backup(&location, &cluster, &Silent).unwrap();
        let disk = CreateOptions {
            cost,
            ..CreateOptions::new(Location::Path(victim.clone()), Shape::sealed(), 1 << 20)
        };
        crate::create(&disk, &Silent, |_| Ok(vec![secret()])).unwrap();
        let whole = std::fs::read(&victim).unwrap();
        let header = dir.join(HEADER_FILE);
        let refused = |what: &str| {
            let may_lose = RestoreOverrides { older: true, replace: true };
            let disk = DiskRef { location: &location, pool_access: &pool_access };
            let restored = header::restore(disk, &backup, may_lose, &Silent, opened, |_| Ok(()));
            assert!(restored.is_err(), "{what}: restored");
            assert!(erase(&location, &pool_access, &Silent, |_| Ok(())).is_err(), "{what}: erased");
            assert!(
                unlock(&location, &pool_access, Access::Write, &Silent, |_, open| opened(open)).is_err(),
                "{what}"
            );
            assert!(header::backup(&location, &cluster, &Silent).is_err(), "{what}: backed up");
            assert!(
                vault::public_info(&dir, None).is_err() && public_info(&location, &cluster).is_err(),
                "{what}"
            );
            assert!(std::fs::read(&victim).unwrap() == whole, "{what}: the other disk was changed");
        };
        std::fs::remove_file(&header).unwrap();
        std::os::unix::fs::symlink(&victim, &header).unwrap();
        refused("a symbolic link");
        std::fs::remove_file(&header).unwrap();
        std::fs::hard_link(&victim, &header).unwrap();
        refused("another name of a disk");
        std::fs::remove_file(&header).unwrap();
        std::fs::copy(&victim, &header).unwrap();
        refused("the header of a disk");
    }
}
