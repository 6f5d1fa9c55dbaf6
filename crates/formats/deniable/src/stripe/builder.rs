//! The public slots of the open stripe: the blocks that it carries, and the blocks that it takes
//! in.
//!
//! Invariants: a block or a page is in it once. No record of discards covers a block in the same
//! stripe, because replay applies the records of a stripe before its data.

use crate::discard_record;
use crate::log::Log;
use crate::place::{Slot, SlotPlace, StripeSeq};
use crate::stripe::map_page_reader::MapPageReader;
use crate::stripe::slot_buffer::SlotBuffer;
use lacuna_contracts::BlockAddr;
use lacuna_levels::SlotEntry;
use std::collections::BTreeMap;

/// The open stripe of level 0; without slots while no stripe is open.
#[derive(Default)]
pub(crate) struct StripeBuilder {
    seq: StripeSeq,
    plain: SlotBuffer,
    /// The slots of the blocks in it.
    index: BTreeMap<u64, Slot>,
    /// Free slots, the lowest last.
    free: Vec<Slot>,
    /// The slot that records discards, and its number of ranges.
    trim: Option<(Slot, usize)>,
    /// Whether it holds anything that is stored nowhere else.
    has_new_data: bool,
}

impl StripeBuilder {
    /// Stripe `seq`, which carries the blocks in `plain`.
    pub(crate) fn new(seq: StripeSeq, plain: SlotBuffer) -> StripeBuilder {
        let slots = Slot::all(plain.slots()).zip(plain.entries());
        let index = slots.filter_map(|(slot, (_, entry))| match entry {
            SlotEntry::Data(addr) | SlotEntry::Lost(addr) => Some((*addr, slot)),
            _ => None,
        });
        let index = index.collect();
        let free = Slot::all(plain.slots()).rev().filter(|slot| plain.is_empty(*slot)).collect();
        StripeBuilder { seq, plain, index, free, trim: None, has_new_data: false }
    }

    /// Closes the stripe.
    pub(crate) fn close(self) -> (StripeSeq, SlotBuffer) {
        (self.seq, self.plain)
    }

    pub(crate) fn has_new_data(&self) -> bool {
        self.has_new_data
    }

    /// The pages of level 0, those in the open stripe included.
    pub(crate) fn source<'a>(&'a self, log: &'a Log) -> MapPageReader<'a> {
        MapPageReader::filling(log, 0, self.seq, &self.plain)
    }

    pub(crate) fn place(&self, slot: Slot) -> SlotPlace {
        SlotPlace { seq: self.seq, slot }
    }

    /// The block that was taken in at `place`, if that is in this stripe.
    pub(crate) fn block(&self, place: SlotPlace, addr: BlockAddr) -> Option<&[u8]> {
        if place.seq == self.seq { self.plain.block(0, place.slot, SlotEntry::Data(addr.0)) } else { None }
    }

    /// The slot of a block that the stripe holds.
    pub(crate) fn slot_of(&self, addr: BlockAddr) -> Option<Slot> {
        self.index.get(&addr.0).copied()
    }

    /// A free slot, if fewer than `most` slots are occupied. It stays free until it is filled.
    pub(crate) fn free_slot(&self, most: usize) -> Option<Slot> {
        let occupied = self.plain.slots() - self.free.len();
        self.free.last().copied().filter(|_| occupied < most)
    }

    fn put(&mut self, slot: Slot, entry: SlotEntry) -> &mut [u8] {
        if self.free.last() == Some(&slot) {
            self.free.pop();
        }
        self.plain.put(0, slot, entry)
    }

    fn clear(&mut self, slot: Slot) {
        self.plain.clear(slot);
        self.free.push(slot);
    }

    /// Takes in a block, into its slot or a free one.
    pub(crate) fn put_block(&mut self, addr: BlockAddr, slot: Slot, block: &[u8]) {
        self.put(slot, SlotEntry::Data(addr.0)).copy_from_slice(block);
        self.index.insert(addr.0, slot);
        self.has_new_data = true;
    }

    /// Puts a page of the map into a free slot. An older version that was carried here is dropped.
    pub(crate) fn put_page(&mut self, page: SlotEntry, slot: Slot, block: &[u8]) {
        let old = self.plain.slot_of(0, page);
        self.put(slot, page).copy_from_slice(block);
        old.into_iter().for_each(|old| self.clear(old));
    }

    /// Records a discard, drops the blocks that it covers and returns them. None if there is no
    /// room.
    pub(crate) fn record_discard(&mut self, first: BlockAddr, count: u64) -> Option<Vec<BlockAddr>> {
        let (slot, at) = match self.trim {
            Some((slot, ranges)) if ranges < discard_record::MAX_RANGES => (slot, ranges),
            _ => (self.free_slot(usize::MAX)?, 0),
        };
        let origin = self.seq.0;
        let record = self.put(slot, SlotEntry::Trim { origin });
        if at == 0 {
            record.fill(0);
        }
        discard_record::put(record, at, first.0, count);
        (self.trim, self.has_new_data) = (Some((slot, at + 1)), true);
        let covered: Vec<u64> = self.index.range(first.0..first.0 + count).map(|(addr, _)| *addr).collect();
        for addr in &covered {
            let slot = self.index.remove(addr);
            slot.into_iter().for_each(|slot| self.clear(slot));
        }
        Some(covered.into_iter().map(BlockAddr).collect())
    }
}
