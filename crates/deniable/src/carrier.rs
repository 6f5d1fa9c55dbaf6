//! Reading, ahead of need, what a stripe carries on: the whole stripe that lies a stride before it.
//!
//! Deniability contract: all hidden slots of a stripe are read, and each is tried once with the key of the level that owns
//! it, which is a throwaway key if the level is not open: these reads and the ciphering are the same whatever levels exist.
//! What an open level reads beside them is leaves of its map that are not in memory (threat model, Work).
//! Public slots are read if one of them is live. (On a disk of version 1, whose levels share slots, the ciphering differs.)
//!
//! Invariant: a stripe is read between its own sync and the write that overwrites it, so it does not change meanwhile.

use crate::core::{Core, LOOK_AGAIN};
use crate::keys::open_slot;
use crate::log::{Log, Plain};
use crate::place::live_slots;
use crate::source::Source;
use crate::summary::{Listed, Summary};
use lacuna_core::{BLOCK_SIZE, FailStop, OnPanic, Result, defect};
use lacuna_levels::{Entry, Tree, WriteKey, warm};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Stripes that are read ahead.
const AHEAD: usize = 16;
/// Stripes after which the thread that loads leaves is told what was found: waking it costs more than the rest.
const TOLD_AFTER: usize = AHEAD / 4;

/// What a stripe may carry on: the plaintext of the slots of the stripe a stride before.
pub(crate) struct Carried {
    /// The stripe it comes from; 0 for none.
    pub(crate) from: u64,
    /// Pages of maps that could not be read, with their level and slot.
    pub(crate) lost_pages: Vec<(u8, usize, Entry)>,
    pub(crate) public: Plain,
    pub(crate) hidden: Plain,
}

/// Stripes that have been read ahead.
#[derive(Default)]
pub(crate) struct Carrier {
    ahead: Mutex<Ahead>,
    moved: Condvar,
}

#[derive(Default)]
struct Ahead {
    /// By the stripe that carries them on, without gaps.
    ready: VecDeque<(u64, Carried)>,
    /// A thread reads ahead.
    threaded: bool,
    /// A thread waits for what is being read.
    awaited: bool,
    ended: bool,
}

impl Carrier {
    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a thread reads ahead.
    pub(crate) fn start(&self) {
        self.ahead().threaded = true;
    }

    /// The thread is to end, and all that wait for it.
    pub(crate) fn end(&self) {
        self.ahead().ended = true;
        self.moved.notify_all();
    }

    /// Waits until what stripe `seq` carries on has been read.
    pub(crate) fn wait_for(&self, seq: u64, health: &FailStop) -> Result<()> {
        let mut ahead = self.ahead();
        while ahead.ready.front().is_none_or(|(ready, _)| *ready < seq) {
            health.check()?;
            if ahead.ended {
                return Err(health.refusal());
            }
            ahead.awaited = true;
            ahead = self.moved.wait_timeout(ahead, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
            ahead.awaited = false;
        }
        Ok(())
    }

    /// Whether a thread reads ahead, and what it has for stripe `seq`.
    fn take(&self, seq: u64) -> (bool, Option<Carried>) {
        let mut ahead = self.ahead();
        let due = ahead.ready.front().is_some_and(|(ready, _)| *ready == seq);
        let taken = if due { ahead.ready.pop_front() } else { None };
        let threaded = ahead.threaded;
        // The thread that reads is woken for several at once.
        let wake = due && ahead.ready.len() <= AHEAD / 2;
        drop(ahead);
        if wake {
            self.moved.notify_all();
        }
        (threaded, taken.map(|(_, carried)| carried))
    }

    /// Keeps what stripe `seq` carries on. Waits while much has been read ahead; false when the thread is to end.
    fn put(&self, seq: u64, carried: Carried) -> bool {
        let mut ahead = self.ahead();
        if ahead.ready.len() >= AHEAD {
            while ahead.ready.len() > AHEAD / 2 && !ahead.ended {
                ahead = self.moved.wait(ahead).unwrap_or_else(PoisonError::into_inner);
            }
        }
        ahead.ready.push_back((seq, carried));
        let goes_on = !ahead.ended;
        let awaited = ahead.awaited;
        drop(ahead);
        if awaited {
            self.moved.notify_all();
        }
        goes_on
    }
}

impl Core {
    /// What stripe `seq` carries on; none if the thread that reads ahead is not that far. Without that thread it is read now.
    pub(crate) fn take_carried(&self, seq: u64) -> Result<Option<Carried>> {
        match self.carrier.take(seq) {
            (true, taken) => Ok(taken),
            (false, _) => self.log.read_carried(seq, |_, listed| vec![true; listed.len()]).map(Some),
        }
    }

    /// The work of the thread that reads ahead, from stripe `seq` on. It tells `to_warm` of the hidden blocks that it found.
    pub(crate) fn read_ahead(&self, mut seq: u64, to_warm: SyncSender<Vec<(u8, u64)>>) {
        let _guard = OnPanic::new(|| drop(self.fail(defect())));
        let mut found = Vec::new();
        loop {
            let carried = match self.log.read_carried(seq, |from, listed| self.still_live(from, listed)) {
                Ok(carried) => carried,
                Err(e) => return drop(self.fail(e)),
            };
            found.extend(carried.hidden.entries.iter().filter_map(|(level, entry)| match entry {
                Entry::Data(addr) | Entry::Lost(addr) => Some((*level, *addr)),
                _ => None,
            }));
            if !self.carrier.put(seq, carried) {
                return;
            }
            if seq.is_multiple_of(TOLD_AFTER as u64) {
                // A full channel means that the maps are behind: then the leaves are loaded when they are needed.
                let _full = to_warm.try_send(std::mem::take(&mut found));
            }
            seq += 1;
        }
    }

    /// The work of the thread that brings leaves of hidden maps into memory before their blocks are carried on. Nothing
    /// waits for it.
    pub(crate) fn warm_hidden(&self, found: Receiver<Vec<(u8, u64)>>) {
        let _guard = OnPanic::new(|| drop(self.fail(defect())));
        for blocks in found {
            for (level, addr) in blocks {
                let source = Source::strict(&self.log, level);
                self.hidden.warm(&self.health, level, addr, 1, &source);
            }
        }
    }

    /// Which of the slots that stripe `from` lists of level 0 are live, as far as is known now. What is not live now will
    /// never be again.
    fn still_live(&self, from: u64, listed: &[Listed]) -> Vec<bool> {
        let source = Source::strict(&self.log, 0);
        for (entry, _) in listed {
            if let Entry::Data(addr) | Entry::Lost(addr) = entry {
                warm(*addr, 1, &source, |act| act(&mut self.public().tree));
            }
        }
        let mut public = self.public();
        let entries: Vec<Entry> = listed.iter().map(|(entry, _)| *entry).collect();
        let mut live = vec![false; listed.len()];
        match live_slots(&mut public.tree, &entries, from, self.log.params.stride(), &source) {
            Ok(slots) => slots.into_iter().for_each(|slot| live[slot] = true),
            // What the map would say of it is found out when the stripe is opened.
            Err(_) => live.fill(true),
        }
        live
    }
}

impl Log {
    /// Reads the stripe that stripe `seq` carries on. `is_live` says which of its public slots need to be decrypted. A
    /// block that cannot be read any more, after retries, is listed as lost; a page or a record is dropped, for its reader
    /// finds that out.
    pub(crate) fn read_carried(
        &self,
        seq: u64,
        is_live: impl FnOnce(u64, &[Listed]) -> Vec<bool>,
    ) -> Result<Carried> {
        let from = self.params.carried_by(seq).unwrap_or(0);
        let (public, hidden) = (self.empty_slots(false), self.empty_slots(true));
        let mut carried = Carried { from, lost_pages: Vec::new(), public, hidden };
        if from == 0 {
            return Ok(carried);
        }
        let Some(summary) = self.summary_or_lose(from)? else {
            self.carry_lost(from, &mut carried)?;
            return Ok(carried);
        };
        let live = is_live(from, &summary.public.entries);
        if live.contains(&true) {
            let given = self.read_run(self.slot_offset(0, from, 0), &mut carried.public.blocks);
            let listed = summary.public.entries.iter().enumerate();
            for (slot, (entry, tag)) in listed.filter(|(slot, _)| live[*slot]) {
                let opens = |block: &mut [u8]| {
                    open_slot(&summary.key, from, slot, entry.pack(), tag, block).is_ok() && given[slot]
                };
                if !carried.public.take_over(0, slot, *entry, opens) {
                    carried.lost_pages.push((0, slot, *entry));
                }
            }
        }
        let given = self.read_run(self.slot_offset(1, from, 0), &mut carried.hidden.blocks);
        self.carry_hidden(from, &summary, &given, &mut carried)?;
        Ok(carried)
    }

    /// Reads neighbouring blocks. Returns which of them the medium gave; the others are zeros.
    fn read_run(&self, offset: u64, buf: &mut [u8]) -> Vec<bool> {
        if self.medium.read_at(offset, buf).is_ok() {
            return vec![true; buf.len() / BLOCK_SIZE];
        }
        let offsets = (offset..).step_by(BLOCK_SIZE);
        offsets
            .zip(buf.chunks_exact_mut(BLOCK_SIZE))
            .map(|(at, block)| {
                let read = self.read_or_lose(at, block).is_ok();
                if !read {
                    block.fill(0);
                }
                read
            })
            .collect()
    }

    /// The summary of a stripe that is about to be overwritten; none if it is damaged. Errors: a medium that reads nothing at
    /// all.
    fn summary_or_lose(&self, from: u64) -> Result<Option<Summary>> {
        let mut block = [0; BLOCK_SIZE];
        match self.read_or_lose(self.params.offset(from), &mut block) {
            Ok(()) => {
                let summary = Summary::open(&self.params, &self.keys[0], &block)?;
                Ok(summary.filter(|found| found.public.seq == from))
            }
            Err(e) if !self.reads_at_all() => Err(e),
            Err(_) => Ok(None),
        }
    }

    fn carry_hidden(
        &self,
        from: u64,
        summary: &Summary,
        given: &[bool],
        carried: &mut Carried,
    ) -> Result<()> {
        let keys = self.stripe_keys(&summary.salt)?;
        let listed = self.owned_entries(summary, &keys);
        for (slot, (owner, entry, tag)) in listed.into_iter().enumerate() {
            let key: &WriteKey = &keys[usize::from(owner)];
            let opens = |block: &mut [u8]| {
                open_slot(key, from, slot, entry.pack(), &tag, block).is_ok() && given[slot]
            };
            if !carried.hidden.take_over(owner, slot, entry, opens) {
                carried.lost_pages.push((owner, slot, entry));
            }
        }
        Ok(())
    }

    /// What the hidden slots of a stripe hold: for each the level that owns it, or a throwaway level, the entry, and its tag.
    fn owned_entries(&self, summary: &Summary, keys: &[WriteKey]) -> Vec<(u8, Entry, [u8; 16])> {
        let nothing = |slot| (self.owner(slot), Entry::Empty, [0; 16]);
        let mut owned: Vec<_> = (0..self.params.hidden_slots()).map(nothing).collect();
        for level in 1..self.levels() as u8 {
            let slots = self.params.slots(level);
            let listed = summary.hidden_entries(&keys[usize::from(level)], slots.clone());
            for (slot, (entry, tag)) in slots.zip(listed).filter(|(_, (entry, _))| *entry != Entry::Empty) {
                owned[slot] = (level, entry, tag);
            }
        }
        owned
    }

    /// The summary of stripe `from` cannot be read: what it listed is known from the echo in the stripe after it, and lost.
    /// Of what the echo does not say either, the map goes on naming the slot, and readers find out.
    fn carry_lost(&self, from: u64, carried: &mut Carried) -> Result<()> {
        let Some(next) = self.summary_if_read(from + 1)? else { return Ok(()) };
        for (slot, entry) in next.public.echo.iter().enumerate() {
            if !carried.public.take_over(0, slot, *entry, |_| false) {
                carried.lost_pages.push((0, slot, *entry));
            }
        }
        let keys = self.stripe_keys(&next.salt)?;
        for level in 1..self.levels() as u8 {
            let slots = self.params.slots(level);
            let echo = next.hidden_echo(&keys[usize::from(level)], slots.clone());
            for (slot, entry) in slots.zip(echo).filter(|(_, entry)| *entry != Entry::Empty) {
                if !carried.hidden.take_over(level, slot, entry, |_| false) {
                    carried.lost_pages.push((level, slot, entry));
                }
            }
        }
        Ok(())
    }

    /// Drops the slots of `plain`, which comes from stripe `from`, that the map of a level does not name any more. Pages among
    /// `lost_pages` that the map still names are written anew, as far as memory has them.
    pub(crate) fn drop_stale(
        &self,
        level: u8,
        from: u64,
        tree: &mut Tree,
        plain: &mut Plain,
        lost_pages: &[(u8, usize, Entry)],
        source: &Source<'_>,
    ) -> Result<()> {
        for (_, slot, page) in lost_pages.iter().filter(|(owner, ..)| *owner == level) {
            let mut alone = vec![Entry::Empty; slot + 1];
            alone[*slot] = *page;
            if !live_slots(tree, &alone, from, self.params.stride(), source)?.is_empty() {
                tree.rewrite(*page);
            }
        }
        let of_level = |(owner, entry): &(u8, Entry)| if *owner == level { *entry } else { Entry::Empty };
        let entries: Vec<Entry> = plain.entries.iter().map(of_level).collect();
        let live = live_slots(tree, &entries, from, self.params.stride(), source)?;
        for (slot, entry) in entries.iter().enumerate() {
            if *entry != Entry::Empty && !live.contains(&slot) {
                plain.clear(slot);
            }
        }
        Ok(())
    }
}

impl Plain {
    /// Takes over a slot whose ciphertext lies in it, if it `opens`; a block that does not is lost. An empty slot is opened
    /// too, for the time it takes. False if it is a page that is lost.
    fn take_over(
        &mut self,
        level: u8,
        slot: usize,
        entry: Entry,
        opens: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let block = &mut self.blocks[slot * BLOCK_SIZE..(slot + 1) * BLOCK_SIZE];
        let opened = opens(block);
        let kept = match entry {
            Entry::Lost(_) | Entry::Empty => entry,
            entry if opened => entry,
            Entry::Data(addr) => Entry::Lost(addr),
            Entry::Page { .. } | Entry::Trim { .. } => Entry::Empty,
        };
        if let Entry::Lost(_) = kept {
            block.fill(0);
        }
        self.entries[slot] = if kept == Entry::Empty { (0, kept) } else { (level, kept) };
        kept != Entry::Empty || !matches!(entry, Entry::Page { .. })
    }
}
