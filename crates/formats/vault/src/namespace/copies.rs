//! The copies of a page of the namespace; a reader takes one that verifies.
//!
//! The tags of the tree verify blocks, whichever file they come from. Pages of parts end with a
//! mark: the number of the last commit before they were written, and a tag. Among the copies with
//! tags that verify, the highest number that a page of the root can have counts: a page that was
//! not written to one of the files is older, and a page of a checkpoint with a lost record is
//! newer. Neither tag nor number proves that a page is of the anchored state: the tree of the root
//! proves that.

use crate::VaultLog;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::PART_PAGE;
use lacuna_vault_store::{ObjectId, PAGE, PageCopy, Store};
use std::ops::Range;

/// The parameters for reading copies.
#[derive(Clone)]
pub(crate) struct CopyReadOptions {
    /// Pages of parts with these numbers in their marks are ignored.
    pub(crate) stale_numbers: Range<u64>,
    /// Whether the third files are read as well.
    pub(crate) reads_thirds: bool,
    /// The log for copies that do not verify.
    pub(crate) log: VaultLog,
}

impl CopyReadOptions {
    /// The copies to read, the likeliest first.
    pub(super) fn copies(&self) -> &'static [PageCopy] {
        if self.reads_thirds { &PageCopy::ALL } else { &PageCopy::USUAL }
    }
}

/// The offsets in the mark of a page of a part: a number and a tag. The tag covers everything
/// before it.
const NUMBER: usize = PAGE - 24;
const TAG: usize = PAGE - 16;

/// A page of a part without its mark. `None`: a removed page.
pub(super) fn encode_page(bytes: Option<&[u8]>) -> Vec<u8> {
    let mut padded = vec![0; PAGE];
    if let Some(bytes) = bytes {
        padded[..2].copy_from_slice(&(bytes.len() as u16 + 1).to_le_bytes());
        padded[2..2 + bytes.len()].copy_from_slice(bytes);
    }
    padded
}

/// Undoes [`encode_page`]. The reader verifies the content, and so detects a wrong length.
pub(super) fn decode_page(page: &[u8]) -> Option<Vec<u8>> {
    let len = usize::from(u16::from_le_bytes([page[0], page[1]]));
    (len > 0).then(|| page[2..][..(len - 1).min(PART_PAGE)].to_vec())
}

/// Writes the mark of a page of a part.
pub(super) fn mark(store: &Store, object: ObjectId, page: u64, bytes: &mut [u8]) {
    bytes[NUMBER..TAG].copy_from_slice(&store.last_noted_number().to_le_bytes());
    let tag = store.part_tag(object, page, &bytes[..TAG]);
    bytes[TAG..].copy_from_slice(&tag);
}

/// The number in the mark of a page of a part, if its tag verifies.
fn number(store: &Store, object: ObjectId, page: u64, bytes: &[u8]) -> Option<u64> {
    let (marked, tag) = bytes.split_at(TAG);
    // The tag only detects damage; an adversary gains nothing by a right tag.
    let verifies = store.part_tag(object, page, marked) == tag;
    let number = marked.last_chunk().map(|number| u64::from_le_bytes(*number));
    number.filter(|_| verifies)
}

/// The latest version of a page of a part.
pub(super) struct NewestPage {
    /// The page, with its mark.
    pub(super) bytes: Vec<u8>,
    /// Whether it is from another copy than the usual one.
    pub(super) is_from_other_copy: bool,
}

/// Whether a file has a copy of a page of a part with a stale number, or one that cannot be read
/// now.
pub(super) fn has_stale_copy(store: &Store, object: ObjectId, page: u64, stale: &Range<u64>) -> bool {
    PageCopy::ALL.iter().any(|copy| {
        let mut bytes = vec![0; PAGE];
        match store.read_copy(object, page, *copy, &mut bytes) {
            Ok(exists) => {
                exists && number(store, object, page, &bytes).is_some_and(|number| stale.contains(&number))
            }
            Err(_) => true,
        }
    })
}

/// The newest copy of a page of a part, except copies with stale numbers. `None` if it was never
/// written.
///
/// Errors: [`Kind::Corrupt`] if there are copies but none verifies, and the errors of reading them.
pub(super) fn newest(
    store: &Store,
    object: ObjectId,
    page: u64,
    reading: &CopyReadOptions,
) -> Result<Option<NewestPage>> {
    let (mut newest, mut failed) = (None::<(u64, NewestPage)>, None);
    for copy in reading.copies() {
        // The third file is written after the second: a newer page there is of an abandoned state.
        if *copy == PageCopy::Third && newest.is_some() {
            break;
        }
        let mut bytes = vec![0; PAGE];
        match store.read_copy(object, page, *copy, &mut bytes) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(e) => {
                failed = Some(e);
                continue;
            }
        }
        let elsewhere = *copy != PageCopy::Current;
        match number(store, object, page, &bytes) {
            Some(number) if reading.stale_numbers.contains(&number) => {}
            Some(number) if newest.as_ref().is_none_or(|(best, _)| number > *best) => {
                newest = Some((number, NewestPage { bytes, is_from_other_copy: elsewhere }));
            }
            None if bytes.iter().any(|byte| *byte != 0) && failed.is_none() => {
                failed =
                    Some(Error::new(Kind::Corrupt, "cannot read a page of the namespace").found(format!(
                        "page {page} of {}, which does not verify",
                        store.object_name(object)
                    )));
            }
            _ => {}
        }
    }
    match (newest, failed) {
        (Some((_, newest)), _) => Ok(Some(newest)),
        (None, Some(e)) => Err(e),
        (None, None) => Ok(None),
    }
}
