//! One page of the version table on the medium: 504 numbers that only rise, under a MAC.

use lacuna_contracts::{Error, Kind, LeReader, LeWriter, Result, Secret};
use lacuna_crypto::{constant_time_eq, derive, keyed_hash};
use std::fmt;

/// Bytes of a page.
pub(crate) const PAGE_LEN: usize = 4096;
/// Numbers in a page.
pub(crate) const PAGE_ENTRIES: usize = 504;

const MAGIC: &[u8; 8] = b"LACVERS1";
/// The head's bytes before the tag.
const SIGNED: usize = 32;
const HEAD: usize = 64;
/// The only flag.
const OPEN: u32 = 1;
/// Bytes of a [`HeadsTag`].
pub(crate) const HEADS_TAG_LEN: usize = 24;

/// The tag of all heads of a version table at one moment.
pub(crate) type HeadsTag = [u8; HEADS_TAG_LEN];

/// The source of every error about a page; it distinguishes such errors from those about data
/// objects.
#[derive(Debug)]
struct PageDamage;

impl fmt::Display for PageDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a page of the version table was not written by this disk")
    }
}

impl std::error::Error for PageDamage {}

/// Whether an error is about a part of the version table: writing the affected blocks does not
/// repair them.
pub fn is_of_version_table(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<PageDamage>)
}

/// The error for a page that does not verify.
pub(crate) fn bad_page(place: PageAddress, what: &str, found: String, expected: String) -> Error {
    let PageAddress { object, page } = place;
    Error::new(Kind::Corrupt, format!("page {page} of object {object} of the book {what}"))
        .found(found)
        .expected(expected)
        .hint(
            "restore that object of the book, or roll the disk back to a snapshot; until then nothing that \
            the page counts can be read or written",
        )
        .caused_by(PageDamage)
}

/// The number of a write to an object of the version table, rising by one; 0: never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(pub(crate) u64);

/// The content of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct VersionPage {
    /// The write that produced the page.
    pub(crate) generation: Generation,
    /// Whether the counted objects may have advanced since: the numbers are then lower bounds.
    pub(crate) is_open: bool,
    /// The numbers.
    pub(crate) entries: Box<[u64; PAGE_ENTRIES]>,
}

impl Default for VersionPage {
    fn default() -> Self {
        VersionPage { generation: Generation(0), is_open: false, entries: Box::new([0; PAGE_ENTRIES]) }
    }
}

/// The place of a page: its object of the book, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PageAddress {
    /// Object of the book.
    pub(crate) object: u64,
    /// Page in the object.
    pub(crate) page: u32,
}

/// Makes and reads the pages of one disk.
#[derive(Clone)]
pub(crate) struct VersionPageKey(Secret<32>);

impl VersionPageKey {
    pub(crate) fn new(master: &Secret<32>, uuid: &[u8; 16]) -> VersionPageKey {
        VersionPageKey(derive(master, "sealed objects version table", uuid))
    }

    /// The bytes of a page.
    pub(crate) fn encode(&self, place: PageAddress, page: &VersionPage) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_LEN];
        let mut record = LeWriter(&mut bytes);
        record.put(0, MAGIC).u64(8, place.object).u32(16, place.page);
        record.u32(20, if page.is_open { OPEN } else { 0 }).u64(24, page.generation.0);
        for (at, entry) in (HEAD..).step_by(8).zip(page.entries.iter()) {
            record.u64(at, *entry);
        }
        let tag = keyed_hash(&self.0, &[&bytes[..SIGNED], &bytes[HEAD..]]);
        bytes[SIGNED..HEAD].copy_from_slice(&tag);
        bytes
    }

    /// The tag of the heads of a version table, in order: the first bytes of a MAC over their tags.
    pub(crate) fn tag_of_heads<'h>(
        &self,
        heads: impl Iterator<Item = (PageAddress, &'h VersionPage)>,
    ) -> HeadsTag {
        let tags: Vec<u8> =
            heads.flat_map(|(place, head)| self.encode(place, head)[SIGNED..HEAD].to_vec()).collect();
        *keyed_hash(&self.0, &[&tags[..]]).first_chunk().expect("a hash is longer than a tag")
    }

    /// Decodes the page of a place.
    /// Errors: [`Kind::Corrupt`] if this disk did not write these bytes there.
    pub(crate) fn decode(&self, place: PageAddress, bytes: &[u8]) -> Result<VersionPage> {
        let bad = |found: &str| {
            bad_page(place, "does not verify", found.into(), "the page that this disk wrote there".into())
        };
        if bytes.len() != PAGE_LEN || bytes[..8] != *MAGIC {
            return Err(bad("no page of a version table"));
        }
        let tag = keyed_hash(&self.0, &[&bytes[..SIGNED], &bytes[HEAD..]]);
        if !constant_time_eq(&tag, &bytes[SIGNED..HEAD]) {
            return Err(bad("a page that was altered"));
        }
        let record = LeReader(bytes);
        let flags = record.u32(20);
        if (PageAddress { object: record.u64(8), page: record.u32(16) }) != place {
            return Err(bad("a page from another place"));
        }
        if flags & !OPEN != 0 {
            return Err(bad("flags of a newer version of lacuna").hint("use that version"));
        }
        let mut entries = Box::new([0; PAGE_ENTRIES]);
        for (entry, at) in entries.iter_mut().zip((HEAD..).step_by(8)) {
            *entry = record.u64(at);
        }
        Ok(VersionPage { generation: Generation(record.u64(24)), is_open: flags & OPEN != 0, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_verifies_only_unaltered_at_its_address() {
        let key = VersionPageKey::new(&Secret::copy_from(&[1; 32]), &[2; 16]);
        let place = PageAddress { object: 1, page: 3 };
        let mut page = VersionPage { generation: Generation(9), is_open: true, ..VersionPage::default() };
        page.entries[0] = 1;
        page.entries[PAGE_ENTRIES - 1] = u64::MAX;
        let bytes = key.encode(place, &page);
        assert_eq!(key.decode(place, &bytes).unwrap(), page);
        for elsewhere in [PageAddress { object: 2, ..place }, PageAddress { page: 4, ..place }] {
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
