//! Reads the content of bad blocks under a UBI volume, through the MTD device below.
//!
//! If UBI cannot erase a block, it marks the block as bad and reports success, and the old content
//! stays. UBI does not touch the block again, but the MTD device still reads it.

use crate::flash::{Leb, Unerased};
use crate::sysfs::number;
use crate::ubi_calls;
use lacuna_contracts::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The volume header of UBI: its magic number, the offsets of volume, block and checksum, and its
/// length.
const MAGIC: &[u8; 4] = b"UBI!";
const VOLUME: usize = 8;
const BLOCK: usize = 12;
const CHECKSUM: usize = 60;
const HEADER: usize = 64;

/// The device below a UBI volume, and the copies in its bad blocks that were not returned yet.
pub(crate) struct BadBlocks {
    /// The file in `/sys/class/ubi` with the number of bad blocks.
    count_file: PathBuf,
    mtd: PathBuf,
    /// Bytes of a physical block, and the offset of its content.
    block_len: u64,
    content_at: u64,
    volume: u32,
    seen: BTreeSet<u64>,
    unreturned: Vec<Unerased>,
}

impl BadBlocks {
    /// For a volume with this number. `device` is the name of its UBI device, such as `ubi0`.
    pub(crate) fn new(device: &str, volume: u32) -> Result<BadBlocks> {
        let ubi = PathBuf::from("/sys/class/ubi").join(device);
        let mtd = format!("mtd{}", number(&ubi.join("mtd_num"))?);
        let block_len = number(&PathBuf::from("/sys/class/mtd").join(&mtd).join("erasesize"))?;
        // The headers come first; a physical block exceeds a logical one by them.
        let leb_len = number(&ubi.join("eraseblock_size"))?;
        let Some(content_at) = block_len.checked_sub(leb_len) else {
            return Err(Error::new(
                Kind::Other,
                format!("cannot determine where {mtd} has the blocks of {device}"),
            )
            .found(format!("physical blocks of {block_len} bytes for logical ones of {leb_len}"))
            .expected("logical blocks that are shorter"));
        };
        Ok(BadBlocks {
            count_file: ubi.join("bad_peb_count"),
            mtd: PathBuf::from("/dev").join(mtd),
            block_len: block_len.into(),
            content_at: content_at.into(),
            volume,
            seen: BTreeSet::new(),
            unreturned: vec![],
        })
    }

    /// Returns the copies in bad blocks that are wanted and were not returned yet.
    ///
    /// Errors: [`Kind::PurgeIncomplete`] if there are bad blocks and the device below cannot be
    /// read, or shows fewer of them than UBI.
    pub(crate) fn take(&mut self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        self.take_by(&is_bad, wanted)
    }

    /// The same with another way to ask whether a block is bad; `None` past the end of the device.
    fn take_by(
        &mut self,
        is_bad: &dyn Fn(&File, u64) -> std::io::Result<Option<bool>>,
        wanted: &dyn Fn(&Unerased) -> bool,
    ) -> Result<Vec<Unerased>> {
        let incomplete =
            || Error::new(Kind::PurgeIncomplete, "cannot determine whether all superseded copies are erased");
        // Read before the device: a block that goes bad meanwhile is for the next call.
        let count = number(&self.count_file)? as usize;
        if count > self.seen.len() {
            self.scan_device(is_bad).map_err(|e| {
                incomplete()
                    .found(format!("bad blocks, and no way to read them: {}: {e}", self.mtd.display()))
                    .expected("the device below the UBI volume, to read its bad blocks")
                    .hint(format!("permit reading {}", self.mtd.display()))
                    .caused_by(e)
            })?;
            // The device may end early, or not know a block that UBI has marked.
            if count > self.seen.len() {
                return Err(incomplete()
                    .found(format!("{} bad blocks on {}", self.seen.len(), self.mtd.display()))
                    .expected(format!("the {count} bad blocks that UBI counts"))
                    .hint("see `dmesg`: no old copy in the other blocks can be found"));
            }
        }
        Ok(self.unreturned.extract_if(.., |copy| wanted(copy)).collect())
    }

    fn scan_device(
        &mut self,
        is_bad: &dyn Fn(&File, u64) -> std::io::Result<Option<bool>>,
    ) -> std::io::Result<()> {
        let device = File::open(&self.mtd)?;
        let mut offset = 0;
        while let Some(bad) = is_bad(&device, offset)? {
            if bad && !self.seen.contains(&offset) {
                // Marked as seen only after the read: the next call repeats a failure.
                self.unreturned.extend(self.copy_at(&device, offset)?);
                self.seen.insert(offset);
            }
            offset += self.block_len;
        }
        Ok(())
    }

    /// The content of a bad block; `None` if the block belongs to another volume or is empty.
    fn copy_at(&self, device: &File, offset: u64) -> std::io::Result<Option<Unerased>> {
        let mut block = vec![0; self.block_len as usize];
        device.read_exact_at(&mut block, offset)?;
        let content = block.split_off(self.content_at as usize);
        // Erased, or as it left the factory.
        if content.iter().all(|byte| *byte == content[0]) {
            return Ok(None);
        }
        let leb = match volume_header(&block) {
            Some((volume, _)) if volume != self.volume => return Ok(None),
            header => header.map(|(_, leb)| leb),
        };
        Ok(Some(Unerased { leb, content }))
    }
}

/// Whether the block is bad; `None` past the end of the device.
fn is_bad(device: &File, offset: u64) -> std::io::Result<Option<bool>> {
    match ubi_calls::is_bad(device, offset) {
        Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => Ok(None),
        answer => answer.map(Some),
    }
}

/// The volume and the logical block of a valid volume header in these bytes. The offset of the
/// header depends on the formatting of the device.
fn volume_header(headers: &[u8]) -> Option<(u32, Leb)> {
    let word = |header: &[u8], at: usize| Some(u32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
    headers.windows(HEADER).filter(|header| header.starts_with(MAGIC)).find_map(|header| {
        // UBI's checksum is the CRC-32 with initial ones and without the final inversion.
        let whole = word(header, CHECKSUM)? == !crc32fast::hash(&header[..CHECKSUM]);
        whole.then_some((word(header, VOLUME)?, Leb(word(header, BLOCK)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_LEN: u64 = 4096;
    const CONTENT_AT: u64 = 2048;

    /// A device of 4 blocks with different contents, and `count` as the bad blocks that UBI counts.
    fn device(dir: &std::path::Path, count: u32) -> BadBlocks {
        let (count_file, mtd) = (dir.join("bad_peb_count"), dir.join("mtd0"));
        std::fs::write(&count_file, format!("{count}\n")).unwrap();
        let bytes: Vec<u8> = (0..4 * BLOCK_LEN).map(|at| (at / BLOCK_LEN + at % 7) as u8).collect();
        std::fs::write(&mtd, bytes).unwrap();
        let (seen, unreturned) = (BTreeSet::new(), vec![]);
        BadBlocks {
            count_file,
            mtd,
            block_len: BLOCK_LEN,
            content_at: CONTENT_AT,
            volume: 0,
            seen,
            unreturned,
        }
    }

    #[test]
    fn fewer_bad_blocks_than_ubi_counts_are_not_all() {
        let dir = tempfile::tempdir().unwrap();
        // Blocks 1 and 3 are bad; the device ends before block 3 for some callers.
        let until = |end: u64| {
            move |_: &File, offset: u64| -> std::io::Result<Option<bool>> {
                let block = offset / BLOCK_LEN;
                Ok((block < end).then_some(block == 1 || block == 3))
            }
        };
        let mut bad_blocks = device(dir.path(), 2);
        let refused = bad_blocks.take_by(&until(2), &|_| true).err().unwrap();
        assert_eq!(refused.kind(), Kind::PurgeIncomplete);
        assert!(refused.to_string().contains("the 2 bad blocks that UBI counts"), "{refused}");
        // The copies are returned once all of them were found.
        let copies = bad_blocks.take_by(&until(4), &|_| true).unwrap();
        assert_eq!(copies.len(), 2);
        assert!(copies.iter().all(|copy| copy.content.len() as u64 == BLOCK_LEN - CONTENT_AT));
        assert!(bad_blocks.take_by(&until(0), &|_| true).unwrap().is_empty());
        // One that UBI has marked since, and that the device does not show.
        std::fs::write(&bad_blocks.count_file, "3").unwrap();
        assert!(bad_blocks.take_by(&until(4), &|_| true).is_err());
    }

    #[test]
    fn a_volume_header_is_found_at_any_offset() {
        let mut headers = vec![0xff; 4096];
        assert_eq!(volume_header(&headers), None);
        for at in [64, 2048] {
            let mut header = [0; HEADER];
            header[..4].copy_from_slice(MAGIC);
            header[VOLUME + 3] = 5;
            header[BLOCK + 2] = 1;
            let checksum = !crc32fast::hash(&header[..CHECKSUM]);
            header[CHECKSUM..].copy_from_slice(&checksum.to_be_bytes());
            headers[at..at + HEADER].copy_from_slice(&header);
            assert_eq!(volume_header(&headers), Some((5, Leb(256))));
            headers[at + BLOCK] = 1;
            assert_eq!(volume_header(&headers), None, "a damaged one");
        }
    }
}
