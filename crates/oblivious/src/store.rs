//! Cells, the ring and the journal on the medium: a batch goes to the ring and the journal first, and in place later.
//!
//! The ring has four parts. At the end of a part everything is synced, and what is durable then is written in place, in
//! the order of the cells; another sync, or the next part's, makes that durable. A batch may overwrite one in the ring
//! when a durable head says that the older one is durable in place: then, wherever the power goes, every batch after the
//! last one that the last head calls applied is whole in the ring. And it waits until all but three parts are durable in
//! place, so that its own head can say so: otherwise the ring could fill with heads that say nothing new, and nothing could
//! go on.
//!
//! Invariant: a cell that `flight` names is read from the ring and never in place, so that nobody reads a cell while it is
//! being written.

use crate::cell::CELL_LEN;
use crate::head::{Head, PublicPart};
use crate::params::Params;
use lacuna_core::{BLOCK_SIZE, Error, Result, Secret};
use lacuna_levels::{FailStop, again, defect};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Cells that are written in place at once.
const AT_ONCE: usize = 64;

/// Where in the ring the latest version of a cell is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct InRing {
    seq: u64,
    slot: u8,
}

/// How far the batches have come; each of these says it of a batch and all before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Written to ring and journal, and what its head calls applied.
    written: u64,
    written_claim: u64,
    /// Durable in ring and journal, and what its head calls applied.
    synced: u64,
    claimed: u64,
    /// Written in place; and durable there.
    applied: u64,
    applied_durable: u64,
    /// The last batch that was there when the disk was opened: it is not brought in place before another part has ended, for
    /// nothing is done to a disk that is only looked at.
    found: u64,
    /// There are threads that sync parts of the ring and write them in place; whoever ends a part does it otherwise.
    threads: bool,
}

impl Progress {
    /// Everything up to batch `end` is durable in the ring, and in place up to batch `applied`, as the head of `end` says.
    pub(crate) fn at(end: u64, applied: u64) -> Progress {
        Progress {
            written: end,
            written_claim: applied,
            synced: end,
            claimed: applied,
            applied,
            applied_durable: applied,
            found: end,
            threads: false,
        }
    }

    /// Whether a part of the ring has ended that is not durable.
    pub(crate) fn has_ended(&self, part: u64) -> bool {
        last_end(self.written, part) > self.synced
    }

    /// Whether a sync is due: for such a part, or for what was written in place.
    pub(crate) fn wants_sync(&self, part: u64) -> bool {
        self.has_ended(part) || self.applied > self.applied_durable
    }

    /// The end of the last part that is durable, if it is not in place.
    pub(crate) fn due_in_place(&self, part: u64) -> Option<u64> {
        let end = last_end(self.synced, part);
        (end > self.applied && end > self.found).then_some(end)
    }

    pub(crate) fn has_threads(&self) -> bool {
        self.threads
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn synced(&self) -> u64 {
        self.synced
    }

    pub(crate) fn applied_durable(&self) -> u64 {
        self.applied_durable
    }
}

/// The last batch, up to `seq`, with which a part of the ring ends.
fn last_end(seq: u64, part: u64) -> u64 {
    seq / part * part
}

pub(crate) struct Store {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) params: Params,
    flight: RwLock<FxHashMap<u64, InRing>>,
    progress: Mutex<Progress>,
    moved: Condvar,
    /// The error of a sync that failed. No other is made then: the system, which has dropped what it could not write, would
    /// say that all is well.
    syncing: Mutex<Option<Error>>,
    applying: Mutex<()>,
    pub(crate) syncs: AtomicU64,
}

impl Store {
    pub(crate) fn new(medium: Arc<dyn Medium>, params: Params) -> Store {
        Store {
            medium,
            params,
            flight: RwLock::default(),
            progress: Mutex::new(Progress::at(0, 0)),
            moved: Condvar::new(),
            syncing: Mutex::default(),
            applying: Mutex::new(()),
            syncs: AtomicU64::new(0),
        }
    }

    // Reading.

    /// Reads the cells of a batch, one after another, into `out`.
    pub(crate) fn read_cells(&self, cells: &[u64], out: &mut [u8]) -> Result<()> {
        let flight = self.flight.read().unwrap_or_else(PoisonError::into_inner);
        let extents = cells.iter().zip(out.chunks_exact_mut(CELL_LEN));
        let mut batch: Vec<ReadExtent<'_>> =
            extents.map(|(cell, buf)| ReadExtent { offset: self.offset(&flight, *cell), buf }).collect();
        self.medium.read(&mut batch)
    }

    /// Reads the cells of a batch, which will be overwritten. What the medium does not give is lost, and zeros here: one bad
    /// sector must not stop the disk. That nothing can be read is an error.
    pub(crate) fn read_last(&self, cells: &[u64], out: &mut [u8]) -> Result<()> {
        let Err(e) = self.read_cells(cells, out) else { return Ok(()) };
        let mut given = false;
        for (cell, out) in cells.iter().zip(out.chunks_exact_mut(CELL_LEN)) {
            match again(|| self.read_cells(&[*cell], out)) {
                Ok(()) => given = true,
                Err(_) => out.fill(0),
            }
        }
        if given { Ok(()) } else { Err(e) }
    }

    fn offset(&self, flight: &FxHashMap<u64, InRing>, cell: u64) -> u64 {
        match flight.get(&cell) {
            Some(at) => self.params.ring_offset(at.seq, usize::from(at.slot)),
            None => self.params.cell_offset(cell),
        }
    }

    /// Reads a slot of the stash of batch `seq`.
    pub(crate) fn read_stash(&self, seq: u64, slot: usize, out: &mut [u8]) -> Result<()> {
        self.medium.read_at(self.params.ring_offset(seq, self.params.batch_cells() + slot), out)
    }

    /// The head of batch `seq`, if the journal still has one that fits. One copy that can be read is enough.
    pub(crate) fn head(
        &self,
        level0: &Secret<32>,
        seq: u64,
        fits: impl Fn(&Head) -> bool,
    ) -> Result<Option<Head>> {
        let mut failed = Vec::new();
        for copy in 0..2 {
            let mut block = [0; BLOCK_SIZE];
            if let Err(e) = again(|| self.medium.read_at(self.params.head_offset(seq, copy), &mut block)) {
                failed.push(e);
                continue;
            }
            let head = Head::open(&self.params, level0, &block)?;
            if let Some(head) = head.filter(|head| head.public.seq == seq && fits(head)) {
                return Ok(Some(head));
            }
        }
        // Both copies become durable together: one that can be read and is another says that this one never was.
        if failed.len() == 2 { failed.pop().map_or(Ok(None), Err) } else { Ok(None) }
    }

    /// Whether the ring has the record of a batch. One that the medium does not give whole counts as there: what cannot be
    /// read of it is lost, which is less than all that was flushed with it.
    pub(crate) fn has_record(&self, head: &Head) -> bool {
        let mut record = vec![0; self.params.record_len() as usize];
        let read = again(|| self.medium.read_at(self.params.ring_offset(head.public.seq, 0), &mut record));
        read.is_err() || head.has_record(&record)
    }

    // Writing.

    /// Takes over how far the batches had come, and the cells of those that may not be in place yet, oldest first.
    pub(crate) fn resume<'a>(&self, progress: Progress, in_ring: impl Iterator<Item = (u64, &'a [u64])>) {
        for (seq, cells) in in_ring {
            self.set_off(seq, cells);
        }
        *self.progress() = progress;
    }

    fn set_off(&self, seq: u64, cells: &[u64]) {
        let mut flight = self.flight.write().unwrap_or_else(PoisonError::into_inner);
        for (slot, cell) in (0u8..).zip(cells) {
            flight.insert(*cell, InRing { seq, slot });
        }
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a batch to ring and journal. Batches come one after another.
    pub(crate) fn put(&self, head: &[u8; BLOCK_SIZE], public: &PublicPart, record: &[u8]) -> Result<()> {
        let extents = [
            WriteExtent { offset: self.params.ring_offset(public.seq, 0), data: record },
            WriteExtent { offset: self.params.head_offset(public.seq, 0), data: head },
            WriteExtent { offset: self.params.head_offset(public.seq, 1), data: head },
        ];
        self.medium.write(&extents)?;
        self.set_off(public.seq, &public.cells);
        let mut progress = self.progress();
        progress.written = public.seq;
        progress.written_claim = public.applied;
        Ok(())
    }

    /// Makes batch `seq`, which was written, and all before it durable.
    pub(crate) fn sync_to(&self, seq: u64) -> Result<()> {
        if self.progress().synced >= seq {
            return Ok(());
        }
        let syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.progress().synced >= seq {
            return Ok(());
        }
        self.sync_held(syncing)
    }

    /// Makes everything durable that was written so far, in place as well.
    pub(crate) fn sync(&self) -> Result<()> {
        self.sync_held(self.syncing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn sync_held(&self, mut syncing: MutexGuard<'_, Option<Error>>) -> Result<()> {
        if let Some(e) = &*syncing {
            return Err(e.clone());
        }
        let before = *self.progress();
        self.medium.sync().inspect_err(|e| *syncing = Some(e.clone()))?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let mut progress = self.progress();
        progress.synced = before.written;
        progress.claimed = before.written_claim;
        progress.applied_durable = before.applied;
        drop((progress, syncing));
        self.moved.notify_all();
        Ok(())
    }

    /// Writes in place what batches up to `seq`, which are durable, say of their cells.
    pub(crate) fn apply_to(&self, seq: u64) -> Result<()> {
        let applying = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cells: Vec<(u64, InRing)> = {
            let flight = self.flight.read().unwrap_or_else(PoisonError::into_inner);
            flight.iter().filter(|(_, at)| at.seq <= seq).map(|(cell, at)| (*cell, *at)).collect()
        };
        cells.sort_unstable_by_key(|(cell, _)| *cell);
        let mut buf = vec![0; AT_ONCE * CELL_LEN];
        for cells in cells.chunks(AT_ONCE) {
            let buf = &mut buf[..cells.len() * CELL_LEN];
            let from = |at: &InRing| self.params.ring_offset(at.seq, usize::from(at.slot));
            let mut reads: Vec<ReadExtent<'_>> = cells
                .iter()
                .zip(buf.chunks_exact_mut(CELL_LEN))
                .map(|((_, at), buf)| ReadExtent { offset: from(at), buf })
                .collect();
            let whole = self.medium.read(&mut reads).is_ok();
            // What the ring does not give any more stays as it was: what lay there does not verify in the place of what is
            // lost.
            let given =
                |at: &InRing, buf: &mut [u8]| whole || again(|| self.medium.read_at(from(at), buf)).is_ok();
            let given: Vec<bool> = cells
                .iter()
                .zip(buf.chunks_exact_mut(CELL_LEN))
                .map(|((_, at), buf)| given(at, buf))
                .collect();
            let writes: Vec<WriteExtent<'_>> = cells
                .iter()
                .zip(buf.chunks_exact(CELL_LEN))
                .zip(&given)
                .filter(|(_, given)| **given)
                .map(|(((cell, _), data), _)| WriteExtent { offset: self.params.cell_offset(*cell), data })
                .collect();
            self.medium.write(&writes)?;
            let mut flight = self.flight.write().unwrap_or_else(PoisonError::into_inner);
            for (cell, at) in cells {
                if flight.get(cell) == Some(at) {
                    flight.remove(cell);
                }
            }
        }
        let mut progress = self.progress();
        progress.applied = progress.applied.max(seq);
        drop((progress, applying));
        self.moved.notify_all();
        Ok(())
    }

    /// From now on there are threads that do what [`Progress::wants_sync`] and [`Progress::due_in_place`] say; or they end.
    pub(crate) fn set_threads(&self, threads: bool) {
        self.progress().threads = threads;
        self.moved.notify_all();
    }

    /// Waits until `done`, or until a failure, or so long: then it returns false.
    pub(crate) fn wait(
        &self,
        health: &FailStop,
        patience: Option<Duration>,
        done: impl Fn(&Progress) -> bool,
    ) -> Result<bool> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let mut progress = self.progress();
        while !done(&progress) {
            health.check()?;
            progress = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.moved.wait(progress).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return Ok(false),
                Some(left) => {
                    self.moved.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Ok(true)
    }

    /// Wakes whoever waits: something failed, or a part of the ring has ended.
    pub(crate) fn wake_all(&self) {
        drop(self.progress());
        self.moved.notify_all();
    }

    /// Waits until batch `seq` may be written: until other threads have brought enough home. What a head already says of
    /// that needs no more than a sync; those threads have mostly made one by then.
    pub(crate) fn wait_room(&self, health: &FailStop, background: bool, seq: u64) -> Result<()> {
        let (ring, part) = (u64::from(self.params.ring), self.params.part());
        let is_home = |progress: &Progress| progress.applied_durable + 3 * part > seq;
        let has_room = |progress: &Progress| progress.claimed + ring > seq && is_home(progress);
        if has_room(&self.progress()) {
            return Ok(());
        }
        if !background {
            // Parts are synced and applied as they end: there always is room.
            return Err(defect());
        }
        self.wait(health, None, is_home)?;
        if has_room(&self.progress()) { Ok(()) } else { self.sync() }
    }
}
