//! A model of a disk: for every block, the versions that it may have after a power cut.

use crate::Rng;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Result};
use std::ops::Range;

/// The versions that each block may have after a cut: first the last flushed one, last the latest.
/// A version is a stamp; 0 is a block of zeros. Without [`DiskModel::record_flush`] a block keeps
/// all versions that it ever had.
#[derive(Clone)]
pub struct DiskModel {
    /// The name of the disk in messages.
    name: String,
    versions: Vec<Vec<u64>>,
}

impl DiskModel {
    /// A model of a disk with `blocks` blocks of zeros.
    pub fn new(name: impl Into<String>, blocks: u64) -> Self {
        DiskModel { name: name.into(), versions: vec![vec![0]; blocks as usize] }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Adds a version to blocks, which a cut may lose or keep.
    pub fn add_version(&mut self, first: u64, count: u64, stamp: u64) {
        for block in first..first + count {
            self.versions[block as usize].push(stamp);
        }
    }

    /// The latest version of a block.
    pub fn latest(&self, block: u64) -> u64 {
        *self.versions[block as usize].last().unwrap()
    }

    /// The versions of a block, oldest first.
    pub fn versions(&self, block: u64) -> &[u64] {
        &self.versions[block as usize]
    }

    /// Records a flush of the disk: every block has its latest version.
    pub fn record_flush(&mut self) {
        (0..self.blocks()).for_each(|block| self.record_block_flush(block));
    }

    /// Records a flush of one block: it has its latest version.
    pub fn record_block_flush(&mut self, block: u64) {
        let versions = &mut self.versions[block as usize];
        if versions.len() > 1 {
            let latest = *versions.last().unwrap();
            versions.clear();
            versions.push(latest);
        }
    }

    /// Checks a disk after a cut. The model then expects the versions that were read. Errors: a
    /// description of a block that it may not have.
    pub fn check_after_cut(&mut self, disk: &dyn Disk) -> std::result::Result<(), String> {
        let mut data = vec![0; self.versions.len() * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut data).map_err(|e| format!("{}: a read fails: {e}", self.name))?;
        self.adopt(0, &data)
    }

    /// Checks blocks that were read after a cut, starting with `first`. The model then expects the
    /// versions that were read. Errors: a description of the violation.
    pub fn adopt(&mut self, first: u64, data: &[u8]) -> std::result::Result<(), String> {
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            self.versions[block as usize] = vec![self.version_of(block, data)?];
        }
        Ok(())
    }

    /// Checks these blocks of a disk after a failure, without changing the model. Errors: a
    /// description of the violation.
    pub fn check_allowed(&self, disk: &dyn Disk, blocks: Range<u64>) -> std::result::Result<(), String> {
        let mut data = vec![0; (blocks.end - blocks.start) as usize * BLOCK_SIZE];
        disk.read(BlockAddr(blocks.start), &mut data)
            .map_err(|e| format!("{}: a read fails: {e}", self.name))?;
        for (block, data) in blocks.zip(data.chunks_exact(BLOCK_SIZE)) {
            self.version_of(block, data)?;
        }
        Ok(())
    }

    /// The version that was read of a block. Errors: a description, if the block may not have it.
    pub fn version_of(&self, block: u64, data: &[u8]) -> std::result::Result<u64, String> {
        let (name, allowed) = (&self.name, self.versions(block));
        match stamp_of(block, data) {
            None => Err(format!("{name}: block {block} mixes several versions")),
            Some(stamp) if !allowed.contains(&stamp) => {
                Err(format!("{name}: block {block} reads {stamp}, allowed {allowed:?}"))
            }
            Some(stamp) => Ok(stamp),
        }
    }

    /// Compares every block with its latest version.
    pub fn check_latest(&self, disk: &dyn Disk) {
        let mut data = vec![0; self.versions.len() * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut data).unwrap();
        for (block, data) in (0..).zip(data.chunks_exact(BLOCK_SIZE)) {
            assert_eq!(stamp_of(block, data), Some(self.latest(block)), "{}, block {block}", self.name);
        }
    }
}

/// Fills a block with one of its versions. The content differs from that of every other block.
pub fn fill(block: u64, stamp: u64, out: &mut [u8]) {
    if stamp == 0 {
        out.fill(0);
        return;
    }
    let mut word = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block;
    for chunk in out.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(stamp | 1);
    }
    out[..8].copy_from_slice(&stamp.to_le_bytes());
}

/// Like [`fill`], with a new buffer.
pub fn content(block: u64, stamp: u64) -> Vec<u8> {
    let mut out = vec![0; BLOCK_SIZE];
    fill(block, stamp, &mut out);
    out
}

/// Consecutive blocks with one stamp.
pub fn run_content(first: u64, count: u64, stamp: u64) -> Vec<u8> {
    (first..first + count).flat_map(|block| content(block, stamp)).collect()
}

/// The stamp of a block; `None` if the data is no version of it.
pub fn stamp_of(block: u64, data: &[u8]) -> Option<u64> {
    let stamp = u64::from_le_bytes(data[..8].try_into().unwrap());
    let mut expected = [0; BLOCK_SIZE];
    fill(block, stamp, &mut expected);
    (data == expected).then_some(stamp)
}

/// The block and stamp of this data; `None` if it is no version of any block. Zeros belong to no
/// block.
pub fn origin_of(data: &[u8]) -> Option<(u64, u64)> {
    let word = |at: usize| Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?));
    let (stamp, second) = (word(0)?, word(8)?);
    let block = second.wrapping_sub(stamp | 1) ^ stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (stamp != 0 && stamp_of(block, data) == Some(stamp)).then_some((block, stamp))
}

/// A disk with a random workload, and its model.
pub struct DiskWorkload<'a> {
    /// The disk.
    pub disk: &'a dyn Disk,
    /// Its model.
    pub model: &'a mut DiskModel,
    /// The source of the workload.
    pub rng: &'a mut Rng,
    /// The last stamp that was used.
    pub next_stamp: &'a mut u64,
}

impl DiskWorkload<'_> {
    /// A start for `count` blocks: half of the work falls on the first 40 blocks, so that versions
    /// overlap.
    pub fn random_start(&mut self, count: u64) -> u64 {
        let blocks = self.model.blocks();
        let room = if self.rng.chance(1, 2) { 40 } else { blocks };
        self.rng.below(room.min(blocks - count + 1))
    }

    /// Writes blocks at a random place.
    pub fn write(&mut self, count: u64) -> Result<()> {
        let first = self.random_start(count);
        self.write_at(first, count)
    }

    /// Writes blocks with one new stamp.
    pub fn write_at(&mut self, first: u64, count: u64) -> Result<()> {
        *self.next_stamp += 1;
        let stamp = *self.next_stamp;
        let mut data = vec![0; count as usize * BLOCK_SIZE];
        for (block, out) in (first..).zip(data.chunks_exact_mut(BLOCK_SIZE)) {
            fill(block, stamp, out);
        }
        // A write that a power cut interrupts may have written any of its blocks.
        self.model.add_version(first, count, stamp);
        self.disk.write(BlockAddr(first), &data)
    }

    /// Discards blocks at a random place.
    pub fn discard(&mut self, count: u64) -> Result<()> {
        let first = self.random_start(count);
        self.discard_at(first, count)
    }

    /// Discards blocks.
    pub fn discard_at(&mut self, first: u64, count: u64) -> Result<()> {
        self.model.add_version(first, count, 0);
        self.disk.discard(BlockAddr(first), count)
    }

    /// Reads blocks at a random place; they must have their latest version.
    pub fn check_read(&mut self, count: u64) -> Result<()> {
        let first = self.random_start(count);
        self.check_read_at(first, count)
    }

    /// Reads blocks; they must have their latest version.
    pub fn check_read_at(&mut self, first: u64, count: u64) -> Result<()> {
        let mut data = vec![0; count as usize * BLOCK_SIZE];
        self.disk.read(BlockAddr(first), &mut data)?;
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            assert_eq!(
                stamp_of(block, data),
                Some(self.model.latest(block)),
                "{}, block {block} while running",
                self.model.name
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_identifies_its_address_and_stamp() {
        for (block, stamp) in [(0, 1), (7, 3), (1 << 40, 99)] {
            assert_eq!(origin_of(&content(block, stamp)), Some((block, stamp)));
            assert_eq!(stamp_of(block, &content(block, stamp)), Some(stamp));
            assert_eq!(stamp_of(block + 1, &content(block, stamp)), None);
        }
        assert_eq!(origin_of(&content(5, 0)), None);
        let mixed = [&content(5, 1)[..2048], &content(5, 2)[2048..]].concat();
        assert_eq!((origin_of(&mixed), stamp_of(5, &mixed)), (None, None));
    }
}
