//! The hidden slots of one stripe: what they carry on, and what they take in (Table 1 of the paper: existing, then new,
//! then dummy).
//!
//! Each level has slots of its own, so what one level does is nothing to another (deniability contract); on a disk of
//! version 1 all levels share all slots.

use crate::carrier::Carried;
use crate::core::Core;
use crate::log::Plain;
use crate::params::Version;
use crate::place::Place;
use crate::source::Source;
use crate::trims;
use lacuna_core::{BLOCK_SIZE, Result};
use lacuna_levels::{Entry, HiddenLevel, HiddenState, MapState};
use std::ops::Range;

/// A stripe whose hidden slots are being filled.
pub(crate) struct Filling<'a> {
    core: &'a Core,
    seq: u64,
    /// The stripe that it carries on.
    from: u64,
    plain: Plain,
}

impl<'a> Filling<'a> {
    /// The slots of stripe `seq`, filled from what `carried` has of the stripe a stride before and from what the levels have; and
    /// the states of their maps.
    pub(crate) fn fill(core: &'a Core, seq: u64, carried: Carried) -> Result<(Plain, Vec<MapState>)> {
        let mut filling = Filling { core, seq, from: carried.from, plain: carried.hidden };
        let lost = &carried.lost_pages;
        let levels = 1..=core.hidden.count() as u8;
        let mut roots = Vec::new();
        if let Version::Shared { .. } = core.log.params.version {
            // What any level carries on goes before what any takes in.
            let mut all = core.hidden.lock_all(&core.health);
            for (level, state) in levels.clone().zip(&mut all) {
                filling.carry(level, &mut state.level, lost)?;
            }
            for (level, state) in levels.zip(&mut all) {
                roots.push(filling.finish(level, state)?);
            }
        } else {
            // One after another: no level waits for another's map.
            for level in levels {
                let mut state = core.hidden.lock(&core.health, level);
                filling.carry(level, &mut state.level, lost)?;
                roots.push(filling.finish(level, &mut state)?);
            }
        }
        Ok((filling.plain, roots))
    }

    fn carry(&mut self, level: u8, state: &mut HiddenLevel, lost: &[(u8, usize, Entry)]) -> Result<()> {
        let log = &self.core.log;
        let source = Source::lenient(log, level);
        log.drop_stale(level, self.from, &mut state.tree, &mut self.plain, lost, &source)
    }

    /// Takes what a level has, and tells those who wait for that. Returns the state of its map.
    fn finish(&mut self, level: u8, state: &mut HiddenState) -> Result<MapState> {
        self.take(level, &mut state.level)?;
        self.core.hidden.passed(level, state, self.seq);
        Ok(state.level.tree.state())
    }

    fn source(&self, level: u8) -> Source<'_> {
        Source::filling(&self.core.log, level, self.seq, &self.plain)
    }

    fn slots(&self, level: u8) -> Range<usize> {
        self.core.log.params.slots(level)
    }

    fn free(&self, level: u8) -> Option<u8> {
        self.slots(level).find(|slot| self.plain.entries[*slot].1 == Entry::Empty).map(|slot| slot as u8)
    }

    fn occupied(&self, level: u8) -> usize {
        self.plain.entries[self.slots(level)].iter().filter(|(_, entry)| *entry != Entry::Empty).count()
    }

    /// The slot of a block that was carried on to here.
    fn held(&self, level: u8, addr: u64) -> Option<u8> {
        let slot = self.plain.slot_of(level, Entry::Data(addr));
        slot.or_else(|| self.plain.slot_of(level, Entry::Lost(addr))).map(|slot| slot as u8)
    }

    /// Takes what a level has: discards, pages of its map that are due, blocks.
    fn take(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        self.take_trims(level, state)?;
        for _ in 0..state.tree.due(self.seq) {
            let Some(slot) = self.free(level) else { return Ok(()) };
            let mut block = [0; BLOCK_SIZE];
            let place = Place { seq: self.seq, slot };
            let Some(entry) = state.tree.emit(place.pack(), &self.source(level), &mut block)? else { break };
            if let Some(old) = self.plain.slot_of(level, entry) {
                self.plain.clear(old);
            }
            self.plain.put(level, usize::from(slot), entry).copy_from_slice(&block);
        }
        if state.queue.trims().is_empty() { self.take_blocks(level, state) } else { Ok(()) }
    }

    fn take_trims(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        // Each makes pages of the map wait to be written: not too many.
        if state.queue.trims().is_empty() || state.tree.crowded() {
            return Ok(());
        }
        let Some(slot) = self.free(level) else { return Ok(()) };
        let some = state.queue.trims().len().min(trims::MOST_RANGES);
        for &(first, count) in &state.queue.trims()[..some] {
            state.tree.clear(first, count, &self.source(level))?;
            // Records are repeated before the data of their stripe: what they cover must not be in it.
            for slot in 0..self.plain.entries.len() {
                if let (held, Entry::Data(addr) | Entry::Lost(addr)) = self.plain.entries[slot]
                    && held == level
                    && (first..first + count).contains(&addr)
                {
                    self.plain.clear(slot);
                }
            }
        }
        let block = self.plain.put(level, usize::from(slot), Entry::Trim { origin: self.seq });
        block.fill(0);
        for (at, (first, count)) in state.queue.pop_trims(some).enumerate() {
            trims::put(block, at, first, count);
        }
        Ok(())
    }

    fn take_blocks(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        let HiddenLevel { tree, queue } = state;
        let params = &self.core.log.params;
        let mut occupied = self.occupied(level);
        for taken in 0.. {
            let Some(addr) = queue.front() else { return Ok(()) };
            // A stripe holds a block once: over its old version, if that was carried on into this stripe.
            let held = self.held(level, addr);
            let Some(slot) = held.or_else(|| self.free(level)) else { return Ok(()) };
            let first_write = tree.get(addr, &self.source(level))? == 0;
            let most =
                if first_write { params.hidden_first_writes(level) } else { params.hidden_overwrites(level) };
            // At least one, so that nothing ever waits for a lap while there are free slots.
            if held.is_none() && taken > 0 && occupied >= most {
                return Ok(());
            }
            let place = Place { seq: self.seq, slot };
            tree.set(addr, place.pack(), &self.source(level))?;
            let waiting = queue.pop().expect("it was just seen");
            self.plain.put(level, usize::from(slot), Entry::Data(addr)).copy_from_slice(&waiting.block);
            occupied += usize::from(held.is_none());
        }
        Ok(())
    }
}
