//! The two headers at the start of each physical erase block, one page each, as in UBI: the
//! erasures of the block, and its logical erase block (docs/format/nand.md).

use lacuna_contracts::{LeReader, LeWriter};
use std::ops::Range;

/// Pages of a block that the headers take.
pub(crate) const HEADER_PAGES: u32 = 2;

const ERASE_MAGIC: &[u8; 4] = b"LEC1";
const VOLUME_MAGIC: &[u8; 4] = b"LVI1";
/// A limit above the erasures and changes of any chip: counters below it never overflow.
pub(crate) const MOST: u64 = 1 << 48;
/// Characters of a magic before its version.
const KIND: usize = 3;
const ERASE_LEN: usize = 32;
const VOLUME_LEN: usize = 40;

/// The content of a header page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderPage<T> {
    /// No content: the page is erased.
    Erased,
    /// A header.
    Header(T),
    /// A header of a later version, which must stay unchanged.
    LaterVersion,
    /// Any other content.
    Invalid,
}

/// The first page, written after each erasure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EraseHeader {
    /// Erasures of the block.
    pub(crate) erasures: u64,
    /// Logical erase blocks of the mapping of this block.
    pub(crate) lebs: u32,
    /// A random number of the mapping. Blocks with another number belong to another mapping.
    pub(crate) image: u64,
}

/// The second page, written when the block is assigned to a logical erase block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeHeader {
    /// The logical erase block.
    pub(crate) leb: u32,
    /// If two blocks have the same LEB, the higher number is valid.
    pub(crate) sequence: u64,
    /// For a block that replaces another: length and checksum of its first bytes. The block is
    /// valid only if they match.
    pub(crate) copied: Option<(u32, u32)>,
}

impl EraseHeader {
    pub(crate) fn page(&self, len: usize) -> Vec<u8> {
        page_of(len, ERASE_LEN, |record| {
            record
                .put(0, ERASE_MAGIC)
                .u32(4, self.lebs)
                .u64(8, self.erasures.min(MOST - 1))
                .u64(16, self.image);
        })
    }

    pub(crate) fn parse(page: &[u8]) -> HeaderPage<EraseHeader> {
        parse(page, ERASE_LEN, ERASE_MAGIC, 24..28, |record| {
            let header = EraseHeader { lebs: record.u32(4), erasures: record.u64(8), image: record.u64(16) };
            (header.erasures < MOST).then_some(header)
        })
    }
}

impl VolumeHeader {
    pub(crate) fn page(&self, len: usize) -> Vec<u8> {
        page_of(len, VOLUME_LEN, |record| {
            let (bytes, checksum) = self.copied.unwrap_or_default();
            record.put(0, VOLUME_MAGIC).u32(4, self.leb).u64(8, self.sequence);
            record.u32(16, u32::from(self.copied.is_some())).u32(20, bytes).u32(24, checksum);
        })
    }

    pub(crate) fn parse(page: &[u8]) -> HeaderPage<VolumeHeader> {
        parse(page, VOLUME_LEN, VOLUME_MAGIC, 28..36, |record| {
            let copied = match record.u32(16) {
                0 => None,
                1 => Some((record.u32(20), record.u32(24))),
                _ => return None,
            };
            let header = VolumeHeader { leb: record.u32(4), sequence: record.u64(8), copied };
            (header.sequence < MOST).then_some(header)
        })
    }
}

/// A page that starts with a record, which ends in its checksum; the rest stays erased.
fn page_of(len: usize, record_len: usize, fill: impl FnOnce(&mut LeWriter<'_>)) -> Vec<u8> {
    let mut page = vec![0xff; len];
    page[..record_len].fill(0);
    fill(&mut LeWriter(&mut page[..record_len]));
    let checksum = crc32fast::hash(&page[..record_len - 4]);
    LeWriter(&mut page).u32(record_len - 4, checksum);
    page
}

/// Parses a record. Every version has magic and checksum at the same place; this version has zeros
/// in `zero`.
fn parse<T>(
    page: &[u8],
    len: usize,
    magic: &[u8; 4],
    zero: Range<usize>,
    read: impl FnOnce(LeReader<'_>) -> Option<T>,
) -> HeaderPage<T> {
    if page.iter().all(|byte| *byte == 0xff) {
        return HeaderPage::Erased;
    }
    let record = LeReader(&page[..len]);
    if page[..KIND] != magic[..KIND] || record.u32(len - 4) != crc32fast::hash(&page[..len - 4]) {
        return HeaderPage::Invalid;
    }
    if page[KIND] != magic[KIND] || !record.is_zero(zero) {
        return HeaderPage::LaterVersion;
    }
    read(record).map_or(HeaderPage::Invalid, HeaderPage::Header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_a_flipped_bit_is_noticed() {
        let erase = EraseHeader { erasures: 77, lebs: 1000, image: 0x1234_5678_9abc };
        let volume = VolumeHeader { leb: 9, sequence: 1 << 40, copied: Some((8192, 0xdead_beef)) };
        assert_eq!(EraseHeader::parse(&erase.page(2048)), HeaderPage::Header(erase));
        assert_eq!(VolumeHeader::parse(&volume.page(2048)), HeaderPage::Header(volume));
        assert_eq!(VolumeHeader::parse(&[0xff; 2048]), HeaderPage::Erased);
        for bit in 0..8 * ERASE_LEN {
            let mut page = erase.page(2048);
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(EraseHeader::parse(&page), HeaderPage::Invalid);
        }
    }
}
