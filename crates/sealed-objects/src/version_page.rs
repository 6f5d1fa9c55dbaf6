//! One page of the version table on the medium: 504 numbers that only grow, under a MAC.

use lacuna_core::{Advice, Error, Kind, Record, Result, Secret};
use lacuna_crypto::{constant_time_eq, derive, keyed_hash};

/// Bytes of a page.
pub(crate) const PAGE_LEN: usize = 4096;
/// Numbers of a page.
pub(crate) const PAGE_ENTRIES: usize = 504;

const MAGIC: &[u8; 8] = b"LACLEDG1";
/// The head's bytes before the tag.
const SIGNED: usize = 32;
const HEAD: usize = 64;
/// The only flag.
const OPEN: u32 = 1;

/// What to do about a page that is not what it should be.
pub(crate) const PAGE_REMEDY: &str = "put that object of the book back as it was, or roll the disk back to a snapshot; until then \
    nothing that the page counts can be read or written";

/// Whether what an error speaks of is a part of the version table: the blocks concerned are not mended by writing them.
pub fn is_of_version_table(error: &Error) -> bool {
    error.advice().is_some_and(|advice| *advice == Advice::from(PAGE_REMEDY))
}

/// What a page says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct VersionPage {
    /// One more with each writing; 0: never written.
    pub(crate) generation: u64,
    /// Whether what is counted may have gone on since: the numbers are then lower bounds.
    pub(crate) open: bool,
    /// The numbers.
    pub(crate) entries: Box<[u64; PAGE_ENTRIES]>,
}

impl Default for VersionPage {
    fn default() -> Self {
        VersionPage { generation: 0, open: false, entries: Box::new([0; PAGE_ENTRIES]) }
    }
}

/// Which page: its object of the book, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PagePlace {
    /// Object of the book.
    pub(crate) object: u64,
    /// Page in the object.
    pub(crate) page: u32,
}

/// Makes and reads the pages of one disk.
#[derive(Clone)]
pub(crate) struct PageKey(Secret<32>);

impl PageKey {
    pub(crate) fn new(master: &Secret<32>, uuid: &[u8; 16]) -> PageKey {
        PageKey(derive(master, "sealed objects ledger", uuid))
    }

    /// The bytes of a page.
    pub(crate) fn encode(&self, place: PagePlace, page: &VersionPage) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&place.object.to_le_bytes());
        bytes[16..20].copy_from_slice(&place.page.to_le_bytes());
        bytes[20..24].copy_from_slice(&(if page.open { OPEN } else { 0 }).to_le_bytes());
        bytes[24..32].copy_from_slice(&page.generation.to_le_bytes());
        for (slot, entry) in bytes[HEAD..].chunks_exact_mut(8).zip(page.entries.iter()) {
            slot.copy_from_slice(&entry.to_le_bytes());
        }
        let tag = keyed_hash(&self.0, &[&bytes[..SIGNED], &bytes[HEAD..]]);
        bytes[SIGNED..HEAD].copy_from_slice(&tag);
        bytes
    }

    /// Reads the page that stands in a place.
    /// Errors: [`Kind::Corrupt`] if the bytes are not what this disk wrote there.
    pub(crate) fn decode(&self, place: PagePlace, bytes: &[u8]) -> Result<VersionPage> {
        let bad = |found: &str| {
            let what = format!("page {} of object {} of the book does not verify", place.page, place.object);
            Error::new(Kind::Corrupt, what)
                .found(found)
                .expected("what this disk wrote there")
                .remedy(PAGE_REMEDY)
        };
        if bytes.len() != PAGE_LEN || bytes[..8] != *MAGIC {
            return Err(bad("no page of a version table"));
        }
        let tag = keyed_hash(&self.0, &[&bytes[..SIGNED], &bytes[HEAD..]]);
        if !constant_time_eq(&tag, &bytes[SIGNED..HEAD]) {
            return Err(bad("a page that was altered"));
        }
        let number = |at| Record(bytes).u64(at);
        let (page, flags) = (number(16) as u32, (number(16) >> 32) as u32);
        if (PagePlace { object: number(8), page }) != place {
            return Err(bad("a page from another place"));
        }
        if flags & !OPEN != 0 {
            return Err(bad("flags of a newer version of lacuna").remedy("use that version"));
        }
        let mut entries = Box::new([0; PAGE_ENTRIES]);
        for (entry, at) in entries.iter_mut().zip((HEAD..).step_by(8)) {
            *entry = number(at);
        }
        Ok(VersionPage { generation: number(24), open: flags & OPEN != 0, entries })
    }
}

/// Parses bytes that anybody may have written as a page, as they are and as if their tag had verified.
#[doc(hidden)]
pub fn fuzz_parse(bytes: &[u8]) {
    let key = PageKey(Secret::copy_from(&[0; 32]));
    let place = PagePlace { object: 1, page: 2 };
    assert!(key.decode(place, bytes).is_err(), "bytes without the key pass for a page");
    if bytes.len() != PAGE_LEN {
        return;
    }
    let mut tagged = bytes.to_vec();
    let tag = keyed_hash(&key.0, &[&bytes[..SIGNED], &bytes[HEAD..]]);
    tagged[SIGNED..HEAD].copy_from_slice(&tag);
    if let Ok(page) = key.decode(place, &tagged) {
        assert_eq!(key.encode(place, &page), tagged, "a page of which something was passed over");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_good_in_its_place_and_in_every_bit() {
        let key = PageKey::new(&Secret::copy_from(&[1; 32]), &[2; 16]);
        let place = PagePlace { object: 1, page: 3 };
        let mut page = VersionPage { generation: 9, open: true, ..VersionPage::default() };
        page.entries[0] = 1;
        page.entries[PAGE_ENTRIES - 1] = u64::MAX;
        let bytes = key.encode(place, &page);
        assert_eq!(key.decode(place, &bytes).unwrap(), page);
        for elsewhere in [PagePlace { object: 2, ..place }, PagePlace { page: 4, ..place }] {
            assert_eq!(key.decode(elsewhere, &bytes).unwrap_err().kind(), Kind::Corrupt);
        }
        for bit in (0..PAGE_LEN * 8).step_by(5) {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(key.decode(place, &bad).is_err(), "bit {bit}");
        }
        for len in [0, 7, 63, PAGE_LEN - 1] {
            assert!(key.decode(place, &bytes[..len]).is_err());
        }
    }
}
