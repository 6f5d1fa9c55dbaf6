//! Level 0: filling stripes. Blocks go into the open stripe in the order in which they are written, beside what it
//! carries on from the stripe that is about to be overwritten; when it is full it is closed and sets off for the
//! medium (the paper's Algorithms 2 and 5, and Table 1, for all public slots of a stripe at once).
//!
//! Deniability contract: which stripes there are, when they are closed and what they say to level 0 is decided here, by
//! public operations and the paced clock, under a lock that hidden operations never take.

use crate::core::Core;
use crate::log::{Flying, Head, Log, Plain};
use crate::pipeline::Closed;
use crate::place::{Place, homes};
use crate::source::Source;
use crate::summary::{PublicPart, name_of};
use crate::trims;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_levels::{Entry, LOST, SALT_LEN, Tree};
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, OnceLock};

/// The stripe that is being filled.
struct Open {
    seq: u64,
    plain: Plain,
    /// The slots of the blocks in it.
    index: BTreeMap<u64, u8>,
    /// Free slots, the lowest last.
    free: Vec<u8>,
    /// The slot that records discards, and how many ranges it has.
    trim: Option<(u8, usize)>,
    /// Whether it holds anything that is nowhere else.
    fresh: bool,
    /// What the hidden levels have in the stripe that it carries on.
    carried: Vec<Head>,
}

/// What level 0 knows.
pub(crate) struct Public {
    pub(crate) tree: Tree,
    open: Open,
    /// A stripe that is durable for certain, as a function of what the public did.
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
}

impl Public {
    /// Level 0 with its map, at the end of the log. No stripe is open yet.
    pub(crate) fn new(tree: Tree, end: End) -> Public {
        let open = Open::new(end.head, Plain::new(0));
        Public { tree, open, claimed: end.head, previous: end.name, echo: end.echo }
    }
}

impl Open {
    fn new(seq: u64, plain: Plain) -> Open {
        Open {
            seq,
            index: BTreeMap::new(),
            free: (0..plain.entries.len() as u8).rev().collect(),
            plain,
            trim: None,
            fresh: false,
            carried: Vec::new(),
        }
    }

    fn occupied(&self) -> usize {
        self.plain.entries.len() - self.free.len()
    }

    fn source<'a>(&'a self, log: &'a Log) -> Source<'a> {
        Source { log, level: 0, seq: self.seq, plain: &self.plain }
    }
}

impl Core {
    /// Opens the first stripe after the end of the log.
    pub(crate) fn begin(&self) -> Result<()> {
        let mut public = self.public();
        let seq = public.open.seq + 1;
        self.open_stripe(&mut public, seq)
    }

    /// Takes blocks into the log, one after another and no others between them: they are read together.
    pub(crate) fn write_public(&self, first: u64, data: &[u8]) -> Result<()> {
        let mut public = self.public();
        for (addr, block) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            self.health.check()?;
            self.take_in(&mut public, addr, block).map_err(|e| self.fail_unless_full(e))?;
        }
        Ok(())
    }

    fn take_in(&self, public: &mut Public, addr: u64, block: &[u8]) -> Result<()> {
        let mut stripes = 0;
        loop {
            if let Some(&slot) = public.open.index.get(&addr) {
                let Public { tree, open, .. } = &mut *public;
                open.plain.put(0, usize::from(slot), Entry::Data(addr)).copy_from_slice(block);
                open.fresh = true;
                // It may have been carried on to here: from now on it is taken in here.
                tree.set(addr, Place { seq: open.seq, slot }.pack(), &open.source(&self.log))?;
                return Ok(());
            }
            let Public { tree, open, .. } = &mut *public;
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
                return if open.free.is_empty() { self.advance(public) } else { Ok(()) };
            }
            // Existing valid data goes before new data (Table 1): on to a stripe with room.
            self.advance(public)?;
            stripes += 1;
            if stripes > 2 * self.log.params.stripes {
                return Err(Error::new(Kind::NoSpace, "the log has no room for a block")
                    .found("no free slot in a whole lap")
                    .expected("at least the spare ones"));
            }
        }
    }

    /// Makes blocks unwritten. The medium is told nothing: the log says it, and the slots are reused in their turn.
    pub(crate) fn discard_public(&self, first: u64, count: u64) -> Result<()> {
        self.health.check()?;
        let mut public = self.public();
        self.trim(&mut public, first, count).map_err(|e| self.fail_unless_full(e))
    }

    fn trim(&self, public: &mut Public, first: u64, count: u64) -> Result<()> {
        let Public { tree, open, .. } = &mut *public;
        if !tree.any(first, count, &open.source(&self.log))? {
            return Ok(());
        }
        let (slot, at) = loop {
            match public.open.trim {
                Some((slot, ranges)) if ranges < trims::MOST_RANGES => break (slot, ranges),
                _ => {}
            }
            let Some(slot) = public.open.free.pop() else {
                self.advance(public)?;
                continue;
            };
            let origin = public.open.seq;
            public.open.plain.put(0, usize::from(slot), Entry::Trim { origin }).fill(0);
            break (slot, 0);
        };
        let Public { tree, open, .. } = &mut *public;
        open.trim = Some((slot, at + 1));
        open.fresh = true;
        let origin = open.seq;
        trims::put(open.plain.put(0, usize::from(slot), Entry::Trim { origin }), at, first, count);
        // Records are repeated before the data of their stripe: what they cover must not be in it.
        let covered: Vec<(u64, u8)> = open.index.range(first..first + count).map(|(a, s)| (*a, *s)).collect();
        for (addr, slot) in covered {
            open.index.remove(&addr);
            open.plain.clear(usize::from(slot));
            open.free.push(slot);
        }
        tree.clear(first, count, &open.source(&self.log))?;
        // Pages that the discard changed are written before it is answered, once there are many.
        let mut stripes = 0;
        while public.open.free.is_empty() || (public.tree.crowded() && stripes < self.log.params.stripes) {
            self.advance(public)?;
            stripes += 1;
        }
        Ok(())
    }

    /// Makes everything that level 0 acknowledged durable.
    pub(crate) fn flush_public(&self) -> Result<()> {
        self.health.check()?;
        let mut public = self.public();
        if public.open.fresh {
            self.advance(&mut public).map_err(|e| self.fail(e))?;
        }
        self.settle(public).map(drop)
    }

    /// One beat of the paced cover: closes the open stripe, whatever is in it, and syncs. Returns its number.
    pub(crate) fn refresh(&self) -> Result<u64> {
        self.health.check()?;
        let mut public = self.public();
        self.advance(&mut public).map_err(|e| self.fail(e))?;
        self.settle(public)
    }

    /// Ends the log with a stripe that holds nothing new, makes everything durable and says so in a checkpoint: from
    /// then on whatever cannot be read was damaged, and is no end of the log; and what the last stripes held is known
    /// from the echoes in those after them.
    pub(crate) fn finish(&self) -> Result<()> {
        let last = self.refresh()?;
        self.write_checkpoint(last, true)?;
        self.sync_all()
    }

    /// Waits until every closed stripe is durable, and returns the last.
    fn settle(&self, public: MutexGuard<'_, Public>) -> Result<u64> {
        let closed = public.open.seq - 1;
        drop(public);
        self.wait_progress(|core| core.log.written() >= closed)?;
        self.sync_to(closed)?;
        let mut public = self.public();
        public.claimed = public.claimed.max(closed);
        Ok(closed)
    }

    /// Closes the open stripe and opens the next.
    fn advance(&self, public: &mut Public) -> Result<()> {
        let seq = public.open.seq;
        let mut salt = [0; SALT_LEN];
        self.public_random.fill(&mut salt);
        let mut plain = std::mem::replace(&mut public.open.plain, Plain::new(0));
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
        let flying = Arc::new(Flying { seq, public: plain, hidden: OnceLock::new() });
        self.log.take_off(Arc::clone(&flying));
        let carried = std::mem::take(&mut public.open.carried);
        // The open stripe is gone with it: nothing goes on after a failure.
        self.send(Closed { flying, carried, salt, part }).map_err(|e| self.fail(e))?;
        self.open_stripe(public, seq + 1)
    }

    /// Opens stripe `seq`: carries on what is valid in the stripe whose place comes up a gap later, and takes the
    /// pages of the map that are due.
    fn open_stripe(&self, public: &mut Public, seq: u64) -> Result<()> {
        public.open = Open::new(seq, self.log.empty_slots(false));
        if let Some(from) = self.log.params.carried_by(seq) {
            self.carry(public, from)?;
        }
        let Public { tree, open, .. } = &mut *public;
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

    fn carry(&self, public: &mut Public, from: u64) -> Result<()> {
        let (head, hidden) = match self.log.heads_to_carry(from) {
            Err(e) if e.kind() == Kind::Corrupt => return Ok(()),
            heads => heads?,
        };
        let Public { tree, open, .. } = &mut *public;
        open.carried = hidden;
        let homes = homes(tree, &head.entries, from, self.log.params.stride(), &open.source(&self.log))?;
        for (slot, entry) in self.log.carry(0, from, &head, &homes, &mut open.plain)? {
            if let Entry::Data(addr) | Entry::Lost(addr) = entry {
                open.index.insert(addr, slot as u8);
            }
        }
        let Open { plain, free, .. } = open;
        free.retain(|&slot| plain.entries[usize::from(slot)].1 == Entry::Empty);
        Ok(())
    }

    /// Where blocks of level 0 lie that have set off; the others are read at once, and their place given as 0.
    pub(crate) fn look_public(&self, first: u64, buf: &mut [u8], places: &mut [u64]) -> Result<()> {
        let mut public = self.public();
        let Public { tree, open, .. } = &mut *public;
        tree.places(first, places, &open.source(&self.log))?;
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
        let mut public = self.public();
        let Public { tree, open, .. } = &mut *public;
        let mut places = vec![0; count];
        tree.places(first, &mut places, &open.source(&self.log))?;
        Ok(places.iter().map(|packed| *packed != 0).collect())
    }
}
