//! What stands between the programs of the simulated phone and its disk: a file system as far as a disk sees one. Files of
//! whole blocks, a page cache that is written back every half minute, syncs, and discards of what was deleted.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Kind, Result};
use lacuna_flash::FlashDisk;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Blocks of metadata, at the start of the disk.
const META: u32 = 64;
/// Files whose metadata share a block.
const FILES_PER_META: u32 = 32;

/// The number of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId(u32);

/// The files on a disk.
pub(crate) struct Files {
    disk: Arc<FlashDisk>,
    blocks: BTreeMap<FileId, Vec<u32>>,
    next: u32,
    free: BTreeSet<u32>,
    /// Blocks that differ from those on the disk.
    dirty: BTreeSet<u32>,
    /// Deleted blocks that the disk has not been told of.
    deleted: BTreeSet<u32>,
    /// How often each block was written to the disk; 0 if it has nothing there.
    versions: Vec<u64>,
    writes: u64,
}

impl Files {
    /// An empty file system on a disk.
    pub(crate) fn new(disk: Arc<FlashDisk>) -> Files {
        let blocks = disk.blocks() as u32;
        Files {
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

    /// Blocks that files and metadata have.
    pub(crate) fn used(&self) -> u64 {
        self.blocks() - self.free.len() as u64 - self.deleted.len() as u64
    }

    /// Blocks that were written to the disk so far.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    /// Blocks of a file.
    pub(crate) fn len(&self, file: FileId) -> u32 {
        self.blocks.get(&file).map_or(0, |blocks| blocks.len() as u32)
    }

    /// A new file of so many blocks, in the page cache.
    pub(crate) fn create(&mut self, blocks: u32) -> Result<FileId> {
        let file = FileId(self.next);
        self.next += 1;
        self.blocks.insert(file, vec![]);
        self.touch(file);
        self.append(file, blocks)?;
        Ok(file)
    }

    /// Lets a file grow.
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

    /// Deletes a file. What never reached the disk never does.
    pub(crate) fn delete(&mut self, file: FileId) {
        for block in self.blocks.remove(&file).unwrap_or_default() {
            self.dirty.remove(&block);
            if self.versions[block as usize] > 0 {
                self.deleted.insert(block)
            } else {
                self.free.insert(block)
            };
        }
        self.touch(file);
    }

    /// Writes the dirty blocks of a file, and makes them durable.
    pub(crate) fn sync(&mut self, file: FileId) -> Result<()> {
        let blocks = self.blocks.get(&file).into_iter().flatten();
        let dirty: Vec<u32> = blocks.copied().filter(|block| self.dirty.contains(block)).collect();
        self.put(&dirty)?;
        self.disk.flush()
    }

    /// What the system does every half minute: all dirty blocks are written, the metadata among them, and deleted ones are
    /// discarded.
    pub(crate) fn write_back(&mut self) -> Result<()> {
        let dirty: Vec<u32> = self.dirty.iter().copied().collect();
        self.put(&dirty)?;
        for run in runs(&std::mem::take(&mut self.deleted)) {
            for block in run.clone() {
                self.versions[block as usize] = 0;
                self.free.insert(block);
            }
            self.disk.discard(BlockAddr(run.start.into()), (run.end - run.start).into())?;
        }
        self.disk.flush()
    }

    /// Reads every block and compares it with what was written last.
    pub(crate) fn verify(&self) -> Result<()> {
        let mut found = vec![0; BLOCK_SIZE];
        for (block, version) in (0..).zip(&self.versions) {
            self.disk.read(BlockAddr(block), &mut found)?;
            if found != content(block, *version) {
                return Err(Error::new(Kind::Corrupt, "the simulated phone reads what it did not write")
                    .found(format!("something else in block {block}"))
                    .expected(format!("version {version}")));
            }
        }
        Ok(())
    }

    fn touch(&mut self, file: FileId) {
        self.dirty.insert(file.0 / FILES_PER_META % META);
    }

    fn put(&mut self, blocks: &[u32]) -> Result<()> {
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

/// What a block holds: zeros, if it was never written.
fn content(block: u64, version: u64) -> Vec<u8> {
    let mut content = vec![0; BLOCK_SIZE];
    if version > 0 {
        content[..8].copy_from_slice(&block.to_le_bytes());
        content[8..16].copy_from_slice(&version.to_le_bytes());
    }
    content
}

/// Neighbouring numbers together.
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
