//! The hidden slots of one stripe: what they carry on, and what they take in (Table 1 of the paper: existing, then new,
//! then dummy).

use crate::core::Core;
use crate::log::{Head, Plain};
use crate::place::{Place, homes};
use crate::source::Source;
use crate::trims;
use lacuna_core::{BLOCK_SIZE, Result};
use lacuna_levels::{Entry, HiddenLevel, HiddenState};
use std::sync::MutexGuard;

/// A stripe whose hidden slots are being filled.
pub(crate) struct Filling<'a> {
    core: &'a Core,
    seq: u64,
    plain: Plain,
    occupied: usize,
    /// No slot before it is free.
    lowest: usize,
    /// Whether a block was carried on to here, which a newer version must replace.
    carried: bool,
}

impl<'a> Filling<'a> {
    /// The slots of stripe `seq`, filled from what the levels have.
    /// `heads` are those of the levels in the stripe that it carries on; none if that cannot be read.
    pub(crate) fn fill(
        core: &'a Core,
        seq: u64,
        heads: &[Head],
        levels: &mut [MutexGuard<'_, HiddenState>],
    ) -> Result<Plain> {
        let plain = core.log.empty_slots(true);
        let mut filling = Filling { core, seq, plain, occupied: 0, lowest: 0, carried: false };
        if let Some(from) = core.log.params.carried_by(seq) {
            filling.carry(levels, from, heads)?;
        }
        for (level, state) in (1u8..).zip(levels) {
            filling.take(level, &mut state.level)?;
        }
        Ok(filling.plain)
    }

    fn source(&self, level: u8) -> Source<'_> {
        Source { log: &self.core.log, level, seq: self.seq, plain: &self.plain }
    }

    fn free(&mut self) -> Option<u8> {
        let rest = &self.plain.entries[self.lowest..];
        self.lowest += rest.iter().position(|(_, entry)| *entry == Entry::Empty).unwrap_or(rest.len());
        (self.lowest < self.plain.entries.len()).then_some(self.lowest as u8)
    }

    fn empty(&mut self, slot: usize) {
        self.plain.clear(slot);
        self.occupied -= 1;
        self.lowest = self.lowest.min(slot);
    }

    /// The slot of a block that was carried on to here.
    fn held(&self, level: u8, addr: u64) -> Option<u8> {
        let is_it =
            |held: &(u8, Entry)| *held == (level, Entry::Data(addr)) || *held == (level, Entry::Lost(addr));
        let slot = if self.carried { self.plain.entries.iter().position(is_it) } else { None };
        slot.map(|slot| slot as u8)
    }

    /// Carries on what is valid in the stripe whose place comes up.
    fn carry(&mut self, levels: &mut [MutexGuard<'_, HiddenState>], from: u64, heads: &[Head]) -> Result<()> {
        for ((level, state), head) in (1u8..).zip(levels).zip(heads) {
            let stride = self.core.log.params.stride();
            let homes = homes(&mut state.level.tree, &head.entries, from, stride, &self.source(level))?;
            for (_, entry) in self.core.log.carry(level, from, head, &homes, &mut self.plain)? {
                self.occupied += 1;
                self.carried |= matches!(entry, Entry::Data(_) | Entry::Lost(_));
            }
        }
        Ok(())
    }

    /// Takes what a level has: discards, pages of its map that are due, blocks.
    fn take(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        self.take_trims(level, state)?;
        for _ in 0..state.tree.due(self.seq) {
            let Some(slot) = self.free() else { return Ok(()) };
            let mut block = [0; BLOCK_SIZE];
            let place = Place { seq: self.seq, slot };
            let Some(entry) = state.tree.emit(place.pack(), &self.source(level), &mut block)? else { break };
            if let Some(old) = self.plain.slot_of(level, entry) {
                self.empty(old);
            }
            self.plain.put(level, usize::from(slot), entry).copy_from_slice(&block);
            self.occupied += 1;
        }
        if state.queue.trims().is_empty() { self.take_blocks(level, state) } else { Ok(()) }
    }

    fn take_trims(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        // Each makes pages of the map wait to be written: not too many.
        if state.queue.trims().is_empty() || state.tree.crowded() {
            return Ok(());
        }
        let Some(slot) = self.free() else { return Ok(()) };
        let some = state.queue.trims().len().min(trims::MOST_RANGES);
        for &(first, count) in &state.queue.trims()[..some] {
            state.tree.clear(first, count, &self.source(level))?;
            // Records are repeated before the data of their stripe: what they cover must not be in it.
            for slot in 0..self.plain.entries.len() {
                if let (held, Entry::Data(addr) | Entry::Lost(addr)) = self.plain.entries[slot]
                    && held == level
                    && (first..first + count).contains(&addr)
                {
                    self.empty(slot);
                }
            }
        }
        let block = self.plain.put(level, usize::from(slot), Entry::Trim { origin: self.seq });
        block.fill(0);
        for (at, (first, count)) in state.queue.pop_trims(some).enumerate() {
            trims::put(block, at, first, count);
        }
        self.occupied += 1;
        Ok(())
    }

    fn take_blocks(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        let HiddenLevel { tree, queue } = state;
        let params = &self.core.log.params;
        for taken in 0.. {
            let Some(addr) = queue.front() else { return Ok(()) };
            // A stripe holds a block once: over its old version, if that was carried on into this stripe.
            let held = self.held(level, addr);
            let Some(slot) = held.or_else(|| self.free()) else { return Ok(()) };
            let first_write = tree.get(addr, &self.source(level))? == 0;
            let most = if first_write { params.hidden_first_writes() } else { params.hidden_overwrites() };
            // At least one, so that nothing ever waits for a lap while there are free slots.
            if held.is_none() && taken > 0 && self.occupied >= most {
                return Ok(());
            }
            let place = Place { seq: self.seq, slot };
            tree.set(addr, place.pack(), &self.source(level))?;
            let waiting = queue.pop().expect("it was just seen");
            self.plain.put(level, usize::from(slot), Entry::Data(addr)).copy_from_slice(&waiting.block);
            self.occupied += usize::from(held.is_none());
        }
        Ok(())
    }
}
