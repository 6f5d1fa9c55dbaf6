//! Level 0 as readers see it: its map and the open stripe.
//!
//! Readers share the lock to look up the map and to copy blocks out of the open stripe, and read
//! the log without it. The operation that changes level 0 takes it alone for single steps, and
//! never while it waits for the medium: the leaves of the map that a step needs are loaded before,
//! without the lock. (Exceptions: a leaf that was evicted in between, that does not verify, or that
//! is due in the map's cycle after a replay is read under the lock.)
//!
//! Invariants: under one hold of the lock, a block is either in the open stripe or in the log at
//! the place that the map gives. Hidden operations never take this lock (deniability contract).

use crate::cache_usage::CacheUsage;
use crate::health::Health;
use crate::log::summary::TaggedEntry;
use crate::log::{Log, StripeInFlight};
use crate::place::{Slot, SlotPlace, StripeSeq, is_live};
use crate::stripe::builder::StripeBuilder;
use crate::stripe::carried::CarriedSlots;
use crate::stripe::map_page_reader::MapPageReader;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Result, StatusItem, panic_error};
use lacuna_levels::{FANOUT, LevelMap, MapState, SlotEntry, warm};
use std::sync::{Arc, LockResult, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Blocks of a range that are discarded under one hold of the lock: those of 16 leaves.
const DISCARD_CHUNK: u64 = 16 * FANOUT;

/// The state of level 0 for readers.
pub(crate) struct PublicView {
    log: Arc<Log>,
    health: Arc<Health>,
    /// A panic of a thread that may change it fails the disk.
    state: RwLock<PublicViewState>,
}

struct PublicViewState {
    tree: LevelMap,
    open: StripeBuilder,
}

impl PublicViewState {
    /// Reads the blocks that lie in the open stripe or are unwritten, and sets their places to 0.
    fn read_open(&self, first: BlockAddr, buf: &mut [u8], places: &mut [u64]) {
        for ((addr, out), packed) in (first.0..).zip(buf.chunks_exact_mut(BLOCK_SIZE)).zip(places) {
            let place = SlotPlace::unpack(*packed);
            if let Some(found) = place.and_then(|place| self.open.block(place, BlockAddr(addr))) {
                out.copy_from_slice(found);
                *packed = 0;
            } else if *packed == 0 {
                out.fill(0);
            }
        }
    }
}

impl PublicView {
    /// The view of a level with this map. No stripe is open yet.
    pub(crate) fn new(log: Arc<Log>, health: Arc<Health>, tree: LevelMap) -> PublicView {
        PublicView {
            log,
            health,
            state: RwLock::new(PublicViewState { tree, open: StripeBuilder::default() }),
        }
    }

    /// Takes the lock alone.
    fn lock(&self) -> RwLockWriteGuard<'_, PublicViewState> {
        self.checked(self.state.write())
    }

    /// Takes the lock with other readers. The same thread must not take it again meanwhile.
    fn lock_shared(&self) -> RwLockReadGuard<'_, PublicViewState> {
        self.checked(self.state.read())
    }

    /// The guard of the lock. If a thread panicked while it changed the state, the disk fails.
    fn checked<G>(&self, guard: LockResult<G>) -> G {
        guard.unwrap_or_else(|poisoned| {
            self.health.fail(panic_error());
            poisoned.into_inner()
        })
    }

    /// Loads the leaves of a range, without the lock.
    pub(crate) fn warm(&self, first: BlockAddr, count: u64) {
        let source = MapPageReader::strict(&self.log, 0);
        warm(first.0, count, &source, |act| act(&mut self.lock().tree));
    }

    /// The same for the leaves of the blocks in `entries`.
    fn warm_all(&self, entries: impl Iterator<Item = SlotEntry>, source: &MapPageReader<'_>) {
        for entry in entries {
            if let SlotEntry::Data(addr) | SlotEntry::Lost(addr) = entry {
                warm(addr, 1, source, |act| act(&mut self.lock().tree));
            }
        }
    }

    // For readers.

    /// Sets the places of blocks that lie in closed stripes. All other blocks are read at once, and
    /// their places set to 0.
    pub(crate) fn locate(&self, first: BlockAddr, buf: &mut [u8], places: &mut [u64]) -> Result<()> {
        let known = self.lock_shared();
        if known.tree.places_in_memory(first.0, places) {
            known.read_open(first, buf, places);
            return Ok(());
        }
        drop(known);
        self.warm(first, places.len() as u64);
        let mut state = self.lock();
        let PublicViewState { tree, open } = &mut *state;
        tree.places(first.0, places, &open.source(&self.log).into_strict())?;
        state.read_open(first, buf, places);
        Ok(())
    }

    /// Which of `count` blocks are written.
    pub(crate) fn are_written(&self, first: BlockAddr, count: usize) -> Result<Vec<bool>> {
        self.warm(first, count as u64);
        let mut state = self.lock();
        let PublicViewState { tree, open } = &mut *state;
        let mut places = vec![0; count];
        tree.places(first.0, &mut places, &open.source(&self.log).into_strict())?;
        Ok(places.iter().map(|packed| *packed != 0).collect())
    }

    /// Which of the slots that stripe `from` lists are live now. A slot that is not live never
    /// becomes live again.
    pub(crate) fn are_still_live(&self, from: StripeSeq, listed: &[TaggedEntry]) -> Vec<bool> {
        self.warm_all(listed.iter().map(|(entry, _)| *entry), &MapPageReader::strict(&self.log, 0));
        let mut state = self.lock();
        let PublicViewState { tree, open } = &mut *state;
        // A page of the map may lie in the open stripe. If it counted as lost, so would its blocks.
        let source = open.source(&self.log).into_strict();
        let stride = self.log.params().stride();
        let mut live = |(slot, (entry, _)): (Slot, &TaggedEntry)| {
            is_live(tree, *entry, SlotPlace { seq: from, slot }, stride, &source)
        };
        let live: Result<Vec<bool>> = Slot::all(listed.len()).zip(listed).map(&mut live).collect();
        // On an error all slots count as live; the map decides when the stripe is opened.
        live.unwrap_or_else(|_| vec![true; listed.len()])
    }

    /// The counters of the map.
    pub(crate) fn status(&self) -> [StatusItem; 2] {
        self.lock().tree.status()
    }

    /// The size of the cached part of the map.
    pub(crate) fn cache_usage(&self) -> CacheUsage {
        CacheUsage::leaves(&self.lock().tree)
    }

    // For the one operation at a time that changes level 0.

    /// Opens stripe `seq`: takes over the live slots of `carried`, and the pages of the map that
    /// are due. Returns the rest of `carried`.
    pub(crate) fn open(&self, seq: StripeSeq, mut carried: CarriedSlots) -> Result<CarriedSlots> {
        self.warm_all(
            carried.public.entries().iter().map(|(_, entry)| *entry),
            &MapPageReader::lenient(&self.log, 0),
        );
        let due = {
            let mut state = self.lock();
            let PublicViewState { tree, open } = &mut *state;
            carried.drop_stale(0, tree, &self.log)?;
            *open = StripeBuilder::new(seq, std::mem::take(&mut carried.public));
            tree.pages_due(seq.0)
        };
        for _ in 0..due {
            if !self.take_page()? {
                break;
            }
        }
        Ok(carried)
    }

    /// Takes the next page of the map into the open stripe. False if there is no room or no page
    /// left.
    fn take_page(&self) -> Result<bool> {
        let mut state = self.lock();
        let PublicViewState { tree, open } = &mut *state;
        let Some(slot) = open.free_slot(usize::MAX) else { return Ok(false) };
        let mut block = [0; BLOCK_SIZE];
        let page = tree.write_next_page(open.place(slot).pack(), &open.source(&self.log), &mut block)?;
        let Some(page) = page else { return Ok(false) };
        open.put_page(page, slot, &block);
        Ok(true)
    }

    /// Takes blocks into the open stripe until it has no more room. Returns their number.
    pub(crate) fn add_blocks(&self, first: BlockAddr, data: &[u8]) -> Result<usize> {
        let mut state = self.lock();
        let PublicViewState { tree, open } = &mut *state;
        for (taken, block) in data.chunks_exact(BLOCK_SIZE).enumerate() {
            let addr = BlockAddr(first.0 + taken as u64);
            let slot = match open.slot_of(addr) {
                Some(slot) => Some(slot),
                None if tree.get(addr.0, &open.source(&self.log))? == 0 => {
                    open.free_slot(self.log.params().public_first_writes())
                }
                None => open.free_slot(usize::MAX),
            };
            let Some(slot) = slot else { return Ok(taken) };
            open.put_block(addr, slot, block);
            // This stripe now counts as the one where the block was taken in, even if it was
            // carried here.
            tree.set(addr.0, open.place(slot).pack(), &open.source(&self.log))?;
        }
        Ok(data.len() / BLOCK_SIZE)
    }

    /// Whether any block of a range is written.
    pub(crate) fn is_any_written(&self, first: BlockAddr, count: u64) -> Result<bool> {
        for (first, count) in pieces(first, count) {
            self.warm(first, count);
            let mut state = self.lock();
            let PublicViewState { tree, open } = &mut *state;
            if tree.has_written(first.0, count, &open.source(&self.log))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Records a discard in the open stripe and makes the blocks unwritten. False if there is no
    /// room for the record.
    pub(crate) fn discard(&self, first: BlockAddr, count: u64) -> Result<bool> {
        let mut state = self.lock();
        let PublicViewState { tree, open } = &mut *state;
        let Some(covered) = open.record_discard(first, count) else { return Ok(false) };
        // Remove the places of the blocks that left the open stripe before a reader looks them up.
        for addr in covered {
            tree.set(addr.0, 0, &open.source(&self.log))?;
        }
        drop(state);
        for (first, count) in pieces(first, count) {
            self.warm(first, count);
            let mut state = self.lock();
            let PublicViewState { tree, open } = &mut *state;
            tree.clear(first.0, count, &open.source(&self.log))?;
        }
        Ok(true)
    }

    /// Whether too many pages of the map are dirty to change more for the moment.
    pub(crate) fn is_over_dirty_limit(&self) -> bool {
        self.lock().tree.is_over_dirty_limit()
    }

    /// Whether a stripe is open and holds anything that is stored nowhere else.
    pub(crate) fn has_new_data(&self) -> bool {
        self.lock().open.has_new_data()
    }

    /// Closes the open stripe and puts it in flight. Returns it, and the state of the map.
    pub(crate) fn close(&self) -> (Arc<StripeInFlight>, MapState) {
        let mut state = self.lock();
        let (seq, public) = std::mem::take(&mut state.open).close();
        let in_flight = Arc::new(StripeInFlight { seq, public, hidden: OnceLock::new() });
        self.log.submit(Arc::clone(&in_flight));
        (in_flight, state.tree.state())
    }
}

/// Splits a range into pieces that end at multiples of `DISCARD_CHUNK`.
fn pieces(first: BlockAddr, count: u64) -> impl Iterator<Item = (BlockAddr, u64)> {
    let end = first.0 + count;
    let begins = std::iter::successors(Some(first.0), |at| Some((at / DISCARD_CHUNK + 1) * DISCARD_CHUNK));
    begins.take_while(move |at| *at < end).map(move |at| {
        let piece_end = ((at / DISCARD_CHUNK + 1) * DISCARD_CHUNK).min(end);
        (BlockAddr(at), piece_end - at)
    })
}
