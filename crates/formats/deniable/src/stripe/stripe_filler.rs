//! Fills the hidden slots of one stripe: first with carried blocks, then with new ones; empty slots
//! are dummies (PD-DM, Table 1: existing, then new, then dummy).
//!
//! Each level has slots of its own, so the activity of one level does not affect another
//! (deniability contract).

use crate::discard_record;
use crate::log::Log;
use crate::params::Params;
use crate::place::{Slot, SlotPlace, StripeSeq};
use crate::stripe::carried::CarriedSlots;
use crate::stripe::map_page_reader::MapPageReader;
use crate::stripe::slot_buffer::SlotBuffer;
use lacuna_contracts::{BLOCK_SIZE, FailStop, Result};
use lacuna_levels::{HiddenLevels, MapState, QueuedLevel, SlotEntry};

/// A stripe with hidden slots that are being filled.
pub(crate) struct StripeFiller<'a> {
    levels: &'a HiddenLevels,
    health: &'a FailStop,
    log: &'a Log,
    seq: StripeSeq,
    carried: CarriedSlots,
}

impl<'a> StripeFiller<'a> {
    /// Stripe `seq`, with the slots that it carries.
    pub(crate) fn new(
        levels: &'a HiddenLevels,
        health: &'a FailStop,
        log: &'a Log,
        seq: StripeSeq,
        carried: CarriedSlots,
    ) -> StripeFiller<'a> {
        StripeFiller { levels, health, log, seq, carried }
    }

    /// Fills the slots with carried blocks and with queued blocks of the levels. Returns the slots
    /// and the states of the maps.
    pub(crate) fn fill(mut self) -> Result<(SlotBuffer, Vec<MapState>)> {
        let levels = 1..=self.levels.count() as u8;
        let mut roots = Vec::new();
        // One level after another, each under its own lock: no level waits for another's map.
        for level in levels {
            let mut state = self.levels.lock(self.health, level);
            self.carried.drop_stale(level, &mut state.level.tree, self.log)?;
            self.take_queued(level, &mut state.level)?;
            self.levels.mark_filled(level, &mut state, self.seq.0);
            roots.push(state.level.tree.state());
        }
        Ok((self.carried.hidden, roots))
    }

    fn params(&self) -> &'a Params {
        self.log.params()
    }

    fn plain(&mut self) -> &mut SlotBuffer {
        &mut self.carried.hidden
    }

    fn source(&self, level: u8) -> MapPageReader<'_> {
        MapPageReader::filling(self.log, level, self.seq, &self.carried.hidden)
    }

    fn place(&self, slot: Slot) -> u64 {
        SlotPlace { seq: self.seq, slot }.pack()
    }

    fn free_slot(&self, level: u8) -> Option<Slot> {
        self.params().slots(level).map(Slot::nth).find(|slot| self.carried.hidden.is_empty(*slot))
    }

    fn occupied(&self, level: u8) -> usize {
        let slots = self.params().slots(level).map(Slot::nth);
        slots.filter(|slot| !self.carried.hidden.is_empty(*slot)).count()
    }

    /// The slot of a block that was carried into this stripe.
    fn carried_slot(&self, level: u8, addr: u64) -> Option<Slot> {
        let held = |entry| self.carried.hidden.slot_of(level, entry);
        held(SlotEntry::Data(addr)).or_else(|| held(SlotEntry::Lost(addr)))
    }

    /// Takes from a level its discards, the pages of its map that are due, and blocks.
    fn take_queued(&mut self, level: u8, state: &mut QueuedLevel) -> Result<()> {
        self.take_trims(level, state)?;
        for _ in 0..state.tree.pages_due(self.seq.0) {
            let Some(slot) = self.free_slot(level) else { return Ok(()) };
            let mut block = [0; BLOCK_SIZE];
            let page = state.tree.write_next_page(self.place(slot), &self.source(level), &mut block)?;
            let Some(page) = page else { break };
            if let Some(old) = self.plain().slot_of(level, page) {
                self.plain().clear(old);
            }
            self.plain().put(level, slot, page).copy_from_slice(&block);
        }
        if state.queue.trims().is_empty() { self.take_blocks(level, state) } else { Ok(()) }
    }

    fn take_trims(&mut self, level: u8, state: &mut QueuedLevel) -> Result<()> {
        // Each discard makes pages of the map dirty: take none while too many are.
        if state.queue.trims().is_empty() || state.tree.is_over_dirty_limit() {
            return Ok(());
        }
        let Some(slot) = self.free_slot(level) else { return Ok(()) };
        let some = state.queue.trims().len().min(discard_record::MAX_RANGES);
        for &(first, count) in &state.queue.trims()[..some] {
            state.tree.clear(first, count, &self.source(level))?;
            // Replay applies records before the data of their stripe: no block that they cover may
            // be in it.
            let held = self.carried.hidden.entries_of(level);
            for (slot, entry) in Slot::all(held.len()).zip(held) {
                if let SlotEntry::Data(addr) | SlotEntry::Lost(addr) = entry
                    && (first..first + count).contains(&addr)
                {
                    self.plain().clear(slot);
                }
            }
        }
        let origin = self.seq.0;
        let block = self.plain().put(level, slot, SlotEntry::Trim { origin });
        block.fill(0);
        for (at, (first, count)) in state.queue.pop_trims(some).enumerate() {
            discard_record::put(block, at, first, count);
        }
        Ok(())
    }

    fn take_blocks(&mut self, level: u8, state: &mut QueuedLevel) -> Result<()> {
        let QueuedLevel { tree, queue } = state;
        let mut occupied = self.occupied(level);
        for taken in 0.. {
            let Some(addr) = queue.front() else { return Ok(()) };
            // A stripe holds a block once: it replaces its old version, if that was carried into
            // this stripe.
            let held = self.carried_slot(level, addr);
            let Some(slot) = held.or_else(|| self.free_slot(level)) else { return Ok(()) };
            let most = if tree.get(addr, &self.source(level))? == 0 {
                self.params().hidden_first_writes(level)
            } else {
                self.params().hidden_overwrites(level)
            };
            // At least one, so that no block waits for a lap while there are free slots.
            if held.is_none() && taken > 0 && occupied >= most {
                return Ok(());
            }
            tree.set(addr, self.place(slot), &self.source(level))?;
            let block = queue.pop().expect("it was just seen");
            self.plain().put(level, slot, SlotEntry::Data(addr)).copy_from_slice(&block);
            occupied += usize::from(held.is_none());
        }
        Ok(())
    }
}
