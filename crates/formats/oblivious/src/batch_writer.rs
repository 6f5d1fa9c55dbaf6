//! Writing batches, one after another: waits for what the head is going to say, lets each level
//! take its turn, and submits the batch to the ring.
//!
//! Invariants: public randomness is used, and heads are numbered, in the order of batches. A map
//! says where a block is before its cell can be read from there; until then the block is in memory
//! (`level_cells.rs`), so reads go on beside a batch. A batch that the medium refuses keeps its
//! place: none follows before the same bytes are there.

use crate::ahead::{Ahead, DEPTH};
use crate::batch::{Batch, Sealed, Shares};
use crate::durability::Durability;
use crate::keys::Keys;
use crate::limits::{CELL_LEN, STASH_SLOTS};
use crate::open_levels::OpenLevels;
use crate::params::Params;
use crate::place::{BatchSeq, Cell};
use crate::prepared::Prepared;
use crate::progress::Claims;
use crate::store::Store;
use lacuna_contracts::{Error, Result};
use lacuna_crypto::RandomSource;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Flushes after which heads say that one was durable: by then it is, or the batch waits for it.
const FLUSHES: usize = 4;

/// Writes the batches of a disk, one at a time.
pub(crate) struct BatchWriter {
    params: Params,
    keys: Arc<Keys>,
    /// Randomness of everything that is not public.
    filler: Arc<dyn RandomSource>,
    levels: Arc<OpenLevels>,
    ahead: Arc<Ahead>,
    store: Arc<Store>,
    durability: Arc<Durability>,
    /// The last batch, and the name by which the next one points to it.
    seq: BatchSeq,
    name: [u8; 16],
    /// What heads may say beside the schedule: how far batches were durable when the disk was
    /// opened or brought to its end.
    known: Claims,
    /// The batches of the last flushes.
    flushes: VecDeque<BatchSeq>,
    /// The last batches, where they are prepared ahead.
    recent: VecDeque<Recent>,
    /// The next batch, as it was filled and the medium refused it.
    held: Option<Filled>,
}

/// A batch with everything that goes to the medium.
struct Filled {
    seq: BatchSeq,
    slots: FxHashMap<Cell, usize>,
    sealed: Sealed,
    record: Vec<u8>,
    /// Another has to follow at once.
    another: bool,
}

/// What became of a batch.
pub(crate) enum Outcome {
    /// It was written.
    Written {
        /// Another has to follow at once.
        another: bool,
    },
    /// The medium refused it. It is the next, as it is ([`BatchWriter::write_held`]).
    Held(Error),
    /// There is none: the medium refused what has to be in place before it, or to give the cells
    /// that it rewrites.
    Postponed(Error),
}

/// A batch as it went to the ring.
struct Recent {
    seq: BatchSeq,
    /// Which of its cells is which.
    slots: FxHashMap<Cell, usize>,
    record: Vec<u8>,
}

impl BatchWriter {
    /// Of a disk without batches.
    pub(crate) fn new(
        params: Params,
        keys: Arc<Keys>,
        filler: Arc<dyn RandomSource>,
        levels: Arc<OpenLevels>,
        ahead: Arc<Ahead>,
        store: Arc<Store>,
        durability: Arc<Durability>,
    ) -> BatchWriter {
        BatchWriter {
            params,
            keys,
            filler,
            levels,
            ahead,
            store,
            durability,
            seq: BatchSeq(0),
            name: [0; 16],
            known: Claims::default(),
            flushes: VecDeque::new(),
            recent: VecDeque::new(),
            held: None,
        }
    }

    /// Goes on after batch `seq`, which the next one calls `name`, and which is durable with all
    /// before it, in place those up to `applied`.
    pub(crate) fn resume(&mut self, seq: BatchSeq, name: [u8; 16], applied: BatchSeq) {
        self.seq = seq;
        self.name = name;
        self.known = Claims { synced: seq, applied };
    }

    /// The last batch.
    pub(crate) fn last(&self) -> BatchSeq {
        self.seq
    }

    /// Everything up to batch `seq` is durable, in place as well.
    pub(crate) fn note_applied(&mut self, seq: BatchSeq) {
        self.known = Claims { synced: seq, applied: seq };
    }

    /// Level 0 was flushed: the last batch will be durable soon.
    pub(crate) fn note_flushed(&mut self) {
        if self.flushes.len() == FLUSHES {
            self.flushes.pop_front();
        }
        self.flushes.push_back(self.seq);
    }

    /// What the head of batch `seq` says. It follows from the numbers of batches and flushes, and
    /// never from how far a thread was (deniability contract).
    fn claims(&self, seq: BatchSeq) -> Claims {
        let flushed = if self.flushes.len() == FLUSHES { self.flushes[0] } else { BatchSeq(0) };
        let flushed = Claims { synced: flushed, applied: BatchSeq(0) };
        Claims::on_schedule(&self.params, seq).max(self.known).max(flushed)
    }

    /// Writes a batch; none may be held. Another has to follow at once seldom, which tells who
    /// counts batches something of level 0: the stash is too small for the blocks that found no
    /// cell, or the map is so far behind that the journal might overwrite what its pages do not say
    /// yet.
    ///
    /// Errors: those after which the disk is at its end.
    pub(crate) fn write(&mut self) -> Result<Outcome> {
        let (seq, claims) = (self.seq.next(), self.claims(self.seq.next()));
        match self.store.catch_up(claims).and_then(|()| self.durability.wait_for(claims)) {
            Err(e) if e.kind().is_refusal() => return Ok(Outcome::Postponed(e)),
            waited => waited?,
        }
        let mut drawn = match self.ahead.take() {
            Err(e) if e.kind().is_refusal() => return Ok(Outcome::Postponed(e)),
            taken => taken?,
        };
        self.take_again(&mut drawn)?;
        let recent = if self.recent.len() > DEPTH { self.recent.pop_front() } else { None };
        let mut record = recent.map_or_else(Vec::new, |recent| recent.record);
        let (slots, sealed, another) = self.fill(seq, drawn, claims, &mut record)?;
        self.held = Some(Filled { seq, slots, sealed, record, another });
        self.write_held()
    }

    /// Whether the medium refused a batch that is not there yet.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Writes the batch that the medium refused, as it was. Nothing to do if there is none.
    ///
    /// Errors: those after which the disk is at its end.
    pub(crate) fn write_held(&mut self) -> Result<Outcome> {
        let Some(filled) = self.held.take() else { return Ok(Outcome::Written { another: false }) };
        if let Err(e) = self.store.submit(&filled.sealed.head, &filled.sealed.public, &filled.record) {
            let refused = e.kind().is_refusal();
            self.held = Some(filled);
            return if refused { Ok(Outcome::Held(e)) } else { Err(e) };
        }
        let Filled { seq, slots, sealed, record, another } = filled;
        self.levels.complete();
        self.ahead.give_back(sealed.memory);
        self.recent.push_back(Recent { seq, slots, record });
        self.seq = seq;
        self.name = sealed.salt[..16].try_into().expect("16 of 32 bytes");
        self.store.end_batch(seq)?;
        Ok(Outcome::Written { another })
    }

    /// Replaces the cells that other batches rewrote since they were read for this one.
    fn take_again(&self, drawn: &mut Prepared) -> Result<()> {
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

    /// Lets each level take its turn, and encrypts everything. Returns also which cell is which,
    /// and whether another batch has to follow at once.
    fn fill(
        &self,
        seq: BatchSeq,
        drawn: Prepared,
        claims: Claims,
        record: &mut Vec<u8>,
    ) -> Result<(FxHashMap<Cell, usize>, Sealed, bool)> {
        let params = &self.params;
        let mut batch = Batch::new(params, &self.keys, &*self.filler, seq, drawn);
        let another = self.levels.with(0, |level0, cells| -> Result<bool> {
            // No more than there are operations, or the stash would not keep its bound.
            let idle = usize::from(params.plan.operations).saturating_sub(level0.queue.len());
            let pages = idle.max(usize::from(params.page_writes));
            batch.fill(0, level0, cells, Shares { pages, blocks: usize::MAX, more_pages: 0 })?;
            let behind = level0.tree.state().covered + 3 * u64::from(params.cycle) < seq.0;
            Ok(behind || level0.queue.len() > STASH_SLOTS)
        })?;
        for level in 1..self.levels.count() {
            let (pages, blocks) = (params.page_share(level), params.most_taken(level));
            let shares = Shares { pages, blocks, more_pages: usize::MAX };
            self.levels.fill_hidden(level, seq, |state, cells| batch.fill(level, state, cells, shares))?;
        }
        Ok((batch.slots_of_cells(), batch.seal(self.name, claims, record)?, another))
    }
}
