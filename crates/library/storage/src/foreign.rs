//! Recognizes content of other programs on a medium: encrypted volumes, file systems, partition
//! tables, members of arrays and pools. Commands name it, and overwrite it only if they are told
//! to.
//!
//! A whole device with a disk as its last partition looks like that disk with a partition table in
//! the place of the first copy of its header, since both have the same end. A physical volume of
//! LVM and a member of an array may look like that, too. A member of an array with its superblock
//! at the end looks like a disk on a medium that has grown, if a disk is on the array. If the last
//! copy is alone, data of unknown programs counts as well.

mod content;
mod signatures;
mod unknown;

pub use content::Foreign;

use crate::vault::directory::{HEADER_FILE, is_vault};
use lacuna_contracts::{Action, Error, Hint, Kind, Result};
use lacuna_header::{CopyState, Diagnosis, HEADER_LEN, Location};
use lacuna_medium::Medium;

/// The content of another program on a medium without a header.
pub(crate) fn recognized(medium: &dyn Medium) -> Result<Option<Foreign>> {
    // A member of an array may begin as the array does.
    match at_end(medium)? {
        Some(foreign) => Ok(Some(foreign)),
        None => at_start(medium, signatures::START),
    }
}

fn at_start(medium: &dyn Medium, searched: usize) -> Result<Option<Foreign>> {
    let mut start = vec![0; medium.len().min(searched as u64) as usize];
    medium.read_at(0, &mut start)?;
    Ok(signatures::at_start(&start))
}

fn at_end(medium: &dyn Medium) -> Result<Option<Foreign>> {
    let from = signatures::end_of(medium.len());
    let mut end = vec![0; (medium.len() - from) as usize];
    medium.read_at(from, &mut end)?;
    Ok(signatures::at_end(&end, from))
}

/// The content of another program that was written over a copy of a header; on a medium without a
/// header, all content that [`recognized`] finds. `None` if the first and the last copy are whole.
pub(crate) fn over_copies(medium: &dyn Medium, found: &Diagnosis) -> Result<Option<Foreign>> {
    let first = found.copies.first().map(|copy| &copy.state);
    let at_first = match first {
        Some(CopyState::Missing) if !found.has_header() => return recognized(medium),
        Some(CopyState::Missing) => at_start(medium, signatures::START)?,
        // Some programs write behind the magic number. Only the bytes of the copy count: content
        // behind it may be older than the disk.
        Some(CopyState::Damaged(_)) => at_start(medium, HEADER_LEN)?,
        _ if found.has_only_last_copy() => at_start(medium, signatures::START)?,
        _ => None,
    };
    let at_first = match at_first {
        None if found.has_only_last_copy() => unknown::over_first_copies(medium, found)?,
        named => named,
    };
    match found.copies.last().map(|copy| &copy.state) {
        Some(CopyState::Missing | CopyState::Damaged(_)) if at_first.is_none() && found.has_header() => {
            Ok(at_end(medium)?.map(Foreign::over_last_copy))
        }
        _ => Ok(at_first),
    }
}

/// Errors: [`Kind::Usage`] if a disk on the medium has content of another program over a copy of
/// its header, since writing copies would overwrite it.
pub(crate) fn refuse(medium: &dyn Medium) -> Result<()> {
    let found = Diagnosis::of(medium.len(), &|offset, buf| medium.read_at(offset, buf));
    if !found.has_header() {
        return Ok(());
    }
    match over_copies(medium, &found) {
        Ok(Some(foreign)) => Err(foreign.refusal(found.noun(), found.has_only_last_copy())),
        Ok(None) => Ok(()),
        // A bad sector at the start may be the damage that the other copies are there to mend.
        Err(e) if e.kind() == Kind::Io && !found.has_only_last_copy() => Ok(()),
        Err(e) => Err(e),
    }
}

/// Names the content of another program in the error for a medium without a header, instead of the
/// places that were searched for one. For the directory of a vault, the error is about its file.
pub(crate) fn named_in(e: Error, medium: &dyn Medium, location: &Location) -> Error {
    let Location::Path(path) = location else { return e };
    if e.kind() != Kind::NotFound {
        return e;
    }
    match recognized(medium) {
        content if is_vault(path) => no_header_of_vault(medium.len(), content),
        Ok(Some(foreign)) => e.found(foreign.to_string()).hint(foreign.advice()),
        Ok(None) | Err(_) => e,
    }
}

/// The error for a vault with `len` bytes in the file of its header, and no header there.
fn no_header_of_vault(len: u64, content: Result<Option<Foreign>>) -> Error {
    let found = match content {
        _ if len == 0 => "an empty file".to_owned(),
        Ok(Some(foreign)) => format!("{foreign} in it"),
        Ok(None) => format!("{len} bytes without a header"),
        Err(e) => format!("{len} bytes that cannot all be read ({})", e.summary()),
    };
    Error::new(Kind::NotFound, format!("a vault without its header, which belongs in the file {HEADER_FILE}"))
        .found(found)
        .expected("the header of the vault")
        .hint(
            Hint::from("restore it from a backup: ")
                .action(Action("vault::restore_header"))
                .text("; without one the vault is lost"),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;

    const LUKS: &[u8] = b"LUKS\xba\xbe\x00\x02";

    fn with(len: u64, at: u64, bytes: &[u8]) -> MemoryMedium {
        let medium = MemoryMedium::new(len);
        medium.write_at(at, bytes).unwrap();
        medium
    }

    #[test]
    fn a_medium_of_any_length_is_searched() {
        for len in [0, 1, 511, 512, 4096, 65_536, 131_072, 1 << 20, (1 << 20) + 1] {
            assert_eq!(recognized(&MemoryMedium::new(len)).unwrap(), None, "{len}");
        }
        let luks = recognized(&with(4096, 0, LUKS)).unwrap().unwrap();
        assert_eq!(luks.to_string(), "a LUKS volume");
        // The superblock of the array counts, and not the file system in it.
        let member = with(1 << 20, 0, b"XFSB");
        member.write_at((1 << 20) - 8192, b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00").unwrap();
        let member = recognized(&member).unwrap().unwrap();
        assert!(member.to_string().contains("MD array"), "{member}");
        assert_eq!(member.advice().to_string(), "check the path, or name the array");
    }

    #[test]
    fn an_error_for_a_missing_header_names_the_content() {
        let path = Location::parse("disk.img").unwrap();
        let e = || Error::new(Kind::NotFound, "not a lacuna disk").found("no header").hint("restore it");
        let named = named_in(e(), &with(1 << 20, 0, LUKS), &path);
        assert_eq!(named.to_string(), "not a lacuna disk; found: a LUKS volume; check the path");
        let kept = e().to_string();
        assert_eq!(named_in(e(), &MemoryMedium::new(1 << 20), &path).to_string(), kept);
        let pool = Location::parse("rados:pool/name").unwrap();
        assert_eq!(named_in(e(), &with(1 << 20, 0, LUKS), &pool).to_string(), kept);
        let damaged = named_in(e().with_kind(Kind::Corrupt), &with(1 << 20, 0, LUKS), &path);
        assert_eq!(damaged.to_string(), kept);
    }

    #[test]
    fn a_vault_with_a_file_that_is_no_header_is_no_missing_disk() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(HEADER_FILE), b"").unwrap();
        let vault = Location::Path(dir.path().to_owned());
        let missing = Error::new(Kind::NotFound, "not a lacuna disk");
        let words = |medium: &MemoryMedium| {
            let named = named_in(missing.clone(), medium, &vault);
            assert_eq!(named.kind(), Kind::NotFound);
            let words = named.to_string();
            assert!(words.starts_with("a vault without its header") && !words.contains("disk"), "{words}");
            assert!(words.contains("`vault::restore_header`"), "{words}");
            words
        };
        assert!(words(&MemoryMedium::new(0)).contains("found: an empty file"));
        assert!(words(&with(4096, 7, b"garbage")).contains("found: 4096 bytes without a header"));
        assert!(words(&with(4096, 0, LUKS)).contains("found: a LUKS volume in it"));
    }
}
