//! Messages for the owner of a hidden level that has lost its data: a level that was overwritten
//! reads as empty, also to its own passphrase.

use crate::terminal::console::{self, Console};
use lacuna_mount::NO_FILE_SYSTEM;
use lacuna_storage::{BLOCK_SIZE, Disk, Error, Kind, Location, Term, human_size};
use std::sync::Arc;

/// Why a level is empty that its owner had filled.
const LOST: &str =
    "they were overwritten while the disk was open without its passphrase, and cannot be brought back";

/// The bytes of data on a level; `None` for a disk without levels.
pub(crate) fn data(level: &dyn Disk) -> Option<u64> {
    let items = level.status().items;
    items.iter().find(|item| item.name == "level")?;
    let blocks = items.iter().find(|item| item.name == "data")?.value;
    Some(blocks.saturating_mul(BLOCK_SIZE as u64))
}

/// The numbers of the hidden levels without data among these levels, which start at level 0.
pub(crate) fn among(levels: &[Arc<dyn Disk>]) -> Vec<u64> {
    let hidden = (0..).zip(levels).skip(1);
    hidden.filter(|(_, level)| data(&***level) == Some(0)).map(|(number, _)| number).collect()
}

/// Prints on a terminal that these levels are empty.
///
/// Deniability contract: elsewhere the note would tell a log that there are hidden levels.
pub(crate) fn print_notes(levels: impl IntoIterator<Item = u64>, console: Console) {
    if console::is_terminal() {
        levels.into_iter().for_each(|level| {
            console.note(&format!("level {level} is empty: if you had files there, {LOST}"));
        });
    }
}

/// The error for a level that has no file system, with `data` bytes on it. `e` is the error of the
/// mount, which stays that of level 0, and for any other reason.
pub(crate) fn not_mounted(e: Error, location: &Location, level: u64, data: Option<u64>) -> Error {
    let has_none = e.text(Term::quoted).found.as_deref() == Some(NO_FILE_SYSTEM);
    let Some(data) = data.filter(|_| level > 0 && has_none) else { return e };
    let error = Error::new(Kind::NotFound, format!("cannot mount level {level} of {location}"))
        .expected("a file system");
    if data == 0 {
        return error
            .found(format!("an empty level; if you had files there, {LOST}"))
            .hint("on a new level give --mkfs ext4");
    }
    error
        .found(format!("{} of data, and no file system that is known here", human_size(data)))
        .hint(format!("if parts of it were overwritten, `lacuna rescue --level {level}` copies the rest"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_not_advised_to_make_a_file_system_over_data() {
        let lacking = |found: &str| {
            Error::new(Kind::NotFound, "cannot mount the disk").found(found).hint("give --mkfs")
        };
        let mount = || lacking(NO_FILE_SYSTEM);
        let words = |level, data| {
            let location = Location::Path("d.img".into());
            not_mounted(mount(), &location, level, data).to_string()
        };
        let empty = words(1, Some(0));
        assert!(empty.starts_with("cannot mount level 1 of d.img; found: an empty level;"), "{empty}");
        assert!(empty.contains("cannot be brought back") && empty.ends_with("give --mkfs ext4"), "{empty}");
        let damaged = words(2, Some(8192));
        assert!(damaged.contains("8 KiB of data") && damaged.contains("rescue --level 2"), "{damaged}");
        assert!(!damaged.contains("--mkfs"), "{damaged}");
        for same in [words(0, Some(0)), words(0, None), words(1, None)] {
            assert_eq!(same, mount().to_string());
        }
        let location = Location::Path("d.img".into());
        let other = not_mounted(lacking("no program blkid"), &location, 1, Some(0)).to_string();
        assert_eq!(other, lacking("no program blkid").to_string());
    }
}
