//! The next batches, before it is their turn: which cells they rewrite, and what these hold.
//!
//! Cells are drawn, read and decrypted by a thread, without any lock that front ends wait for; for that a cell says itself in
//! which place it was put. Deniability contract: all cells of every region are read, and each costs one attempt to find out
//! whose it is and one decryption, under the key of the level of its region, or under a key that nobody else has if that
//! level is not open or has nothing there.

use crate::core::Core;
use crate::draw::draw_cells;
use crate::params::GROUP;
use crate::place::cell_of;
use lacuna_core::{BLOCK_SIZE, Result};
use lacuna_levels::{Entry, SALT_LEN, Tree};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Batches that are prepared ahead.
pub(crate) const DEPTH: usize = 2;

/// What is known of a batch before it is filled.
pub(crate) struct Prepared {
    pub(crate) salt: [u8; SALT_LEN],
    /// The cells that it rewrites.
    pub(crate) cells: Vec<u64>,
    /// Batches up to this one had been written when the cells were read.
    pub(crate) as_of: u64,
    /// The cells as they were; where something was found, the block is decrypted.
    pub(crate) old: Vec<u8>,
    /// What the level of its region has, or had, in a cell, and the place under which it put it there.
    pub(crate) found: Vec<Option<(Entry, u64)>>,
}

impl Core {
    /// Draws the next batch and reads its cells. `old` is memory for them.
    pub(crate) fn prepare(&self, mut old: Vec<u8>) -> Result<Prepared> {
        let params = &self.store.params;
        let mut salt = [0; SALT_LEN];
        self.random.public.fill(&mut salt);
        let mut cells = Vec::with_capacity(params.batch_cells());
        for share in params.regions() {
            let groups = draw_cells(&*self.random.public, share.cells / GROUP, share.drawn / GROUP as usize);
            let firsts = groups.into_iter().map(|group| share.first + group * GROUP);
            cells.extend(firsts.flat_map(|first| first..first + GROUP));
        }
        let as_of = self.store.progress().written();
        old.resize(cells.len() * params.cell_len(), 0);
        self.store.read_last(&cells, &mut old)?;
        let mut prepared = Prepared { salt, found: vec![None; cells.len()], cells, as_of, old };
        for slot in 0..prepared.cells.len() {
            prepared.open(self, slot)?;
        }
        Ok(prepared)
    }

    /// Loads the leaves that say whether what was found is the latest, without the locks of the levels, as long as the batch
    /// has not been taken.
    ///
    /// Deniability contract: the deepest level comes first. Level 0 is locked for whole requests, and a hidden level whose leaves
    /// had to wait for that would make its batch take longer.
    fn warm(&self, due: &Due) {
        for (level, addrs) in due.addrs.iter().enumerate().rev() {
            let level = level as u8;
            let source = self.source(level);
            let mut most = 1;
            let is_due =
                self.with_map(due.number, level, |tree| most = (tree.cached_leaves() / 2).max(1) as usize);
            for addrs in addrs.chunks(most).take_while(|_| is_due) {
                let mut missing = Vec::new();
                self.with_map(due.number, level, |tree| {
                    missing.extend(addrs.iter().filter_map(|addr| tree.missing(*addr, 1)));
                });
                let wanted = missing.into_iter().take_while(|_| self.ahead.is_due(due.number));
                // What cannot be read is found out by the reader of the map.
                let loaded: Vec<_> = wanted.filter_map(|leaf| leaf.load(&source).ok()).collect();
                if !loaded.is_empty() {
                    self.with_map(due.number, level, |tree| {
                        loaded.into_iter().for_each(|leaf| tree.supply(leaf))
                    });
                }
            }
        }
    }

    /// Runs `act` on the map of a level, unless it is too late for the batch. Whether it did.
    fn with_map(&self, batch: u64, level: u8, act: impl FnOnce(&mut Tree)) -> bool {
        if !self.health.is_alive() || !self.ahead.is_due(batch) {
            return false;
        }
        match level {
            0 => act(&mut self.public().level.tree),
            level => act(&mut self.hidden.lock(&self.health, level).level.tree),
        }
        true
    }

    /// What the thread does that prepares batches.
    pub(crate) fn prepare_ahead(&self) -> Result<()> {
        loop {
            let Some(memory) = self.ahead.next(self) else { return Ok(()) };
            let prepared = self.prepare(memory);
            let failed = prepared.is_err();
            let addrs =
                prepared.as_ref().map_or_else(|_| Vec::new(), |prepared| prepared.data_by_level(self));
            self.ahead.push(prepared, addrs);
            if failed {
                return Ok(());
            }
        }
    }

    /// What the thread does that looks ahead into the maps. It waits for the locks of levels, and those who hold them wait for
    /// the thread that prepares batches: these are two.
    pub(crate) fn warm_ahead(&self) -> Result<()> {
        while let Some(due) = self.ahead.next_due(self) {
            self.warm(&due);
        }
        Ok(())
    }
}

impl Prepared {
    /// Finds out what a cell holds of the level of its region, and decrypts it.
    pub(crate) fn open(&mut self, core: &Core, slot: usize) -> Result<()> {
        let params = &core.store.params;
        let level = (0u8..).find(|level| params.slots(*level).contains(&slot)).map(usize::from);
        let key = level.and_then(|level| core.keys.get(level)).map_or(&core.nobody, |key| &key.cells);
        let len = params.cell_len();
        let cell = &mut self.old[slot * len..(slot + 1) * len];
        let (entry, place) = key.claim(cell);
        let claimed = entry.filter(|_| cell_of(place) == Some(self.cells[slot]));
        self.found[slot] = match claimed {
            Some(entry) => key.open(place, entry, cell)?.is_ok().then_some((entry, place)),
            None => {
                let _nothing = core.nobody.open(place, Entry::Empty, cell)?;
                None
            }
        };
        Ok(())
    }

    /// The block of a cell.
    pub(crate) fn block(&mut self, slot: usize) -> &mut [u8] {
        let len = self.old.len() / self.cells.len();
        &mut self.old[slot * len..slot * len + BLOCK_SIZE]
    }

    /// Addresses of the blocks of every open level that were found.
    fn data_by_level(&self, core: &Core) -> Vec<Vec<u64>> {
        let data = |level: usize| {
            let found = &self.found[core.store.params.slots(level as u8)];
            let addr = |found: &Option<(Entry, u64)>| match found {
                Some((Entry::Data(addr), _)) if *addr < core.lengths[level] => Some(*addr),
                _ => None,
            };
            found.iter().filter_map(addr).collect()
        };
        (0..core.keys.len()).map(data).collect()
    }
}

/// What the thread that prepares batches and those who write them share.
#[derive(Default)]
pub(crate) struct Ahead {
    state: Mutex<State>,
    changed: Condvar,
}

/// What a prepared batch is going to ask the maps.
struct Due {
    /// Which batch it is, of all that were prepared.
    number: u64,
    /// By level.
    addrs: Vec<Vec<u64>>,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Result<Prepared>>,
    /// Of the batches that are ready, those whose leaves nobody has looked for yet.
    due: VecDeque<Due>,
    /// Batches that were prepared, ready ones included.
    prepared: u64,
    /// Whether there are threads.
    running: bool,
    spare: Vec<Vec<u8>>,
}

impl State {
    /// The number of the last batch that was taken.
    fn taken(&self) -> u64 {
        self.prepared - self.ready.len() as u64
    }
}

impl Ahead {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on threads prepare batches and look ahead; or they end.
    pub(crate) fn set_running(&self, running: bool) {
        let mut state = self.state();
        state.running = running;
        state.ready.clear();
        state.due.clear();
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn wake_all(&self) {
        drop(self.state());
        self.changed.notify_all();
    }

    /// Whether a batch is ready and nobody has taken it.
    fn is_due(&self, number: u64) -> bool {
        let state = self.state();
        state.running && number > state.taken()
    }

    /// Waits for a batch whose leaves nobody has looked for; nothing at the end.
    fn next_due(&self, core: &Core) -> Option<Due> {
        let mut state = self.state();
        loop {
            if !state.running || !core.health.is_alive() {
                return None;
            }
            if let Some(due) = state.due.pop_front() {
                return Some(due);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until another batch is to be prepared, and gives memory for it; nothing at the end.
    fn next(&self, core: &Core) -> Option<Vec<u8>> {
        let mut state = self.state();
        loop {
            if !state.running || !core.health.is_alive() {
                // One who waits for a batch is not told by everybody who fails the disk.
                drop(state);
                self.changed.notify_all();
                return None;
            }
            if state.ready.len() < DEPTH {
                return Some(state.spare.pop().unwrap_or_default());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// `addrs` are those that the batch is going to ask the maps for, by level.
    fn push(&self, prepared: Result<Prepared>, addrs: Vec<Vec<u64>>) {
        let mut state = self.state();
        if state.running {
            state.ready.push_back(prepared);
            state.prepared += 1;
            let number = state.prepared;
            state.due.push_back(Due { number, addrs });
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The next batch, once it is prepared; prepared here if there is no thread.
    pub(crate) fn take(&self, core: &Core) -> Result<Prepared> {
        let mut state = self.state();
        while state.running {
            if let Some(prepared) = state.ready.pop_front() {
                let taken = state.taken();
                state.due.retain(|due| due.number > taken);
                drop(state);
                self.changed.notify_all();
                return prepared;
            }
            core.health.check()?;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let memory = state.spare.pop().unwrap_or_default();
        drop(state);
        core.prepare(memory)
    }

    /// Gives memory back.
    pub(crate) fn give_back(&self, old: Vec<u8>) {
        let mut state = self.state();
        if state.spare.len() <= DEPTH {
            state.spare.push(old);
        }
    }
}
