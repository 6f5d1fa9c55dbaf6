//! A model of the allowed contents of a disk after a failure: the versions of every block, and the
//! operations that make them.

use crate::fixture::*;
use lacuna_contracts::{BlockAddr, Disk, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_sealed::{Params, SealedDisk};
use lacuna_sim::{CrashMedium, MediumImage};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const BLOCKS: u64 = 3 * SEGMENT_BLOCKS + 100;
/// Without metadata, with IVs, with tags.
pub(crate) const CIPHERS: [Cipher; 3] = [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm];

/// The versions that a block may have when the disk is opened again: the first is the last flushed
/// one.
#[derive(Clone, Default)]
pub(crate) struct FaultModel(pub BTreeMap<u64, Vec<u64>>);

impl FaultModel {
    pub(crate) fn set(&mut self, first: u64, count: u64, stamp: u64) {
        (first..first + count).for_each(|b| self.0.entry(b).or_insert_with(|| vec![0]).push(stamp));
    }

    pub(crate) fn flushed(&mut self) {
        self.0.values_mut().for_each(|versions| *versions = vec![*versions.last().unwrap()]);
    }

    /// Reads which versions an opened disk kept; from then, only these are allowed.
    pub(crate) fn note_read(&mut self, disk: &SealedDisk, what: &str) {
        self.assert_allows(disk, what);
        for (&block, versions) in &mut self.0 {
            if versions.len() > 1 {
                *versions = vec![stamp_of(block, &read(disk, block).unwrap()).unwrap()];
            }
        }
    }

    pub(crate) fn allows(&self, block: u64, stamp: u64) -> bool {
        self.0.get(&block).map_or(stamp == 0, |versions| versions.contains(&stamp))
    }

    pub(crate) fn assert_allows(&self, disk: &SealedDisk, what: &str) {
        for &block in self.0.keys() {
            let data = read(disk, block).unwrap_or_else(|e| panic!("{what}: block {block}: {e}"));
            let stamp = stamp_of(block, &data).unwrap_or_else(|| panic!("{what}: block {block} is mixed"));
            assert!(self.allows(block, stamp), "{what}: block {block} reads {stamp}: {:?}", self.0[&block]);
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Op {
    Write(u64, u64),
    Discard(u64, u64),
    Flush,
}

pub(crate) fn perform(disk: &SealedDisk, op: Op, stamp: u64, model: &mut FaultModel) -> Result<()> {
    match op {
        Op::Write(first, count) => {
            model.set(first, count, stamp);
            write(disk, first, count, stamp)
        }
        Op::Discard(first, count) => {
            model.set(first, count, 0);
            disk.discard(BlockAddr(first), count)
        }
        Op::Flush => disk.flush().map(|()| model.flushed()),
    }
}

/// A disk that was used and not closed, with slots, a map, and batches in the journal.
pub(crate) fn used_disk(params: &Params) -> (MediumImage, FaultModel) {
    let medium = Arc::new(CrashMedium::new(params.geometry().end()));
    create(&*medium, params);
    let mut model = FaultModel::default();
    let disk = open_with(medium.clone(), params, options(1)).unwrap();
    for (op, stamp) in [Op::Write(0, 12), Op::Write(300, 2)].into_iter().zip(1..) {
        perform(&disk, op, stamp, &mut model).unwrap();
    }
    disk.close().unwrap();
    let disk = open_with(medium.clone(), params, options(2)).unwrap();
    for (op, stamp) in
        [Op::Write(2, 2), Op::Write(SEGMENT_BLOCKS, 2), Op::Discard(300, 1)].into_iter().zip(10..)
    {
        perform(&disk, op, stamp, &mut model).unwrap();
    }
    disk.flush().unwrap();
    model.flushed();
    (medium.image(), model)
}
