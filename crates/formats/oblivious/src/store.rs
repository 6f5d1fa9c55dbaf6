//! Where batches go: to the ring and the journal at once, and in place later, once they are
//! durable.
//!
//! The ring has six parts. At the end of a part everything is synced, and what is durable then is
//! written in place, in the order of the cells; another sync, or the next part's, makes that
//! durable. What heads say of this follows from their number alone (`Claims::on_schedule`): a batch
//! waits until what its head is going to say is true. Wherever the power goes, every batch after
//! the last one that the last head calls applied is whole in the ring.
//!
//! Invariant: once a part has ended, nothing else has to happen for it to become durable and to go
//! in place; the next sync makes it durable there, which a batch that is going to say so waits for.
//! The exceptions are a disk that has failed, and parts that were there when the disk was opened:
//! those wait for the next.

use crate::cell_store::CellStore;
use crate::durability::Durability;
use crate::head::PublicPart;
use crate::journal::Journal;
use crate::params::Params;
use crate::place::BatchSeq;
use crate::progress::{Claims, Progress};
use lacuna_contracts::{BLOCK_SIZE, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// Batches whose records are in memory at once while they are written in place: 8 MB, with the most
/// cells 15 MB.
const RECORDS_AT_ONCE: u64 = 16;

/// Submits batches and destages them.
pub(crate) struct Store {
    journal: Arc<Journal>,
    cells: Arc<CellStore>,
    durability: Arc<Durability>,
    /// Batches in a part of the ring.
    part: u64,
    /// Held while cells are written in place; memory for records.
    records: Mutex<Vec<u8>>,
}

impl Store {
    pub(crate) fn new(
        params: &Params,
        journal: Arc<Journal>,
        cells: Arc<CellStore>,
        durability: Arc<Durability>,
    ) -> Store {
        Store { journal, cells, durability, part: params.part(), records: Mutex::default() }
    }

    /// Writes a batch to ring and journal. From then on its cells are read from there. Batches come
    /// one after another. After a refusal it can be called again with the same bytes.
    pub(crate) fn submit(&self, head: &[u8; BLOCK_SIZE], public: &PublicPart, record: &[u8]) -> Result<()> {
        self.journal.append(head, public, record)?;
        self.cells.submit(public.seq, &public.cells);
        self.durability.note_written(public.seq);
        Ok(())
    }

    /// Writes in place what batches up to `seq`, which are durable, say of their cells.
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

    /// Batch `seq` was written. If a part of the ring ends with it, everything is synced, and what
    /// is durable then is written in place. That becomes durable with the next sync.
    pub(crate) fn end_batch(&self, seq: BatchSeq) -> Result<()> {
        if !seq.0.is_multiple_of(self.part) {
            return Ok(());
        }
        if self.durability.progress().threads {
            self.durability.wake_all();
            return Ok(());
        }
        self.durability.sync()?;
        match self.apply_to(seq) {
            // It is in the ring, and goes in place before any head says that it is there.
            Err(e) if e.kind().is_refusal() => Ok(()),
            applied => applied,
        }
    }

    /// Without threads: brings in place what a head is going to call applied, where the medium
    /// refused that before.
    pub(crate) fn catch_up(&self, claims: Claims) -> Result<()> {
        let progress = self.durability.progress();
        if progress.threads || progress.applied_durable >= claims.applied {
            return Ok(());
        }
        self.durability.sync_to(claims.applied)?;
        self.apply_to(claims.applied)?;
        self.durability.sync()
    }

    /// What the thread that syncs does, while the next part is being written and the one before
    /// brought in place.
    pub(crate) fn sync_parts(&self) -> Result<()> {
        let at_end = |progress: &Progress| !progress.threads && progress.due_in_place(self.part).is_none();
        loop {
            self.durability.wait(|progress| progress.wants_sync(self.part) || at_end(progress))?;
            // A flush may have done it meanwhile.
            let progress = self.durability.progress();
            if progress.wants_sync(self.part) {
                self.durability.sync()?;
            } else if at_end(&progress) {
                return Ok(());
            }
        }
    }

    /// What the thread that writes in place does.
    pub(crate) fn apply_parts(&self) -> Result<()> {
        let at_end = |progress: &Progress| !progress.threads && !progress.has_ended(self.part);
        loop {
            self.durability
                .wait(|progress| progress.due_in_place(self.part).is_some() || at_end(progress))?;
            let progress = self.durability.progress();
            if let Some(end) = progress.due_in_place(self.part) {
                match self.apply_to(end) {
                    Err(e) if e.kind().is_refusal() => {
                        if !self.durability.wait_for_try(e.clone()) {
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
