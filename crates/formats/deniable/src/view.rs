//! Level 0 as readers see it: its map and the open stripe.
//!
//! Readers take the lock to look up the map and to copy blocks out of the open stripe, and read the
//! log without it. The operation that changes level 0 takes it for single steps, and never while it
//! waits for the medium: the leaves of the map that a step needs are loaded before, without the
//! lock. (Exceptions: a leaf that was evicted in between, that does not verify, or that is due in
//! the map's cycle after a replay is read under the lock.)
//!
//! Invariants: under one hold of the lock, a block is either in the open stripe or in the log at
//! the place that the map gives. Hidden operations never take this lock (deniability contract).

use crate::caches::Cached;
use crate::carried::Carried;
use crate::health::Health;
use crate::log::{InFlight, Log};
use crate::place::{Place, Seq, Slot, is_live};
use crate::source::Source;
use crate::stripe_builder::StripeBuilder;
use crate::summary::Listed;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Result, StatusItem, defect};
use lacuna_levels::{Entry, FANOUT, MapState, Tree, warm};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Blocks of a range that are discarded under one hold of the lock: those of 16 leaves.
const PIECE: u64 = 16 * FANOUT;

/// The state of level 0 for readers.
pub(crate) struct View {
    log: Arc<Log>,
    health: Arc<Health>,
    /// A panic under this lock fails the disk.
    state: Mutex<State>,
}

struct State {
    tree: Tree,
    open: StripeBuilder,
}

impl View {
    /// The view of a level with this map. No stripe is open yet.
    pub(crate) fn new(log: Arc<Log>, health: Arc<Health>, tree: Tree) -> View {
        View { log, health, state: Mutex::new(State { tree, open: StripeBuilder::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            self.health.fail(defect());
            poisoned.into_inner()
        })
    }

    /// Loads the leaves of a range, without the lock.
    pub(crate) fn warm(&self, first: BlockAddr, count: u64) {
        let source = Source::strict(&self.log, 0);
        warm(first.0, count, &source, |act| act(&mut self.lock().tree));
    }

    /// The same for the leaves of the blocks in `entries`.
    fn warm_all(&self, entries: impl Iterator<Item = Entry>, source: &Source<'_>) {
        for entry in entries {
            if let Entry::Data(addr) | Entry::Lost(addr) = entry {
                warm(addr, 1, source, |act| act(&mut self.lock().tree));
            }
        }
    }

    // For readers.

    /// Sets the places of blocks that lie in closed stripes. All other blocks are read at once, and
    /// their places set to 0.
    pub(crate) fn look(&self, first: BlockAddr, buf: &mut [u8], places: &mut [u64]) -> Result<()> {
        self.warm(first, places.len() as u64);
        let mut state = self.lock();
        let State { tree, open } = &mut *state;
        tree.places(first.0, places, &open.source(&self.log).strictly())?;
        for ((addr, out), packed) in (first.0..).zip(buf.chunks_exact_mut(BLOCK_SIZE)).zip(places) {
            let place = Place::unpack(*packed);
            if let Some(found) = place.and_then(|place| open.block(place, BlockAddr(addr))) {
                out.copy_from_slice(found);
                *packed = 0;
            } else if *packed == 0 {
                out.fill(0);
            }
        }
        Ok(())
    }

    /// Which of `count` blocks are written.
    pub(crate) fn written(&self, first: BlockAddr, count: usize) -> Result<Vec<bool>> {
        self.warm(first, count as u64);
        let mut state = self.lock();
        let State { tree, open } = &mut *state;
        let mut places = vec![0; count];
        tree.places(first.0, &mut places, &open.source(&self.log).strictly())?;
        Ok(places.iter().map(|packed| *packed != 0).collect())
    }

    /// Which of the slots that stripe `from` lists are live now. A slot that is not live never
    /// becomes live again.
    pub(crate) fn still_live(&self, from: Seq, listed: &[Listed]) -> Vec<bool> {
        self.warm_all(listed.iter().map(|(entry, _)| *entry), &Source::strict(&self.log, 0));
        let mut state = self.lock();
        let State { tree, open } = &mut *state;
        // A page of the map may lie in the open stripe. If it counted as lost, so would its blocks.
        let source = open.source(&self.log).strictly();
        let stride = self.log.params().stride();
        let mut live = |(slot, (entry, _)): (Slot, &Listed)| {
            is_live(tree, *entry, Place { seq: from, slot }, stride, &source)
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
    pub(crate) fn cached(&self) -> Cached {
        Cached::leaves(&self.lock().tree)
    }

    // For the one operation at a time that changes level 0.

    /// Opens stripe `seq`: takes over the live slots of `carried`, and the pages of the map that
    /// are due. Returns the rest of `carried`.
    pub(crate) fn open(&self, seq: Seq, mut carried: Carried) -> Result<Carried> {
        self.warm_all(
            carried.public.entries().iter().map(|(_, entry)| *entry),
            &Source::lenient(&self.log, 0),
        );
        let due = {
            let mut state = self.lock();
            let State { tree, open } = &mut *state;
            carried.drop_stale(0, tree, &self.log)?;
            *open = StripeBuilder::new(seq, std::mem::take(&mut carried.public));
            tree.due(seq.0)
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
        let State { tree, open } = &mut *state;
        let Some(slot) = open.free_slot(usize::MAX) else { return Ok(false) };
        let mut block = [0; BLOCK_SIZE];
        let page = tree.emit(open.place(slot).pack(), &open.source(&self.log), &mut block)?;
        let Some(page) = page else { return Ok(false) };
        open.put_page(page, slot, &block);
        Ok(true)
    }

    /// Takes blocks into the open stripe until it has no more room. Returns their number.
    pub(crate) fn take_in(&self, first: BlockAddr, data: &[u8]) -> Result<usize> {
        let mut state = self.lock();
        let State { tree, open } = &mut *state;
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
            let State { tree, open } = &mut *state;
            if tree.any(first.0, count, &open.source(&self.log))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Records a discard in the open stripe and makes the blocks unwritten. False if there is no
    /// room for the record.
    pub(crate) fn discard(&self, first: BlockAddr, count: u64) -> Result<bool> {
        let mut state = self.lock();
        let State { tree, open } = &mut *state;
        let Some(covered) = open.record_discard(first, count) else { return Ok(false) };
        // Remove the places of the blocks that left the open stripe before a reader looks them up.
        for addr in covered {
            tree.set(addr.0, 0, &open.source(&self.log))?;
        }
        drop(state);
        for (first, count) in pieces(first, count) {
            self.warm(first, count);
            let mut state = self.lock();
            let State { tree, open } = &mut *state;
            tree.clear(first.0, count, &open.source(&self.log))?;
        }
        Ok(true)
    }

    /// Whether too many pages of the map are dirty to change more for the moment.
    pub(crate) fn is_crowded(&self) -> bool {
        self.lock().tree.crowded()
    }

    /// Whether a stripe is open and holds anything that is stored nowhere else.
    pub(crate) fn is_fresh(&self) -> bool {
        self.lock().open.is_fresh()
    }

    /// Closes the open stripe and puts it in flight. Returns it, and the state of the map.
    pub(crate) fn close(&self) -> (Arc<InFlight>, MapState) {
        let mut state = self.lock();
        let (seq, public) = std::mem::take(&mut state.open).close();
        let in_flight = Arc::new(InFlight { seq, public, hidden: OnceLock::new() });
        self.log.submit(Arc::clone(&in_flight));
        (in_flight, state.tree.state())
    }
}

/// Splits a range into pieces that end at multiples of `PIECE`.
fn pieces(first: BlockAddr, count: u64) -> impl Iterator<Item = (BlockAddr, u64)> {
    let end = first.0 + count;
    let begins = std::iter::successors(Some(first.0), |at| Some((at / PIECE + 1) * PIECE));
    begins.take_while(move |at| *at < end).map(move |at| {
        let piece_end = ((at / PIECE + 1) * PIECE).min(end);
        (BlockAddr(at), piece_end - at)
    })
}
