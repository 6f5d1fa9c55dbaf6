//! The way home: from the ring to the segments, and the end of what the ring holds.
//!
//! Order is all: a batch is retired only after its blocks are durable at home, and after the map says so durably.

use crate::cache::Committed;
use crate::commit::{Committer, Scope};
use crate::disk::Core;
use crate::geometry::CHUNK_BLOCKS;
use crate::map::Home;
use crate::shadow::Shadow;
use lacuna_core::{BLOCK_SIZE, Error, Result, SEGMENT_BLOCKS};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Core {
    /// Writes every committed version to its home. Not synced: the ring still holds them. Blocks of a segment
    /// that got its first shadow meanwhile stay for the next call.
    pub(crate) fn send_home(&self, c: &mut Committer) -> Result<()> {
        self.house_homeless(c)?;
        let blocks = std::mem::take(&mut c.homeward);
        let sent = self.send_runs_home(c, &blocks);
        if sent.is_err() {
            // What did go home has no committed version any more and is passed over next time.
            c.homeward.extend(blocks);
        }
        c.homeward_bytes = 0;
        c.recycle();
        sent
    }

    /// A segment that has no home but a shadow gets its home from the shadow.
    fn house_homeless(&self, c: &mut Committer) -> Result<()> {
        let waiting: BTreeSet<u64> = c.homeward.iter().map(|b| b / SEGMENT_BLOCKS).collect();
        let mut moves = vec![];
        for segment in waiting {
            if matches!(self.map.get(segment), Ok(Home::Nowhere))
                && let Some(Shadow::Stream(stream)) = self.freeze(segment)
            {
                self.complete(segment, &stream)?;
                moves.push((segment, Home::At(stream.home)));
            }
        }
        if moves.is_empty() {
            return Ok(());
        }
        self.store.settle()?;
        self.commit_moves(c, &moves)
    }

    fn send_runs_home(&self, c: &mut Committer, blocks: &BTreeSet<u64>) -> Result<()> {
        self.for_runs(blocks, |run| self.send_run_home(c, run))
    }

    /// Calls `each` for every run of committed blocks that goes home in one access.
    pub(crate) fn for_runs(
        &self,
        blocks: &BTreeSet<u64>,
        mut each: impl FnMut(&[(u64, Committed)]) -> Result<()>,
    ) -> Result<()> {
        let mut run: Vec<(u64, Committed)> = vec![];
        for &block in blocks {
            let Some(committed) = self.cache.committed(block) else { continue };
            if run.last().is_some_and(|(last, previous)| !continues(*last, previous, block, &committed)) {
                each(&run)?;
                run.clear();
            }
            run.push((block, committed));
        }
        if run.is_empty() { Ok(()) } else { each(&run) }
    }

    pub(crate) fn commit_one_shadow(&self, c: &mut Committer, segment: u64) -> Result<()> {
        match self.freeze(segment) {
            Some(Shadow::Stream(stream)) => {
                self.complete(segment, &stream)?;
                self.store.settle()?;
                self.commit_moves(c, &[(segment, Home::At(stream.home))])
            }
            _ => Ok(()),
        }
    }

    /// Sends one run home, of at least one block.
    pub(crate) fn send_run_home(&self, c: &mut Committer, run: &[(u64, Committed)]) -> Result<()> {
        let (first, _) = &run[0];
        let (segment, index) = (first / SEGMENT_BLOCKS, first % SEGMENT_BLOCKS);
        let count = run.len() as u64;
        let failed = |e: Error| e.context(format!("write of {count} blocks home at block {first}"));
        let _writing = self.locks.exclusive(*first);
        match &run[0].1 {
            Committed::Hole => {
                if let Home::At(home) = self.map.get(segment)? {
                    self.store.erase(home, index, count).map_err(failed)?;
                }
            }
            Committed::Data { batch, at, .. } => {
                if self.map.get(segment)? == Home::Nowhere && self.shadows.get(segment).is_some() {
                    c.homeward.extend(run.iter().map(|(block, _)| *block));
                    return Ok(());
                }
                let home = self.home_of(c, segment)?;
                let size = self.cipher.meta_size();
                let mut meta = Vec::with_capacity(run.len() * size);
                for (_, committed) in run {
                    if let Committed::Data { meta: entry, .. } = committed {
                        meta.extend_from_slice(&entry[..size]);
                    }
                }
                let data = &batch[*at..at + run.len() * BLOCK_SIZE];
                self.store.write(home, index, data, &meta).map_err(failed)?;
            }
        }
        for (block, _) in run {
            self.cache.forget_committed(*block);
        }
        self.counters.homeward_blocks.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// The home of a segment that is about to be written, under one of its chunk locks.
    fn home_of(&self, c: &mut Committer, segment: u64) -> Result<u32> {
        if let Home::At(home) = self.map.get(segment)? {
            return Ok(home);
        }
        let home = self.map.take_first()?;
        // A full medium refuses this again and again, and must not run out of homes by it.
        self.store.prepare(home).inspect_err(|_| self.map.release(home, true))?;
        self.map.set(segment, Home::At(home));
        c.moved.insert(segment);
        c.released.remove(&home);
        Ok(home)
    }

    /// Sends everything home, makes it durable there, then the map, then retires the ring.
    pub(crate) fn checkpoint(&self, c: &mut Committer) -> Result<()> {
        // After a failure nobody knows what is home: nothing may be retired any more.
        self.check_alive()?;
        self.send_home(c)?;
        while !c.homeward.is_empty() {
            self.send_home(c)?;
        }
        self.settle_homes(c)?;
        self.retire_ring(c)
    }

    /// Makes what is home durable there, then the map.
    pub(crate) fn settle_homes(&self, c: &mut Committer) -> Result<()> {
        self.store.settle()?;
        if !c.moved.is_empty() {
            let moved: Vec<u64> = c.moved.iter().copied().collect();
            self.map.write(&*self.store.medium, &moved)?;
            self.store.sync()?;
            c.moved.clear();
        }
        Ok(())
    }

    /// Retires the ring, of which everything is durable at home.
    pub(crate) fn retire_ring(&self, c: &mut Committer) -> Result<()> {
        c.ring.retire()?;
        self.counters.ring_used.store(0, Ordering::Relaxed);
        self.counters.retirements.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Everything home and the ring empty, as far as the medium has space. After a failure, what was the cause of it.
    pub(crate) fn close(&self) -> Result<()> {
        let mut c = self.committer();
        if let Some(cause) = self.failure() {
            self.last_stand(&mut c);
            return Err(cause.context("the disk stopped taking writes"));
        }
        self.commit(&mut c, Scope::All)?;
        // What finds no space at home is durable in the ring.
        let sent = if self.medium_full.is_so() {
            self.send_what_fits(&mut c)
        } else {
            self.checkpoint_or_stay(&mut c)
        };
        sent.map_err(|e| self.fail(e))?;
        // Space back: homes that streams left behind. Nothing depends on it, so nothing is synced.
        let free: BTreeSet<u32> = self.map.free_homes().into_iter().collect();
        for home in c.released.intersection(&free) {
            let _ = self.store.give_back(*home);
        }
        Ok(())
    }
}

/// Whether a committed block can go home in the same access as the one before it: the next block of the same
/// chunk, and either both holes or neighbours in one batch.
fn continues(last: u64, previous: &Committed, block: u64, next: &Committed) -> bool {
    if block != last + 1 || block.is_multiple_of(CHUNK_BLOCKS) {
        return false;
    }
    match (previous, next) {
        (Committed::Hole, Committed::Hole) => true,
        (Committed::Data { batch: a, at: i, .. }, Committed::Data { batch: b, at: j, .. }) => {
            Arc::ptr_eq(a, b) && i + BLOCK_SIZE == *j
        }
        _ => false,
    }
}
