//! Reads the log: summaries, the heads that are kept of them, and slots, from the medium or from
//! stripes in flight.
//!
//! Invariant: a block that a level's map names in a closed stripe can be read here at any time, out
//! of memory until the stripe is on the medium and out of the medium afterwards.

pub(crate) mod checkpoint;
pub(crate) mod level_summary;
pub(crate) mod medium_reader;
pub(crate) mod progress;
pub(crate) mod summary;

use crate::cache_usage::CacheUsage;
use crate::keys::LevelKeys;
use crate::log::level_summary::LevelSummary;
use crate::log::medium_reader::MediumReader;
use crate::log::progress::LogProgress;
use crate::log::summary::Summary;
use crate::params::Params;
use crate::place::{SlotPlace, StripeSeq};
use crate::stripe::slot_buffer::SlotBuffer;
use lacuna_contracts::{BLOCK_SIZE, BoundedCache, IdlePool, Kind, Result};
use lacuna_levels::{SlotEntry, corrupt};
use parking_lot::RwLock;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// Spare buffers of complete stripes: the most stripes that are read ahead and in flight.
const MAX_SPARE_BUFFERS: usize = 32;
/// Heads that are kept whatever the memory limit is.
const MIN_CACHED_SUMMARIES: usize = 8;

/// A closed stripe that is not yet on the medium.
pub(crate) struct StripeInFlight {
    pub(crate) seq: StripeSeq,
    pub(crate) public: SlotBuffer,
    /// Set when the hidden slots have been filled.
    pub(crate) hidden: OnceLock<SlotBuffer>,
}

/// The log of a disk.
pub(crate) struct Log {
    params: Params,
    keys: LevelKeys,
    reader: MediumReader,
    progress: Arc<LogProgress>,
    in_flight: RwLock<VecDeque<Arc<StripeInFlight>>>,
    /// Buffers of complete stripes for later ones: of public slots, and of hidden slots. Unused
    /// buffers are wiped.
    spare: [IdlePool<SlotBuffer>; 2],
    /// Heads that reads have used, by level and stripe. Readers share the lock: one that is
    /// suspended while it has the lock stops no other.
    summaries: RwLock<BoundedCache<(u8, StripeSeq), Arc<LevelSummary>, FxBuildHasher>>,
}

impl Log {
    /// A log that keeps heads in `memory` bytes.
    pub(crate) fn new(
        params: Params,
        keys: LevelKeys,
        reader: MediumReader,
        progress: Arc<LogProgress>,
        memory: u64,
    ) -> Log {
        let most = (memory / summary_bytes(&params)) as usize;
        let spare: [IdlePool<SlotBuffer>; 2] = Default::default();
        spare.iter().for_each(IdlePool::register_for_sweep);
        Log {
            params,
            keys,
            reader,
            progress,
            in_flight: RwLock::default(),
            spare,
            summaries: RwLock::new(BoundedCache::new(most.max(MIN_CACHED_SUMMARIES))),
        }
    }

    pub(crate) fn params(&self) -> &Params {
        &self.params
    }

    pub(crate) fn keys(&self) -> &LevelKeys {
        &self.keys
    }

    /// The reader of the medium.
    pub(crate) fn reader(&self) -> &MediumReader {
        &self.reader
    }

    /// Puts a stripe in flight: until the medium has it, it is read from memory.
    pub(crate) fn submit(&self, stripe: Arc<StripeInFlight>) {
        self.in_flight.write().push_back(stripe);
    }

    /// Records that all stripes up to `seq` are on the medium.
    pub(crate) fn complete(&self, seq: StripeSeq) {
        self.progress.note_written(seq);
        let mut in_flight = self.in_flight.write();
        while in_flight.front().is_some_and(|stripe| stripe.seq <= seq) {
            // A buffer that a reader still uses is not recycled.
            if let Some(StripeInFlight { public, hidden, .. }) =
                in_flight.pop_front().and_then(Arc::into_inner)
            {
                self.recycle(0, public);
                hidden.into_inner().into_iter().for_each(|plain| self.recycle(1, plain));
            }
        }
    }

    fn recycle(&self, of: usize, plain: SlotBuffer) {
        if plain.slots() > 0 {
            self.spare[of].give(plain, MAX_SPARE_BUFFERS);
        }
    }

    /// Empty slots for a stripe: public ones, or those of the hidden levels. Their memory still has
    /// the bytes of an earlier stripe.
    pub(crate) fn empty_slots(&self, hidden: bool) -> SlotBuffer {
        let spare = self.spare[usize::from(hidden)].take(|_| true);
        let slots = if hidden { self.params.hidden_slots() } else { self.params.public_slots() };
        spare.map_or_else(|| SlotBuffer::new(slots), SlotBuffer::into_empty)
    }

    fn in_flight(&self, seq: StripeSeq) -> Option<Arc<StripeInFlight>> {
        let in_flight = self.in_flight.read();
        let first = in_flight.front()?.seq;
        in_flight.get(usize::try_from(seq.0.checked_sub(first.0)?).ok()?).cloned()
    }

    /// The summary in `block`, which was read at the place of stripe `seq`. None if it is not a
    /// summary of this disk with that number.
    pub(crate) fn open_summary(&self, seq: StripeSeq, block: &[u8; BLOCK_SIZE]) -> Result<Option<Summary>> {
        let summary = Summary::open(&self.params, self.keys.level(0), block)?;
        Ok(summary.filter(|found| found.public.seq == seq))
    }

    /// Reads the summary of stripe `seq` for a level; none if its place holds something else.
    fn summary(&self, level: u8, seq: StripeSeq) -> Result<Option<Summary>> {
        let mut block = [0; BLOCK_SIZE];
        self.reader.read(level, self.params.offset(seq), &mut block)?;
        self.open_summary(seq, &block)
    }

    /// The same for level 0; none also if the medium cannot read the summary after retries.
    pub(crate) fn summary_if_readable(&self, seq: StripeSeq) -> Result<Option<Summary>> {
        match self.summary(0, seq) {
            Err(e) if e.kind() == Kind::Io => Ok(None),
            read => read,
        }
    }

    /// The head of a level in stripe `seq`. Errors: [`Kind::Corrupt`] if the summary does not
    /// verify.
    pub(crate) fn level_summary(&self, level: u8, seq: StripeSeq) -> Result<Arc<LevelSummary>> {
        if let Some(head) = self.summaries.read().get_shared((level, seq)) {
            return Ok(Arc::clone(head));
        }
        let summary =
            self.summary(level, seq)?.ok_or_else(|| corrupt(format!("cannot read stripe {seq}")))?;
        let head = if level == 0 {
            LevelSummary::public(summary)
        } else {
            let key = self.keys.stripe_key(level, &summary.salt)?;
            LevelSummary::hidden(&summary, key, self.params.slots(level), self.params.hidden_slots())
        };
        let head = Arc::new(head);
        let mut heads = self.summaries.write();
        heads.insert((level, seq), Arc::clone(&head));
        Ok(head)
    }

    /// Bytes of the heads in memory, and of the most that are kept. A head is evicted only for
    /// another, so the first number only grows.
    pub(crate) fn cache_usage(&self) -> CacheUsage {
        let heads = self.summaries.read();
        let [most, share] =
            [heads.len(), heads.capacity()].map(|count| count as u64 * summary_bytes(&self.params));
        CacheUsage { peak: most, budget: share }
    }

    /// Byte offset of a level's slot in a stripe.
    pub(crate) fn slot_offset(&self, level: u8, place: SlotPlace) -> u64 {
        let before = if level == 0 { 1 } else { 1 + self.params.public_slots() };
        self.params.offset(place.seq) + ((before + place.slot.index()) * BLOCK_SIZE) as u64
    }

    /// Reads the slot at `place` and its neighbours by the summary of that stripe. They must hold
    /// `entries`.
    pub(crate) fn read_slots(
        &self,
        level: u8,
        place: SlotPlace,
        entries: &[SlotEntry],
        out: &mut [u8],
    ) -> Result<()> {
        let head = self.level_summary(level, place.seq).map_err(|e| e.context(entries[0]))?;
        // Check the entries before the read: a wrong place may not even lie within the medium.
        head.listed(place.slot, entries)?;
        self.reader.read(level, self.slot_offset(level, place), out)?;
        head.open(place.slot, entries, out)
    }

    /// Reads the blocks that were taken in at `place` and in the slots after it. All of them must
    /// be in closed stripes.
    pub(crate) fn fetch(
        &self,
        level: u8,
        place: SlotPlace,
        entries: &[SlotEntry],
        out: &mut [u8],
    ) -> Result<()> {
        loop {
            let written = self.progress.written();
            if place.seq > written {
                let Some(stripe) = self.in_flight(place.seq) else {
                    if self.progress.written() > written {
                        continue;
                    }
                    return Err(corrupt(format!("cannot find stripe {}", place.seq)));
                };
                // The map may name the stripe while other levels are being filled: wait for the
                // hidden slots.
                let plain = if level == 0 { &stripe.public } else { stripe.hidden.wait() };
                let found = entries.iter().zip(plain.blocks(level, place.slot, entries));
                for ((entry, found), out) in found.zip(out.chunks_exact_mut(BLOCK_SIZE)) {
                    out.copy_from_slice(found.ok_or_else(|| corrupt(format!("{entry} cannot be read")))?);
                }
                return Ok(());
            }
            let seq = self.params.current_stripe(place.seq, written);
            match self.read_slots(level, SlotPlace { seq, ..place }, entries, out) {
                // Try again if the block was carried meanwhile and overwritten here.
                Err(_) if self.params.current_stripe(place.seq, self.progress.written()) != seq => {}
                done => return done,
            }
        }
    }
}

/// Bytes charged for each head of a disk with these parameters.
fn summary_bytes(params: &Params) -> u64 {
    LevelSummary::bytes(params.public_slots().max(params.hidden_slots()))
}
