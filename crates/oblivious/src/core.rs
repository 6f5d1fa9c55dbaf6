//! What the threads and clients of an open disk share.

use crate::ahead::Ahead;
use crate::cell::CellKey;
use crate::place::cell_of;
use crate::public::Public;
use crate::store::Store;
use lacuna_core::{BLOCK_SIZE, Error, FailStop, Kind, Result, Secret, defect};
use lacuna_crypto::derive;
use lacuna_levels::{Entry, HiddenLevels, Mode, PageSource, Randomness, Wait, again, corrupt};
use rustc_hash::FxHashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The keys of one level of one disk.
pub(crate) struct LevelKey {
    pub(crate) level: Secret<32>,
    pub(crate) cells: CellKey,
}

impl LevelKey {
    pub(crate) fn new(master: &Secret<32>, uuid: &[u8; 16]) -> LevelKey {
        let level = derive(master, "oblivious level", uuid);
        LevelKey { cells: CellKey::new(&level), level }
    }
}

/// Blocks of one level of a disk of version 1 that lower levels displaced from their cells, by what they are.
pub(crate) type Displaced = FxHashMap<u64, Box<[u8]>>;

/// Counts for `status`.
#[derive(Default)]
pub(crate) struct Counters {
    /// Blocks that front ends wrote to level 0.
    pub(crate) public_blocks: AtomicU64,
    /// Batches written since the disk was opened.
    pub(crate) batches: AtomicU64,
    /// Those of them that the paced cover caused.
    pub(crate) refreshes: AtomicU64,
}

/// What all threads of an open disk share.
pub(crate) struct Core {
    pub(crate) store: Store,
    /// Of the open levels, from 0 up.
    pub(crate) keys: Vec<LevelKey>,
    pub(crate) random: Randomness,
    pub(crate) public: Mutex<Public>,
    pub(crate) hidden: HiddenLevels,
    /// What filler is sealed with, and what no open level has is opened with: work that costs as much as any other.
    pub(crate) nobody: CellKey,
    /// Length of every open level in blocks.
    pub(crate) lengths: Vec<u64>,
    /// Of every open level, as the disk was opened.
    pub(crate) displaced: Mutex<Vec<Displaced>>,
    /// The next batches, drawn and read by a thread.
    pub(crate) ahead: Ahead,
    pub(crate) health: FailStop,
    pub(crate) mode: Mode,
    pub(crate) counters: Counters,
}

impl Core {
    /// Locks level 0. Hidden operations of an opportunistic disk never do (deniability contract).
    pub(crate) fn public(&self) -> MutexGuard<'_, Public> {
        self.public.lock().unwrap_or_else(|poisoned| {
            self.fail(defect());
            poisoned.into_inner()
        })
    }

    pub(crate) fn displaced(&self) -> MutexGuard<'_, Vec<Displaced>> {
        self.displaced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters fail-stop for good and gives the error back.
    pub(crate) fn fail(&self, e: Error) -> Error {
        let e = self.health.fail(e);
        self.hidden.wake_all();
        self.store.wake_all();
        self.ahead.wake_all();
        e
    }

    /// How something hidden waits for cover.
    pub(crate) fn wait(&self) -> Wait<'_> {
        self.mode.wait(&self.health, self.store.params.plan.cover_millis)
    }

    /// The pages of a level, of which no batch is being filled.
    pub(crate) fn source(&self, level: u8) -> Source<'_> {
        Source { core: self, level, written: &[] }
    }

    /// Reads what a level has in a cell, as far as it is the block that `entry` names.
    fn read_cell(&self, level: u8, place: u64, entry: Entry, block: &mut [u8]) -> Result<()> {
        let cell = self.cell_at(place, entry)?;
        let mut buf = vec![0; self.store.params.cell_len()];
        self.store.read_cells(&[cell], &mut buf)?;
        self.open_cell(level, place, entry, &mut buf)?;
        block.copy_from_slice(&buf[..BLOCK_SIZE]);
        Ok(())
    }

    /// The cell of what `entry` names, if the map told the truth.
    pub(crate) fn cell_at(&self, place: u64, entry: Entry) -> Result<u64> {
        let cell = cell_of(place).filter(|cell| *cell < self.store.params.cells);
        cell.ok_or_else(|| corrupt(format!("cannot read {entry}")))
    }

    /// Decrypts a cell, or a slot of the stash, that was read where it lies.
    pub(crate) fn open_cell(&self, level: u8, place: u64, entry: Entry, buf: &mut [u8]) -> Result<()> {
        let key = &self.keys[usize::from(level)].cells;
        let told = if self.store.params.is_writable() { place } else { 0 };
        let opened = key.claim(buf) == (Some(entry), told) && key.open(place, entry, buf)?.is_ok();
        if opened { Ok(()) } else { Err(corrupt(format!("cannot read {entry}"))) }
    }
}

/// A page that the batch that is being filled has taken in: its place, what it is, and its content.
pub(crate) type NewPage = (u64, Entry, Box<[u8; BLOCK_SIZE]>);

/// Where a level reads its own pages: from the batch that is being filled, or from their cells.
pub(crate) struct Source<'a> {
    pub(crate) core: &'a Core,
    pub(crate) level: u8,
    pub(crate) written: &'a [NewPage],
}

impl PageSource for Source<'_> {
    fn load(&self, place: u64, entry: Entry, block: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        let new = self.written.iter().find(|(at, page, _)| *page == entry && *at == place);
        if let Some((_, _, page)) = new {
            block.copy_from_slice(&page[..]);
            return Ok(());
        }
        if let Some(waiting) = self.core.displaced()[usize::from(self.level)].get(&entry.pack()) {
            block.copy_from_slice(waiting);
            return Ok(());
        }
        // One bad sector must not stop the disk, and what is hidden must not stop what is public: a page that the medium will
        // not give is lost.
        let read = || self.core.read_cell(self.level, place, entry, block);
        // Deniability contract: level 0 may be locked here, and must not pause for what is hidden.
        let done = if self.level == 0 { self.core.store.patiently(read) } else { again(read) };
        done.map_err(|e| e.with_kind(Kind::Corrupt))
    }
}
