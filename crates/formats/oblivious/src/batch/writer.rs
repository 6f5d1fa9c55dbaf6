//! Writes one batch after another: waits until the claims of its head are true, lets each level
//! fill its cells, and submits the batch to the ring.
//!
//! Invariants: public randomness is used, and heads are numbered, in the order of batches. A map
//! has the place of a block before its cell can be read; until then the block is in memory
//! (`level_cells.rs`), so reads continue beside a batch. A batch that the medium refuses keeps its
//! place: no other batch is written before the same bytes are.

use crate::batch::prepared::PreparedBatch;
use crate::batch::prepared_queue::{PREPARED_DEPTH, PreparedQueue};
use crate::batch::{BatchShares, CellBatch, SealedBatch};
use crate::batch_store::BatchStore;
use crate::cells::place::{BatchSeq, CellNo};
use crate::durability::Durability;
use crate::keys::OpenLevelKeys;
use crate::limits::{CELL_LEN, STASH_SLOTS};
use crate::open_levels::OpenLevels;
use crate::params::Params;
use crate::progress::Claims;
use lacuna_contracts::{Error, Result};
use lacuna_crypto::RandomSource;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Flushes after which heads call a flush durable: by then it is, or the batch waits for it.
const FLUSH_CLAIM_DELAY: usize = 4;

/// Writes the batches of a disk, one at a time.
pub(crate) struct BatchWriter {
    params: Params,
    keys: Arc<OpenLevelKeys>,
    /// Random bytes for everything that is not public.
    filler: Arc<dyn RandomSource>,
    levels: Arc<OpenLevels>,
    prepared_queue: Arc<PreparedQueue>,
    store: Arc<BatchStore>,
    durability: Arc<Durability>,
    /// The last batch, and its name in the head of the next.
    seq: BatchSeq,
    name: [u8; 16],
    /// Claims that heads may make beside the schedule: the batches that were durable when the disk
    /// was opened or ended.
    base_claims: Claims,
    /// The last batch at the time of each of the last flushes.
    flushes: VecDeque<BatchSeq>,
    /// The last batches, for replacing cells of batches that were prepared before them.
    recent: VecDeque<RecentBatch>,
    /// The next batch, which was filled and which the medium refused.
    refused: Option<FilledBatch>,
}

/// A batch with everything that goes to the medium.
struct FilledBatch {
    seq: BatchSeq,
    slots: FxHashMap<CellNo, usize>,
    sealed: SealedBatch,
    record: Vec<u8>,
    /// Whether another batch must follow at once.
    needs_another: bool,
}

/// The result of writing a batch.
pub(crate) enum BatchOutcome {
    /// It was written.
    Written {
        /// Whether another batch must follow at once.
        needs_another: bool,
    },
    /// The medium refused it. It is the next batch, unchanged ([`BatchWriter::retry_refused`]).
    Refused(Error),
    /// There is no batch: the medium refused a write in place that must come before it, or the
    /// system refused to read the cells that it rewrites.
    Postponed(Error),
}

/// A batch as it was written to the ring.
struct RecentBatch {
    seq: BatchSeq,
    /// The index in the batch of each of its cells.
    slots: FxHashMap<CellNo, usize>,
    record: Vec<u8>,
}

impl BatchWriter {
    /// The writer of a disk without batches.
    pub(crate) fn new(
        params: Params,
        keys: Arc<OpenLevelKeys>,
        filler: Arc<dyn RandomSource>,
        levels: Arc<OpenLevels>,
        ahead: Arc<PreparedQueue>,
        store: Arc<BatchStore>,
        durability: Arc<Durability>,
    ) -> BatchWriter {
        BatchWriter {
            params,
            keys,
            filler,
            levels,
            prepared_queue: ahead,
            store,
            durability,
            seq: BatchSeq(0),
            name: [0; 16],
            base_claims: Claims::default(),
            flushes: VecDeque::new(),
            recent: VecDeque::new(),
            refused: None,
        }
    }

    /// Continues after batch `seq`, which the next head calls `name`. It is durable with all before
    /// it, and those up to `applied` are durable in place.
    pub(crate) fn resume(&mut self, seq: BatchSeq, name: [u8; 16], applied: BatchSeq) {
        self.seq = seq;
        self.name = name;
        self.base_claims = Claims { synced: seq, applied };
    }

    /// The last batch.
    pub(crate) fn last(&self) -> BatchSeq {
        self.seq
    }

    /// Records that all batches up to `seq` are durable, in place as well.
    pub(crate) fn note_applied(&mut self, seq: BatchSeq) {
        self.base_claims = Claims { synced: seq, applied: seq };
    }

    /// Records that level 0 was flushed: the last batch will be durable soon.
    pub(crate) fn note_flushed(&mut self) {
        if self.flushes.len() == FLUSH_CLAIM_DELAY {
            self.flushes.pop_front();
        }
        self.flushes.push_back(self.seq);
    }

    /// The claims of the head of batch `seq`. They follow from the numbers of batches and flushes,
    /// never from the progress of a thread (deniability contract).
    fn claims(&self, seq: BatchSeq) -> Claims {
        let flushed = if self.flushes.len() == FLUSH_CLAIM_DELAY { self.flushes[0] } else { BatchSeq(0) };
        let flushed = Claims { synced: flushed, applied: BatchSeq(0) };
        Claims::on_schedule(&self.params, seq).max(self.base_claims).max(flushed)
    }

    /// Writes a batch; none may be held. In rare cases another batch must follow at once, which
    /// reveals something about level 0 to an adversary that counts batches: the stash is too small
    /// for the blocks that found no cell, or the map is so far behind that the journal might
    /// overwrite changes that its pages do not have yet.
    ///
    /// Errors: all of them are fail-stop.
    pub(crate) fn write(&mut self) -> Result<BatchOutcome> {
        let (seq, claims) = (self.seq.next(), self.claims(self.seq.next()));
        match self.store.destage_claimed(claims).and_then(|()| self.durability.wait_for_claims(claims)) {
            Err(e) if e.kind().is_refusal() => return Ok(BatchOutcome::Postponed(e)),
            waited => waited?,
        }
        let mut drawn = match self.prepared_queue.take() {
            Err(e) if e.kind().is_refusal() => return Ok(BatchOutcome::Postponed(e)),
            taken => taken?,
        };
        self.replace_rewritten_cells(&mut drawn)?;
        let recent = if self.recent.len() > PREPARED_DEPTH { self.recent.pop_front() } else { None };
        let mut record = recent.map_or_else(Vec::new, |recent| recent.record);
        let (slots, sealed, another) = self.fill(seq, drawn, claims, &mut record)?;
        self.refused = Some(FilledBatch { seq, slots, sealed, record, needs_another: another });
        self.retry_refused()
    }

    /// Whether a batch that the medium refused is still to be written.
    pub(crate) fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Writes the batch that the medium refused, unchanged. Does nothing if there is none.
    ///
    /// Errors: all of them are fail-stop.
    pub(crate) fn retry_refused(&mut self) -> Result<BatchOutcome> {
        let Some(filled) = self.refused.take() else {
            return Ok(BatchOutcome::Written { needs_another: false });
        };
        if let Err(e) = self.store.submit(&filled.sealed.head, &filled.sealed.public, &filled.record) {
            let refused = e.kind().is_refusal();
            self.refused = Some(filled);
            return if refused { Ok(BatchOutcome::Refused(e)) } else { Err(e) };
        }
        let FilledBatch { seq, slots, sealed, record, needs_another: another } = filled;
        self.levels.complete();
        self.prepared_queue.recycle(sealed.memory);
        self.recent.push_back(RecentBatch { seq, slots, record });
        self.seq = seq;
        self.name = sealed.salt[..16].try_into().expect("16 of 32 bytes");
        self.store.end_batch(seq)?;
        Ok(BatchOutcome::Written { needs_another: another })
    }

    /// Replaces the cells that other batches rewrote after they were read for this one.
    fn replace_rewritten_cells(&self, drawn: &mut PreparedBatch) -> Result<()> {
        for slot in 0..drawn.cells.len() {
            let cell = drawn.cells[slot];
            let mut since = self.recent.iter().rev().take_while(|recent| recent.seq > drawn.as_of);
            let again = since.find_map(|recent| Some((*recent.slots.get(&cell)?, recent)));
            if let Some((at, recent)) = again {
                drawn.replace(slot, &recent.record[at * CELL_LEN..(at + 1) * CELL_LEN])?;
            }
        }
        Ok(())
    }

    /// Lets each level fill its cells, and encrypts everything. Returns also the index of each
    /// cell, and whether another batch must follow at once.
    fn fill(
        &self,
        seq: BatchSeq,
        drawn: PreparedBatch,
        claims: Claims,
        record: &mut Vec<u8>,
    ) -> Result<(FxHashMap<CellNo, usize>, SealedBatch, bool)> {
        let params = &self.params;
        let mut batch = CellBatch::new(params, &self.keys, &*self.filler, seq, drawn);
        let another = self.levels.with(0, |level0, cells| -> Result<bool> {
            // No more than there are operations; otherwise the bound on the stash would not hold.
            let idle = usize::from(params.plan.operations).saturating_sub(level0.queue.len());
            let pages = idle.max(usize::from(params.page_writes));
            batch.fill(0, level0, cells, BatchShares { pages, blocks: usize::MAX, more_pages: 0 })?;
            let behind = level0.tree.state().covered + 3 * u64::from(params.cycle) < seq.0;
            Ok(behind || level0.queue.len() > STASH_SLOTS)
        })?;
        for level in 1..self.levels.count() {
            let (pages, blocks) = (params.page_share(level), params.max_blocks_taken(level));
            let shares = BatchShares { pages, blocks, more_pages: usize::MAX };
            self.levels.fill_hidden(level, seq, |state, cells| batch.fill(level, state, cells, shares))?;
        }
        Ok((batch.slots_of_cells(), batch.seal(self.name, claims, record)?, another))
    }
}
