//! Level 0 as readers see it: its map, and the stripe that is being built.
//!
//! Readers take the lock for as long as it takes to look at the map and to copy blocks out of the
//! open stripe, and read the log without it. The operation that changes level 0 takes it for single
//! steps, and never while it waits for the medium: the leaves of the map that a step needs are
//! loaded before, without the lock. (A leaf that was evicted in between, that does not verify, or
//! that is due in the map's cycle after a replay, is read under the lock after all.)
//!
//! Invariants: one hold of the lock sees a block either in the open stripe or where the map says,
//! in the log. Hidden operations never take this lock (deniability contract).

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

/// What readers of level 0 look at.
pub(crate) struct View {
    log: Arc<Log>,
    health: Arc<Health>,
    /// A panic under it ends the disk.
    state: Mutex<State>,
}

struct State {
    tree: Tree,
    open: StripeBuilder,
}

impl View {
    /// Of a level with this map. No stripe is open yet.
    pub(crate) fn new(log: Arc<Log>, health: Arc<Health>, tree: Tree) -> View {
        View { log, health, state: Mutex::new(State { tree, open: StripeBuilder::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            self.health.fail(defect());
            poisoned.into_inner()
        })
    }

    /// Loads the leaves of a range without the lock.
    pub(crate) fn warm(&self, first: BlockAddr, count: u64) {
        let source = Source::strict(&self.log, 0);
        warm(first.0, count, &source, |act| act(&mut self.lock().tree));
    }

    /// The same for the leaves of the blocks among `entries`.
    fn warm_all(&self, entries: impl Iterator<Item = Entry>, source: &Source<'_>) {
        for entry in entries {
            if let Entry::Data(addr) | Entry::Lost(addr) = entry {
                warm(addr, 1, source, |act| act(&mut self.lock().tree));
            }
        }
    }

    // Readers.

    /// Where blocks lie that are in closed stripes; the others are read at once, and their place
    /// given as 0.
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

    /// Which of the slots that stripe `from` lists are live, as far as is known now. What is not
    /// live now will never be again.
    pub(crate) fn still_live(&self, from: Seq, listed: &[Listed]) -> Vec<bool> {
        self.warm_all(listed.iter().map(|(entry, _)| *entry), &Source::strict(&self.log, 0));
        let mut state = self.lock();
        let State { tree, open } = &mut *state;
        // A page of the map may lie in the open stripe: taken for lost, its blocks would be.
        let source = open.source(&self.log).strictly();
        let stride = self.log.params().stride();
        let mut live = |(slot, (entry, _)): (Slot, &Listed)| {
            is_live(tree, *entry, Place { seq: from, slot }, stride, &source)
        };
        let live: Result<Vec<bool>> = Slot::all(listed.len()).zip(listed).map(&mut live).collect();
        // What the map would say of one that fails is found out when the stripe is opened.
        live.unwrap_or_else(|_| vec![true; listed.len()])
    }

    /// The counters of the map.
    pub(crate) fn status(&self) -> [StatusItem; 2] {
        self.lock().tree.status()
    }

    /// How much of the map is in memory.
    pub(crate) fn cached(&self) -> Cached {
        Cached::leaves(&self.lock().tree)
    }

    // The one operation that changes level 0 at a time.

    /// Opens stripe `seq`: takes over what of `carried` is live, and the pages of the map that are
    /// due. Gives the rest of `carried`.
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

    /// Takes the next page of the map into the open stripe. False without room, or if no page is
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

    /// Takes blocks into the open stripe, as many as have room there. Gives how many.
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
            // A block that was carried on to here is taken in here from now on.
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
        // With the blocks in the open stripe go their places, before readers look again.
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

    /// Whether so many pages of the map wait to be written that no more should be changed for the
    /// moment.
    pub(crate) fn is_crowded(&self) -> bool {
        self.lock().tree.crowded()
    }

    /// Whether the open stripe, if one is open, holds anything that is nowhere else.
    pub(crate) fn is_fresh(&self) -> bool {
        self.lock().open.is_fresh()
    }

    /// Closes the open stripe, which is in flight from now on. Gives it, and the state of the map.
    pub(crate) fn close(&self) -> (Arc<InFlight>, MapState) {
        let mut state = self.lock();
        let (seq, public) = std::mem::take(&mut state.open).close();
        let in_flight = Arc::new(InFlight { seq, public, hidden: OnceLock::new() });
        self.log.submit(Arc::clone(&in_flight));
        (in_flight, state.tree.state())
    }
}

/// A range in pieces that begin where a leaf does.
fn pieces(first: BlockAddr, count: u64) -> impl Iterator<Item = (BlockAddr, u64)> {
    let end = first.0 + count;
    let begins = std::iter::successors(Some(first.0), |at| Some((at / PIECE + 1) * PIECE));
    begins.take_while(move |at| *at < end).map(move |at| {
        let piece_end = ((at / PIECE + 1) * PIECE).min(end);
        (BlockAddr(at), piece_end - at)
    })
}
