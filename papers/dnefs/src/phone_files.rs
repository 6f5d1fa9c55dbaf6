//! The file system of the simulated phone, reduced to the calls that a disk receives: files of
//! whole blocks, a page cache that is written back every 30 seconds, syncs, and discards of deleted
//! blocks.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Kind, Result};
use lacuna_flash::FlashDisk;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Blocks of metadata, at the start of the disk.
const META: u32 = 64;
/// Files that share a block of metadata.
const FILES_PER_META: u32 = 32;

/// The number of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId(u32);

/// The files on a disk.
pub(crate) struct PhoneFiles {
    disk: Arc<FlashDisk>,
    blocks: BTreeMap<FileId, Vec<u32>>,
    next: u32,
    free: BTreeSet<u32>,
    /// Blocks that the page cache holds and the disk does not.
    dirty: BTreeSet<u32>,
    /// Deleted blocks that are not yet discarded.
    deleted: BTreeSet<u32>,
    /// The version of each block on the disk; 0 if the block was never written or is discarded.
    versions: Vec<u64>,
    writes: u64,
}

impl PhoneFiles {
    /// An empty file system on a disk.
    pub(crate) fn new(disk: Arc<FlashDisk>) -> PhoneFiles {
        let blocks = disk.blocks() as u32;
        PhoneFiles {
            blocks: BTreeMap::new(),
            next: 0,
            free: (META..blocks).collect(),
            dirty: BTreeSet::new(),
            deleted: BTreeSet::new(),
            versions: vec![0; blocks as usize],
            writes: 0,
            disk,
        }
    }

    /// Blocks of the disk.
    pub(crate) fn blocks(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Blocks in use by files and metadata.
    pub(crate) fn used(&self) -> u64 {
        self.blocks() - self.free.len() as u64 - self.deleted.len() as u64
    }

    /// Block writes to the disk so far.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    /// Length of a file in blocks.
    pub(crate) fn len(&self, file: FileId) -> u32 {
        self.blocks.get(&file).map_or(0, |blocks| blocks.len() as u32)
    }

    /// Creates a file of `blocks` blocks in the page cache.
    pub(crate) fn create(&mut self, blocks: u32) -> Result<FileId> {
        let file = FileId(self.next);
        self.next += 1;
        self.blocks.insert(file, vec![]);
        self.dirty_metadata(file);
        self.append(file, blocks)?;
        Ok(file)
    }

    /// Appends blocks to a file, in the page cache.
    pub(crate) fn append(&mut self, file: FileId, blocks: u32) -> Result<()> {
        for _ in 0..blocks {
            let block = self.free.pop_first().ok_or_else(|| {
                Error::new(Kind::NoSpace, "the simulated phone is full")
                    .expected("files that are deleted in time")
            })?;
            self.blocks.entry(file).or_default().push(block);
            self.dirty.insert(block);
        }
        Ok(())
    }

    /// Overwrites blocks of a file, in the page cache.
    pub(crate) fn overwrite(&mut self, file: FileId, blocks: Range<u32>) {
        let there = self.blocks.get(&file).into_iter().flatten();
        self.dirty.extend(there.skip(blocks.start as usize).take(blocks.len()));
    }

    /// Deletes a file. Blocks that only the page cache holds are never written.
    pub(crate) fn delete(&mut self, file: FileId) {
        for block in self.blocks.remove(&file).unwrap_or_default() {
            self.dirty.remove(&block);
            if self.versions[block as usize] > 0 {
                self.deleted.insert(block)
            } else {
                self.free.insert(block)
            };
        }
        self.dirty_metadata(file);
    }

    /// Writes the dirty blocks of a file and makes them durable.
    pub(crate) fn sync(&mut self, file: FileId) -> Result<()> {
        let blocks = self.blocks.get(&file).into_iter().flatten();
        let dirty: Vec<u32> = blocks.copied().filter(|block| self.dirty.contains(block)).collect();
        self.write_runs(&dirty)?;
        self.disk.flush()
    }

    /// The periodic write-back: writes all dirty blocks, including the metadata, and discards
    /// deleted ones.
    pub(crate) fn write_back(&mut self) -> Result<()> {
        let dirty: Vec<u32> = self.dirty.iter().copied().collect();
        self.write_runs(&dirty)?;
        for run in runs(&std::mem::take(&mut self.deleted)) {
            for block in run.clone() {
                self.versions[block as usize] = 0;
                self.free.insert(block);
            }
            self.disk.discard(BlockAddr(run.start.into()), (run.end - run.start).into())?;
        }
        self.disk.flush()
    }

    /// Reads every block and compares it with the last version that was written.
    pub(crate) fn verify(&self) -> Result<()> {
        let mut found = vec![0; BLOCK_SIZE];
        for (block, version) in (0..).zip(&self.versions) {
            self.disk.read(BlockAddr(block), &mut found)?;
            if found != content(block, *version) {
                return Err(Error::new(Kind::Corrupt, "the simulated phone reads other data than it wrote")
                    .found(format!("other data in block {block}"))
                    .expected(format!("version {version}")));
            }
        }
        Ok(())
    }

    fn dirty_metadata(&mut self, file: FileId) {
        self.dirty.insert(file.0 / FILES_PER_META % META);
    }

    fn write_runs(&mut self, blocks: &[u32]) -> Result<()> {
        for block in blocks {
            self.dirty.remove(block);
            let version = &mut self.versions[*block as usize];
            self.writes += 1;
            *version = self.writes;
            self.disk.write(BlockAddr((*block).into()), &content((*block).into(), *version))?;
        }
        Ok(())
    }
}

/// The contents of a version of a block; zeros for version 0.
fn content(block: u64, version: u64) -> Vec<u8> {
    let mut content = vec![0; BLOCK_SIZE];
    if version > 0 {
        content[..8].copy_from_slice(&block.to_le_bytes());
        content[8..16].copy_from_slice(&version.to_le_bytes());
    }
    content
}

/// Joins adjacent block numbers into ranges.
fn runs(blocks: &BTreeSet<u32>) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = vec![];
    for block in blocks {
        match runs.last_mut() {
            Some(run) if run.end == *block => run.end += 1,
            _ => runs.push(*block..*block + 1),
        }
    }
    runs
}
