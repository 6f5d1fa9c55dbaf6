//! Level 0: filling stripes. Blocks go into the open stripe in the order in which they are written, beside what it
//! carries on from the stripe that is about to be overwritten; when it is full it is closed and sets off for the
//! medium (the paper's Algorithms 2 and 5, and Table 1, for all public slots of a stripe at once).
//!
//! Deniability contract: which stripes there are, when they are closed and what they say to level 0 is decided here, by
//! public operations and the paced clock, under a lock that hidden operations never take.

use crate::carrier::Carried;
use crate::core::Core;
use crate::log::{InFlight, Log, Plain};
use crate::pipeline::Closed;
use crate::place::Place;
use crate::source::Source;
use crate::summary::{PublicPart, name_of};
use crate::trims;
use lacuna_core::{BLOCK_SIZE, Error, Kind, OnPanic, Result, defect};
use lacuna_levels::{Entry, LOST, SALT_LEN, Tree, warm};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, PoisonError};

/// A stripe that a flush or a beat closed is called durable by the stripe that closes so many flushes and beats later:
/// a number, and no matter of how long the sync took. With more, more clients can flush at once; with fewer, less of the
/// log counts as lost when its end is damaged.
const CLAIM_AFTER: usize = 4;

/// The stripe that is being filled.
struct Open {
    /// Its number; 0 while no stripe is open.
    seq: u64,
    plain: Plain,
    /// What of the stripe a stride before is in it and in its hidden slots.
    carried: Option<Carried>,
    /// The slots of the blocks in it.
    index: BTreeMap<u64, u8>,
    /// Free slots, the lowest last.
    free: Vec<u8>,
    /// The slot that records discards, and how many ranges it has.
    trim: Option<(u8, usize)>,
    /// Whether it holds anything that is nowhere else.
    fresh: bool,
}

/// What level 0 knows.
pub(crate) struct Public {
    pub(crate) tree: Tree,
    open: Open,
    /// The last closed stripe, and that stripe until its hidden slots have been filled.
    closed: u64,
    to_fill: Option<ToFill>,
    /// Stripes that flushes and beats closed and that none has called durable yet, and the last that one has.
    to_claim: VecDeque<u64>,
    claimed: u64,
    /// The first half of the salt of the last closed stripe, and what its slots hold.
    previous: [u8; 16],
    echo: Vec<Entry>,
}

/// How the log ends: what the next stripe says of the one before.
pub(crate) struct End {
    pub(crate) head: u64,
    pub(crate) name: [u8; 16],
    pub(crate) echo: Vec<Entry>,
    /// Whether a stripe cannot be read that nothing calls durable: what was written before it may belong to another end.
    pub(crate) doubtful: bool,
}

/// A closed stripe whose hidden slots have not been filled.
struct ToFill {
    in_flight: Arc<InFlight>,
    carried: Carried,
    salt: [u8; SALT_LEN],
    checkpoint: Option<[u8; SALT_LEN]>,
    part: PublicPart,
}

/// Why an operation cannot go on under the lock of level 0.
#[derive(Clone, Copy)]
pub(crate) enum Stall {
    /// What this stripe carries on has not been read yet.
    Carried(u64),
    /// Too many closed stripes are in flight.
    Room,
    /// A stripe was closed, and its hidden slots must be filled.
    Closed,
}

/// A step under the lock of level 0: its result, or why it must go on later.
type Step<T> = std::result::Result<T, Stall>;

impl Public {
    /// Level 0 with its map, at the end of the log. No stripe is open yet.
    pub(crate) fn new(tree: Tree, end: End) -> Public {
        Public {
            tree,
            open: Open::none(),
            closed: end.head,
            to_fill: None,
            to_claim: VecDeque::new(),
            claimed: end.head,
            previous: end.name,
            echo: end.echo,
        }
    }
}

impl Open {
    fn none() -> Open {
        Open {
            seq: 0,
            plain: Plain::new(0),
            carried: None,
            index: BTreeMap::new(),
            free: Vec::new(),
            trim: None,
            fresh: false,
        }
    }

    fn occupied(&self) -> usize {
        self.plain.entries.len() - self.free.len()
    }

    fn source<'a>(&'a self, log: &'a Log) -> Source<'a> {
        Source::filling(log, 0, self.seq, &self.plain)
    }
}

fn no_room(what: &str) -> Error {
    Error::new(Kind::NoSpace, format!("the log has no room for {what}"))
        .found("no free slot in a whole lap")
        .expected("at least the spare ones")
}

impl Core {
    /// Changes level 0, one operation after another. Where `step` cannot go on under the lock, does without it what must be
    /// done, and calls `step` again: front ends that read must not wait for the medium.
    ///
    /// The hidden slots of a stripe are filled before the operation goes on that closed it: what a level has in a stripe is a
    /// function of the order of operations on it and on level 0, and no matter of speed (deniability contract).
    fn stepwise<T>(&self, mut step: impl FnMut(&mut Public) -> Result<Step<T>>) -> Result<T> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.health.check()?;
            let mut public = self.public();
            let stepped = step(&mut public).map_err(|e| self.fail_unless_full(e));
            let to_fill = public.to_fill.take();
            drop(public);
            if let Some(to_fill) = to_fill {
                // The open stripe is gone with it: nothing goes on after a failure.
                self.fill_and_send(to_fill).map_err(|e| self.fail(e))?;
            }
            match stepped? {
                Ok(done) => return Ok(done),
                Err(Stall::Carried(seq)) => self.carrier.wait_for(seq, &self.health)?,
                Err(Stall::Room) => self.pipeline.wait_room(&self.health)?,
                Err(Stall::Closed) => {}
            }
        }
    }

    /// Takes blocks into the log, one after another and no others between them: they are read together.
    pub(crate) fn write_public(&self, first: u64, data: &[u8]) -> Result<()> {
        self.warm_public(first, (data.len() / BLOCK_SIZE) as u64);
        let mut blocks = (first..).zip(data.chunks_exact(BLOCK_SIZE)).peekable();
        let mut stripes = 0;
        self.stepwise(|public| {
            while let Some((addr, block)) = blocks.peek() {
                if let Err(stall) = self.take_in(public, *addr, block, &mut stripes)? {
                    return Ok(Err(stall));
                }
                blocks.next();
                stripes = 0;
            }
            Ok(Ok(()))
        })
    }

    /// Loads the leaves of a range without the lock.
    fn warm_public(&self, first: u64, count: u64) {
        warm(first, count, &Source::strict(&self.log, 0), |act| act(&mut self.public().tree));
    }

    /// Takes one block in. `stripes` counts those that it has seen without room.
    fn take_in(&self, public: &mut Public, addr: u64, block: &[u8], stripes: &mut u64) -> Result<Step<()>> {
        loop {
            if let Err(stall) = self.ensure_open(public)? {
                return Ok(Err(stall));
            }
            let Public { tree, open, .. } = &mut *public;
            if let Some(&slot) = open.index.get(&addr) {
                open.plain.put(0, usize::from(slot), Entry::Data(addr)).copy_from_slice(block);
                open.fresh = true;
                // It may have been carried on to here: from now on it is taken in here.
                tree.set(addr, Place { seq: open.seq, slot }.pack(), &open.source(&self.log))?;
                return Ok(Ok(()));
            }
            let first_write = tree.get(addr, &open.source(&self.log))? == 0;
            let most = if first_write { self.log.params.public_first_writes() } else { usize::MAX };
            if open.occupied() < most
                && let Some(slot) = open.free.pop()
            {
                open.plain.put(0, usize::from(slot), Entry::Data(addr)).copy_from_slice(block);
                open.index.insert(addr, slot);
                open.fresh = true;
                let place = Place { seq: open.seq, slot };
                tree.set(addr, place.pack(), &open.source(&self.log))?;
                return Ok(Ok(()));
            }
            // Existing valid data goes before new data (Table 1): on to a stripe with room.
            if let Err(stall) = self.close_stripe(public)? {
                return Ok(Err(stall));
            }
            *stripes += 1;
            if *stripes > 2 * self.log.params.stripes {
                return Err(no_room("a block"));
            }
        }
    }

    /// Makes blocks unwritten. The medium is told nothing: the log says it, and the slots are reused in their turn.
    pub(crate) fn discard_public(&self, first: u64, count: u64) -> Result<()> {
        self.warm_public(first, count);
        let mut recorded = false;
        let mut stripes = 0;
        self.stepwise(|public| {
            if !recorded {
                match self.trim(public, first, count)? {
                    Ok(true) => recorded = true,
                    Ok(false) => return Ok(Ok(())),
                    Err(stall) => return Ok(Err(stall)),
                }
            }
            // Pages that the discard changed are written before it is answered, once there are many.
            while public.tree.crowded() && stripes < self.log.params.stripes {
                if let Err(stall) = self.next_stripe(public)? {
                    return Ok(Err(stall));
                }
                stripes += 1;
            }
            Ok(Ok(()))
        })
    }

    /// Records a discard. False if nothing in the range is written.
    fn trim(&self, public: &mut Public, first: u64, count: u64) -> Result<Step<bool>> {
        let mut stripes = 0;
        loop {
            if let Err(stall) = self.ensure_open(public)? {
                return Ok(Err(stall));
            }
            let Public { tree, open, .. } = &mut *public;
            if !tree.any(first, count, &open.source(&self.log))? {
                return Ok(Ok(false));
            }
            stripes += 1;
            if stripes > 2 * self.log.params.stripes {
                return Err(no_room("a discard"));
            }
            let (slot, at) = match open.trim {
                Some((slot, ranges)) if ranges < trims::MOST_RANGES => (slot, ranges),
                _ => match open.free.pop() {
                    Some(slot) => {
                        open.plain.put(0, usize::from(slot), Entry::Trim { origin: open.seq }).fill(0);
                        (slot, 0)
                    }
                    None => match self.close_stripe(public)? {
                        Ok(()) => continue,
                        Err(stall) => return Ok(Err(stall)),
                    },
                },
            };
            open.trim = Some((slot, at + 1));
            open.fresh = true;
            let origin = open.seq;
            trims::put(open.plain.put(0, usize::from(slot), Entry::Trim { origin }), at, first, count);
            // Records are repeated before the data of their stripe: what they cover must not be in it.
            let covered: Vec<(u64, u8)> =
                open.index.range(first..first + count).map(|(addr, slot)| (*addr, *slot)).collect();
            for (addr, slot) in covered {
                open.index.remove(&addr);
                open.plain.clear(usize::from(slot));
                open.free.push(slot);
            }
            tree.clear(first, count, &open.source(&self.log))?;
            return Ok(Ok(true));
        }
    }

    /// Makes everything that level 0 acknowledged durable.
    pub(crate) fn flush_public(&self) -> Result<()> {
        let closed = self.stepwise(|public| {
            if public.open.fresh {
                self.claim(public);
                if let Err(stall) = self.close_stripe(public)? {
                    return Ok(Err(stall));
                }
            }
            Ok(Ok(public.closed))
        })?;
        self.settle(closed)
    }

    /// One beat of the paced cover: closes the open stripe, whatever is in it, and syncs. Returns its number.
    pub(crate) fn refresh(&self) -> Result<u64> {
        let closed = self.stepwise(|public| {
            if let Err(stall) = self.ensure_open(public)? {
                return Ok(Err(stall));
            }
            self.claim(public);
            Ok(self.close_stripe(public)?.map(|()| public.closed))
        })?;
        self.settle(closed)?;
        Ok(closed)
    }

    /// The open stripe is going to be closed by a flush or a beat: it may call an earlier one durable.
    fn claim(&self, public: &mut Public) {
        let seq = public.open.seq;
        if public.to_claim.back() == Some(&seq) {
            return;
        }
        public.to_claim.push_back(seq);
        if public.to_claim.len() > CLAIM_AFTER {
            public.claimed = public.to_claim.pop_front().expect("there are more");
        }
    }

    /// Ends the log with a stripe that holds nothing new, makes everything durable and says so in a checkpoint: from
    /// then on what cannot be read was damaged, and is no end of the log; and what the last stripes held is known
    /// from the echoes in those after them.
    pub(crate) fn finish(&self) -> Result<()> {
        let last = self.refresh()?;
        self.write_checkpoint(last, true, &self.draw_salt())?;
        self.sync_all()
    }

    /// Waits until stripe `closed`, and all before it, are durable.
    fn settle(&self, closed: u64) -> Result<()> {
        self.wait_progress(|core| core.log.written() >= closed)?;
        self.sync_to(closed)
    }

    /// Closes the open stripe, or the next.
    fn next_stripe(&self, public: &mut Public) -> Result<Step<()>> {
        match self.ensure_open(public)? {
            Ok(()) => self.close_stripe(public),
            stalled => Ok(stalled),
        }
    }

    /// Closes the open stripe.
    fn close_stripe(&self, public: &mut Public) -> Result<Step<()>> {
        if public.to_fill.is_some() {
            return Ok(Err(Stall::Closed));
        }
        if !self.pipeline.has_room() {
            return Ok(Err(Stall::Room));
        }
        let Open { seq, mut plain, carried, .. } = std::mem::replace(&mut public.open, Open::none());
        let salt = self.draw_salt();
        // The first stripe of a session takes back that the disk was closed.
        let due = self.log.params.is_checkpoint_due(seq) || seq == self.opened_at + 1;
        let checkpoint = due.then(|| self.draw_salt());
        plain.zero_empty();
        let entries: Vec<Entry> = plain.entries.iter().map(|(_, entry)| *entry).collect();
        let part = PublicPart {
            seq,
            previous: public.previous,
            synced: public.claimed.max(self.log.params.synced_before(seq)),
            root: public.tree.state(),
            entries: entries.iter().map(|entry| (*entry, [0; 16])).collect(),
            echo: std::mem::replace(&mut public.echo, entries),
        };
        public.previous = name_of(&salt);
        public.closed = seq;
        let in_flight = Arc::new(InFlight { seq, public: plain, hidden: OnceLock::new() });
        self.log.submit(Arc::clone(&in_flight));
        let carried = carried.expect("an open stripe has what it carries on");
        public.to_fill = Some(ToFill { in_flight, carried, salt, checkpoint, part });
        Ok(Ok(()))
    }

    /// Fills the hidden slots of a closed stripe and sends it to the medium.
    fn fill_and_send(&self, to_fill: ToFill) -> Result<()> {
        // The stripe has its number: no other can take its place.
        let _guard = OnPanic::new(|| drop(self.fail(defect())));
        let ToFill { in_flight, carried, salt, checkpoint, part } = to_fill;
        let hidden = self.fill_hidden(&in_flight, carried)?;
        self.send(Closed { in_flight, hidden, salt, checkpoint, part })
    }

    /// Sees to it that a stripe with a free slot is open: closes a full one, takes over what the next one carries on and is
    /// live, and the pages of the map that are due.
    fn ensure_open(&self, public: &mut Public) -> Result<Step<()>> {
        if public.open.seq > 0 {
            return Ok(Ok(()));
        }
        if public.to_fill.is_some() {
            return Ok(Err(Stall::Closed));
        }
        let seq = public.closed + 1;
        let Some(mut carried) = self.take_carried(seq)? else { return Ok(Err(Stall::Carried(seq))) };
        let mut plain = std::mem::replace(&mut carried.public, Plain::new(0));
        let source = Source::lenient(&self.log, 0);
        let lost = &carried.lost_pages;
        self.log.drop_stale(0, carried.from, &mut public.tree, &mut plain, lost, &source)?;
        let slots = (0u8..).zip(&plain.entries);
        let index = slots.clone().filter_map(|(slot, (_, entry))| match entry {
            Entry::Data(addr) | Entry::Lost(addr) => Some((*addr, slot)),
            _ => None,
        });
        let index = index.collect();
        let free = slots.filter(|(_, (_, entry))| *entry == Entry::Empty).map(|(slot, _)| slot);
        let free = free.collect::<Vec<_>>().into_iter().rev().collect();
        public.open = Open { seq, plain, carried: Some(carried), index, free, trim: None, fresh: false };
        self.take_pages(public)?;
        Ok(Ok(()))
    }

    /// Takes the pages of the map into the stripe that was just opened that are due.
    fn take_pages(&self, public: &mut Public) -> Result<()> {
        let Public { tree, open, .. } = public;
        let seq = open.seq;
        for _ in 0..tree.due(seq) {
            let Some(&slot) = open.free.last() else { break };
            let mut block = [0; BLOCK_SIZE];
            let Some(entry) = tree.emit(Place { seq, slot }.pack(), &open.source(&self.log), &mut block)?
            else {
                break;
            };
            open.free.pop();
            // What was carried on is not repeated beside its successor.
            if let Some(old) = open.plain.slot_of(0, entry) {
                open.plain.clear(old);
                open.free.push(old as u8);
            }
            open.plain.put(0, usize::from(slot), entry).copy_from_slice(&block);
        }
        Ok(())
    }

    /// Where blocks of level 0 lie that are in closed stripes; the others are read at once, and their place given as 0.
    pub(crate) fn look_public(&self, first: u64, buf: &mut [u8], places: &mut [u64]) -> Result<()> {
        self.warm_public(first, places.len() as u64);
        let mut public = self.public();
        let Public { tree, open, .. } = &mut *public;
        tree.places(first, places, &open.source(&self.log).strictly())?;
        for ((addr, out), packed) in (first..).zip(buf.chunks_exact_mut(BLOCK_SIZE)).zip(places) {
            let place = Place::unpack(*packed).filter(|place| *packed != LOST && place.seq == open.seq);
            if let Some(found) =
                place.and_then(|place| open.plain.slot(0, usize::from(place.slot), Entry::Data(addr)))
            {
                out.copy_from_slice(found);
                *packed = 0;
            } else if *packed == 0 {
                out.fill(0);
            }
        }
        Ok(())
    }

    /// Which of `count` blocks of level 0 are written.
    pub(crate) fn public_written(&self, first: u64, count: usize) -> Result<Vec<bool>> {
        self.warm_public(first, count as u64);
        let mut public = self.public();
        let Public { tree, open, .. } = &mut *public;
        let mut places = vec![0; count];
        tree.places(first, &mut places, &open.source(&self.log).strictly())?;
        Ok(places.iter().map(|packed| *packed != 0).collect())
    }
}
