//! The signatures of other programs, and their places: a magic number at a fixed offset, and for
//! content with a short or movable magic number a few more fields.

use super::content::Foreign;

/// The length of the part at the beginning of a medium that is searched.
pub(super) const START: usize = 2 * LABEL;
/// The length of a label of ZFS. Two of them are at each end of a member of a pool.
const LABEL: usize = 256 << 10;

/// Magic numbers in the first part of a medium, with their offsets, in the order of the search.
const FIXED: &[(usize, &[u8], &str)] = &[
    (0, b"LUKS\xba\xbe", LUKS),
    // The second header of LUKS 2. The length of the first one decides where it lies.
    (0x4000, b"SKUL\xba\xbe", LUKS),
    (0x8000, b"SKUL\xba\xbe", LUKS),
    (0x10000, b"SKUL\xba\xbe", LUKS),
    (0x20000, b"SKUL\xba\xbe", LUKS),
    (0x40000, b"SKUL\xba\xbe", LUKS),
    (3, b"-FVE-FS-", "a BitLocker volume"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (0, b"XFSB", "an xfs file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (1024, b"\x10\x20\xf5\xf2", "an f2fs file system"),
    (1024, b"H+\x00\x04", "an HFS+ file system"),
    (1024, b"HX\x00\x05", "an HFS+ file system"),
    (32, b"NXSB", "an APFS container"),
    (0, b"hsqs", "a squashfs file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (0x8001, b"BEA01", "a UDF file system"),
    (0, b"QFI\xfb", "a qcow2 image"),
];

const LUKS: &str = "a LUKS volume";
const ARRAY: Foreign = Foreign::around("a member of an MD array", "the array");
const VOLUME_GROUP: Foreign = Foreign::around("a physical volume of LVM", "the logical volume");
const POOL: Foreign = Foreign::new("a member of a ZFS pool");
const TABLE: Foreign = Foreign::around("a partition table", "the partition");

/// The content that the first bytes of a medium show, at most [`START`] of them.
pub(super) fn at_start(start: &[u8]) -> Option<Foreign> {
    let fixed = FIXED.iter().find(|(at, magic, _)| has(start, *at, magic));
    if let Some(&(_, _, words)) = fixed {
        return Some(Foreign::new(words));
    }
    // Versions 1.1 and 1.2 of the superblock of an array.
    if [0, 4096].iter().any(|at| is_superblock(start, *at)) {
        return Some(ARRAY);
    }
    let is_label = |at: usize| has(start, at, b"LABELONE") && has(start, at + 24, b"LVM2 001");
    if (0..4).any(|sector| is_label(sector * 512)) {
        return Some(VOLUME_GROUP);
    }
    if let Some(words) = ext(start) {
        return Some(Foreign::new(words));
    }
    if is_swap(start) {
        return Some(Foreign::new("a swap area"));
    }
    if is_fat(start) {
        return Some(Foreign::new("a FAT file system"));
    }
    if [0, LABEL].iter().any(|label| is_label_of_pool(start, *label)) {
        return Some(POOL);
    }
    is_partition_table(start).then_some(TABLE)
}

/// Where the part at the end of a medium of `len` bytes begins that is searched.
pub(super) fn end_of(len: u64) -> u64 {
    let label = LABEL as u64;
    (len / label * label).saturating_sub(2 * label)
}

/// The content that the last bytes of a medium show; they begin at byte `from` ([`end_of`]).
pub(super) fn at_end(end: &[u8], from: u64) -> Option<Foreign> {
    let len = from + end.len() as u64;
    let within = |place: Option<u64>| Some(place?.checked_sub(from)? as usize);
    // Versions 1.0 and 0.90 of the superblock of an array.
    let newer = within((len / 512).checked_sub(16).map(|sector| sector / 8 * 8 * 512));
    let older = within((len / 0x1_0000).checked_sub(1).map(|unit| unit * 0x1_0000));
    if newer.is_some_and(|at| is_superblock(end, at)) || older.is_some_and(|at| is_old_superblock(end, at)) {
        return Some(ARRAY);
    }
    [0, LABEL].iter().any(|label| is_label_of_pool(end, *label)).then_some(POOL)
}

fn has(bytes: &[u8], at: usize, magic: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(magic))
}

fn le_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_le_bytes(*field))
}

/// The type of an ext file system. Its magic number has 16 bits only, so further fields of the
/// superblock must be possible.
fn ext(start: &[u8]) -> Option<&'static str> {
    const SUPERBLOCK: usize = 1024;
    let field = |at: usize| le_u32(start, SUPERBLOCK + at);
    let (blocks, block_size, revision) = (field(4)?, field(24)?, field(76)?);
    if !has(start, SUPERBLOCK + 56, b"\x53\xef") || blocks == 0 || block_size > 6 || revision > 1 {
        return None;
    }
    let (compatible, incompatible, read_only) = (field(92)?, field(96)?, field(100)?);
    // Features that ext3 has, too: file types, recovery and meta block groups; sparse superblocks,
    // large files and trees of directories.
    let is_ext4 = incompatible & !0x16 != 0 || read_only & !0x7 != 0;
    let has_journal = compatible & 0x4 != 0;
    Some(match (is_ext4, has_journal) {
        (true, _) => "an ext4 file system",
        (false, true) => "an ext3 file system",
        (false, false) => "an ext2 file system",
    })
}

/// Whether the last bytes of the first page show a swap area; the size of a page depends on the
/// machine.
fn is_swap(start: &[u8]) -> bool {
    let pages = [4096, 8192, 16384, 32768, 65536];
    pages.iter().any(|page| has(start, page - 10, b"SWAPSPACE2") || has(start, page - 10, b"SWAP-SPACE"))
}

fn is_boot_sector(start: &[u8]) -> bool {
    has(start, 510, b"\x55\xaa")
}

fn is_fat(start: &[u8]) -> bool {
    is_boot_sector(start) && (has(start, 54, b"FAT") || has(start, 82, b"FAT32   "))
}

/// Whether there is an MBR or a GPT. The signature of an MBR has 16 bits only, so the flags of its
/// four partitions must be possible.
fn is_partition_table(start: &[u8]) -> bool {
    let is_gpt = [512, 4096].iter().any(|sector| has(start, *sector, b"EFI PART"));
    let is_flag = |entry: usize| start.get(446 + 16 * entry).is_some_and(|flag| matches!(flag, 0 | 0x80));
    is_gpt || is_boot_sector(start) && (0..4).all(is_flag)
}

/// Whether a superblock of version 1 of an MD array lies at a place.
fn is_superblock(bytes: &[u8], at: usize) -> bool {
    has(bytes, at, b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00")
}

/// The same for version 0.90, which has the byte order of its machine.
fn is_old_superblock(bytes: &[u8], at: usize) -> bool {
    has(bytes, at, b"\xfc\x4e\x2b\xa9\x00\x00\x00\x00\x5a\x00\x00\x00")
        || has(bytes, at, b"\xa9\x2b\x4e\xfc\x00\x00\x00\x00\x00\x00\x00\x5a")
}

/// Whether the ring of uberblocks in a label of ZFS has one.
fn is_label_of_pool(bytes: &[u8], label: usize) -> bool {
    (128..256).map(|slot| label + slot * 1024).any(|at| {
        has(bytes, at, b"\x0c\xb1\xba\x00\x00\x00\x00\x00")
            || has(bytes, at, b"\x00\x00\x00\x00\x00\xba\xb1\x0c")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Zeros with these bytes at these offsets.
    fn image(len: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; len];
        parts.iter().for_each(|(at, part)| bytes[*at..*at + part.len()].copy_from_slice(part));
        bytes
    }

    fn words(parts: &[(usize, &[u8])]) -> Option<&'static str> {
        at_start(&image(START, parts)).map(|foreign| foreign.words)
    }

    #[test]
    fn content_at_the_beginning_is_named() {
        for &(at, magic, expected) in FIXED {
            assert_eq!(words(&[(at, magic)]), Some(expected), "{at}");
            // Too short for the magic number.
            assert_eq!(at_start(&image(START, &[(at, magic)])[..at + magic.len() - 1]), None, "{at}");
        }
        let superblock = |at: usize| words(&[(at, b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00")]);
        assert_eq!([superblock(0), superblock(4096)], [Some(ARRAY.words); 2]);
        assert_eq!(superblock(8192), None);
        assert_eq!(words(&[(1536, b"LABELONE"), (1560, b"LVM2 001")]), Some(VOLUME_GROUP.words));
        assert_eq!(words(&[(2048, b"LABELONE"), (2072, b"LVM2 001")]), None);
        for (at, magic) in [(4086, b"SWAPSPACE2"), (65526, b"SWAPSPACE2"), (4086, b"SWAP-SPACE")] {
            assert_eq!(words(&[(at, magic)]), Some("a swap area"));
        }
        for label in [0, LABEL] {
            let uberblock: &[u8] = b"\x0c\xb1\xba\x00\x00\x00\x00\x00";
            assert_eq!(words(&[(label + (131 << 10), uberblock)]), Some(POOL.words));
        }
    }

    #[test]
    fn the_types_of_ext_are_told_apart() {
        let superblock = |compatible: u8, incompatible: u8, read_only: u8| {
            let features = [compatible, 0, 0, 0, incompatible, 0, 0, 0, read_only, 0, 0, 0];
            words(&[(1028, &[1]), (1048, &[2]), (1080, b"\x53\xef"), (1100, &[1]), (1116, &features)])
        };
        assert_eq!(superblock(0x4, 0x46, 0x7b), Some("an ext4 file system"));
        assert_eq!(superblock(0x4, 0x6, 0x7), Some("an ext3 file system"));
        assert_eq!(superblock(0, 0x2, 0x1), Some("an ext2 file system"));
        // The magic number alone, and a size of blocks that no file system has.
        assert_eq!(words(&[(1080, b"\x53\xef")]), None);
        assert_eq!(words(&[(1028, &[1]), (1048, &[9]), (1080, b"\x53\xef")]), None);
    }

    #[test]
    fn a_partition_table_is_no_file_system() {
        let sector: (usize, &[u8]) = (510, b"\x55\xaa");
        assert_eq!(words(&[sector, (82, b"FAT32   ")]), Some("a FAT file system"));
        assert_eq!(words(&[sector, (54, b"FAT16   ")]), Some("a FAT file system"));
        assert_eq!(words(&[(54, b"FAT16   ")]), None);
        assert_eq!(words(&[sector]), Some(TABLE.words));
        assert_eq!(words(&[sector, (446, &[0x80])]), Some(TABLE.words));
        assert_eq!(words(&[sector, (462, &[0x7f])]), None);
        assert_eq!([words(&[(512, b"EFI PART")]), words(&[(4096, b"EFI PART")])], [Some(TABLE.words); 2]);
    }

    #[test]
    fn content_at_the_end_is_named() {
        for len in [1 << 20, (3 << 20) + 512, (5 << 20) + 131_584] {
            let words = |at: u64, part: &[u8]| {
                let from = end_of(len);
                let end = image((len - from) as usize, &[((at - from) as usize, part)]);
                at_end(&end, from).map(|foreign| foreign.words)
            };
            let newer = (len / 512 - 16) / 8 * 8 * 512;
            assert_eq!(words(newer, b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00"), Some(ARRAY.words));
            let older = (len / 65_536 - 1) * 65_536;
            for magic in
                [b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0".as_slice(), b"\xa9\x2b\x4e\xfc\0\0\0\0\0\0\0\x5a"]
            {
                assert_eq!(words(older, magic), Some(ARRAY.words));
            }
            let labels = len / LABEL as u64 * LABEL as u64;
            for back in [1, 2] {
                let uberblock = labels - back * LABEL as u64 + (255 << 10);
                assert_eq!(words(uberblock, b"\0\0\0\0\0\xba\xb1\x0c"), Some(POOL.words));
            }
            assert_eq!(words(labels - 4096, b"\xfc\x4e\x2b\xa9\x02\0\0\0"), None);
        }
    }

    #[test]
    fn short_media_and_zeros_show_nothing() {
        for len in (0..2000).chain([4096, 65_536, START]) {
            assert_eq!((at_start(&vec![0; len]), at_end(&vec![0; len], 0)), (None, None), "{len}");
            assert_eq!((at_start(&vec![0xff; len]), at_end(&vec![0xff; len], 0)), (None, None), "{len}");
        }
    }
}
