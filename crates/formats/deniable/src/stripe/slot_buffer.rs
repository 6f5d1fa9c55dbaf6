//! The plaintext of the public or the hidden slots of a stripe.
//!
//! Invariants: the bytes of a slot are valid only while the slot is listed with an entry. An empty
//! slot has old bytes of its memory, which never go to a medium. All bytes are wiped when the
//! memory is freed.

use crate::place::Slot;
use lacuna_contracts::BLOCK_SIZE;
use lacuna_levels::SlotEntry;

/// The level and the entry of each slot.
pub(crate) type LevelEntries = Vec<(u8, SlotEntry)>;

const EMPTY: (u8, SlotEntry) = (0, SlotEntry::Empty);
static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

/// Slots in memory, with their plaintext.
#[derive(Default)]
pub(crate) struct SlotBuffer {
    entries: LevelEntries,
    /// The blocks of the slots, one after another.
    blocks: lacuna_contracts::WipeOnDrop<Vec<u8>>,
}

impl SlotBuffer {
    /// Empty slots, `slots` of them.
    pub(crate) fn new(slots: usize) -> SlotBuffer {
        let blocks = lacuna_contracts::WipeOnDrop::new(vec![0; slots * BLOCK_SIZE]);
        SlotBuffer { entries: vec![EMPTY; slots], blocks }
    }

    /// No slots.
    pub(crate) const fn none() -> SlotBuffer {
        SlotBuffer { entries: Vec::new(), blocks: lacuna_contracts::WipeOnDrop::new(Vec::new()) }
    }

    /// Empties the slots, and keeps their memory.
    pub(crate) fn into_empty(mut self) -> SlotBuffer {
        self.entries.fill(EMPTY);
        self
    }

    /// Wipes the old bytes of the memory if no read is going to overwrite them. All slots must be
    /// empty.
    pub(crate) fn wipe(&mut self) {
        lacuna_contracts::wipe(&mut self.blocks);
    }

    /// Level and entry of each slot.
    pub(crate) fn entries(&self) -> &[(u8, SlotEntry)] {
        &self.entries
    }

    /// The entry of each slot of a level; other slots are empty.
    pub(crate) fn entries_of(&self, level: u8) -> Vec<SlotEntry> {
        let of_level =
            |(owner, entry): &(u8, SlotEntry)| if *owner == level { *entry } else { SlotEntry::Empty };
        self.entries.iter().map(of_level).collect()
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.entries.len()
    }

    /// Whether a slot is empty.
    pub(crate) fn is_empty(&self, slot: Slot) -> bool {
        self.entries[slot.index()].1 == SlotEntry::Empty
    }

    /// The bytes of all slots, for a read.
    pub(crate) fn blocks_mut(&mut self) -> &mut [u8] {
        &mut self.blocks
    }

    fn block_mut(&mut self, slot: Slot) -> &mut [u8] {
        &mut self.blocks[slot.index() * BLOCK_SIZE..][..BLOCK_SIZE]
    }

    /// Lists `entry` of `level` in a slot, and returns the bytes of the slot, to be filled.
    pub(crate) fn put(&mut self, level: u8, slot: Slot, entry: SlotEntry) -> &mut [u8] {
        self.entries[slot.index()] = (level, entry);
        self.block_mut(slot)
    }

    /// Empties a slot.
    pub(crate) fn clear(&mut self, slot: Slot) {
        self.entries[slot.index()] = EMPTY;
    }

    /// The slot that holds this entry of a level, if there is one.
    pub(crate) fn slot_of(&self, level: u8, entry: SlotEntry) -> Option<Slot> {
        self.entries.iter().position(|held| *held == (level, entry)).map(Slot::nth)
    }

    /// The block in a slot, if the slot holds this entry of the level.
    pub(crate) fn block(&self, level: u8, slot: Slot, entry: SlotEntry) -> Option<&[u8]> {
        self.blocks(level, slot, &[entry]).next()?
    }

    /// The same for neighbouring slots, starting at `first`.
    pub(crate) fn blocks<'a>(
        &'a self,
        level: u8,
        first: Slot,
        entries: &[SlotEntry],
    ) -> impl Iterator<Item = Option<&'a [u8]>> {
        (first.index()..).zip(entries).map(move |(at, entry)| {
            let found = self.entries.get(at) == Some(&(level, *entry));
            found.then(|| &self.blocks[at * BLOCK_SIZE..][..BLOCK_SIZE])
        })
    }

    /// Each slot with its level, its entry and the bytes to encrypt: zeros for an empty slot.
    pub(crate) fn to_encrypt(&self) -> impl Iterator<Item = (Slot, u8, SlotEntry, &[u8])> {
        let listed = Slot::all(self.slots()).zip(&self.entries).zip(self.blocks.chunks_exact(BLOCK_SIZE));
        listed.map(|((slot, (level, entry)), block)| {
            (slot, *level, *entry, if *entry == SlotEntry::Empty { &ZEROS[..] } else { block })
        })
    }

    /// Takes over a slot that has its ciphertext in memory. If `opens` fails, a block is listed as
    /// lost, and a page or record is dropped. An empty slot is opened too, so that it takes the
    /// same time. Returns false if a page was lost.
    pub(crate) fn decrypt_slot(
        &mut self,
        level: u8,
        slot: Slot,
        entry: SlotEntry,
        opens: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let block = self.block_mut(slot);
        let opened = opens(block);
        let kept = match entry {
            SlotEntry::Lost(_) | SlotEntry::Empty => entry,
            entry if opened => entry,
            SlotEntry::Data(addr) => SlotEntry::Lost(addr),
            SlotEntry::Page { .. } | SlotEntry::Trim { .. } => SlotEntry::Empty,
        };
        if let SlotEntry::Lost(_) = kept {
            block.fill(0);
        }
        self.entries[slot.index()] = if kept == SlotEntry::Empty { EMPTY } else { (level, kept) };
        kept != SlotEntry::Empty || !matches!(entry, SlotEntry::Page { .. })
    }
}
