//! Writes batches: to the ring and the journal at once, and in place later, once they are durable.
//!
//! The ring has six parts. At the end of a part everything is synced, and the batches that are
//! durable then are written in place, in the order of the cells; another sync, or that of the next
//! part, makes this durable. The claims of heads follow from their number alone
//! (`Claims::on_schedule`): a batch waits until the claims of its head are true. Whenever the power
//! is cut, every batch after the last one that the last head calls applied is whole in the ring.
//!
//! Invariant: once a part has ended, nothing else is needed for it to become durable and to go in
//! place; the next sync makes it durable there, and a batch that is going to claim so waits for
//! that. The exceptions are a disk that has failed, and parts that were there when the disk was
//! opened: those wait for the end of the next part.

use crate::batch::head::PublicHead;
use crate::cells::cell_store::CellStore;
use crate::cells::place::BatchSeq;
use crate::durability::Durability;
use crate::journal::Journal;
use crate::params::Params;
use crate::progress::{BatchProgress, Claims};
use lacuna_contracts::{BLOCK_SIZE, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// Batches with records in memory at once while they are written in place: 8 MB, or 15 MB with the
/// most cells.
const RECORDS_AT_ONCE: u64 = 16;

/// Submits batches, and destages them.
pub(crate) struct BatchStore {
    journal: Arc<Journal>,
    cells: Arc<CellStore>,
    durability: Arc<Durability>,
    /// Batches in a part of the ring.
    part: u64,
    /// Memory for records; locked while cells are written in place.
    records: Mutex<Vec<u8>>,
}

impl BatchStore {
    pub(crate) fn new(
        params: &Params,
        journal: Arc<Journal>,
        cells: Arc<CellStore>,
        durability: Arc<Durability>,
    ) -> BatchStore {
        BatchStore { journal, cells, durability, part: params.part_batches(), records: Mutex::default() }
    }

    /// Writes a batch to ring and journal; its cells are read from there afterwards. Batches come
    /// one after another. After a refusal the caller may call this again with the same bytes.
    pub(crate) fn submit(&self, head: &[u8; BLOCK_SIZE], public: &PublicHead, record: &[u8]) -> Result<()> {
        self.journal.append(head, public, record)?;
        self.cells.submit(public.seq, &public.cells);
        self.durability.note_written(public.seq);
        Ok(())
    }

    /// Writes the cells of batches up to `seq`, which are durable, in place.
    pub(crate) fn apply_to(&self, seq: BatchSeq) -> Result<()> {
        let mut records = self.records.lock();
        let from = self.durability.progress().applied.next().0;
        self.cells.begin_destage();
        for first in (from..=seq.0).step_by(RECORDS_AT_ONCE as usize) {
            let last = BatchSeq(seq.0.min(first + RECORDS_AT_ONCE - 1));
            self.cells.destage(BatchSeq(first), last, &mut records)?;
        }
        self.durability.note_applied(seq);
        Ok(())
    }

    /// Called after batch `seq` was written. If a part of the ring ends with it, syncs everything
    /// and writes the durable batches in place, or wakes the threads that do; the next sync makes
    /// those writes durable.
    pub(crate) fn end_batch(&self, seq: BatchSeq) -> Result<()> {
        if !seq.0.is_multiple_of(self.part) {
            return Ok(());
        }
        if self.durability.progress().has_threads {
            self.durability.wake_all();
            return Ok(());
        }
        self.durability.sync()?;
        match self.apply_to(seq) {
            // The cells are in the ring, and go in place before any head claims that they are
            // there.
            Err(e) if e.kind().is_refusal() => Ok(()),
            applied => applied,
        }
    }

    /// Without threads: writes in place the batches that a head is going to call applied, if the
    /// medium refused them before.
    pub(crate) fn destage_claimed(&self, claims: Claims) -> Result<()> {
        let progress = self.durability.progress();
        if progress.has_threads || progress.applied_durable >= claims.applied {
            return Ok(());
        }
        self.durability.sync_to(claims.applied)?;
        self.apply_to(claims.applied)?;
        self.durability.sync()
    }

    /// The work of the syncing thread, while the next part is being written and the one before goes
    /// in place.
    pub(crate) fn sync_parts(&self) -> Result<()> {
        let at_end =
            |progress: &BatchProgress| !progress.has_threads && progress.destage_due(self.part).is_none();
        loop {
            self.durability.wait(|progress| progress.is_sync_due(self.part) || at_end(progress))?;
            // A flush may have synced meanwhile.
            let progress = self.durability.progress();
            if progress.is_sync_due(self.part) {
                self.durability.sync()?;
            } else if at_end(&progress) {
                return Ok(());
            }
        }
    }

    /// The work of the thread that writes in place.
    pub(crate) fn apply_parts(&self) -> Result<()> {
        let at_end =
            |progress: &BatchProgress| !progress.has_threads && !progress.has_unsynced_part(self.part);
        loop {
            self.durability.wait(|progress| progress.destage_due(self.part).is_some() || at_end(progress))?;
            let progress = self.durability.progress();
            if let Some(end) = progress.destage_due(self.part) {
                match self.apply_to(end) {
                    Err(e) if e.kind().is_refusal() => {
                        if !self.durability.wait_to_retry(e.clone()) {
                            return Err(e);
                        }
                    }
                    applied => applied?,
                }
            } else if at_end(&progress) {
                return Ok(());
            }
        }
    }
}
