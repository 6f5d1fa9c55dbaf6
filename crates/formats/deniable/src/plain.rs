//! The plaintext of the public or the hidden slots of a stripe.
//!
//! Invariants: the bytes of a slot mean something only while the slot is listed with an entry;
//! those of an empty slot are what memory had before, and never go to a medium. All of them are
//! wiped when the memory is given back.

use crate::place::Slot;
use lacuna_contracts::BLOCK_SIZE;
use lacuna_levels::Entry;

/// What slots hold: for each the level and what of it.
pub(crate) type Echo = Vec<(u8, Entry)>;

const EMPTY: (u8, Entry) = (0, Entry::Empty);
static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

/// Slots in memory.
#[derive(Default)]
pub(crate) struct Plain {
    entries: Echo,
    /// The slots one after another.
    blocks: lacuna_contracts::Plain<Vec<u8>>,
}

impl Plain {
    /// As many empty slots.
    pub(crate) fn new(slots: usize) -> Plain {
        let blocks = lacuna_contracts::Plain::new(vec![0; slots * BLOCK_SIZE]);
        Plain { entries: vec![EMPTY; slots], blocks }
    }

    /// No slots.
    pub(crate) const fn none() -> Plain {
        Plain { entries: Vec::new(), blocks: lacuna_contracts::Plain::new(Vec::new()) }
    }

    /// The same slots, emptied, in memory that is there already.
    pub(crate) fn emptied(mut self) -> Plain {
        self.entries.fill(EMPTY);
        self
    }

    /// Wipes what memory had before, where nothing is going to be read over it. All slots are
    /// empty.
    pub(crate) fn wipe(&mut self) {
        lacuna_contracts::wipe(&mut self.blocks);
    }

    /// Level and entry of each slot.
    pub(crate) fn entries(&self) -> &[(u8, Entry)] {
        &self.entries
    }

    /// What each slot holds of a level.
    pub(crate) fn entries_of(&self, level: u8) -> Vec<Entry> {
        let of_level = |(owner, entry): &(u8, Entry)| if *owner == level { *entry } else { Entry::Empty };
        self.entries.iter().map(of_level).collect()
    }

    /// How many slots there are.
    pub(crate) fn slots(&self) -> usize {
        self.entries.len()
    }

    /// Whether a slot holds nothing.
    pub(crate) fn is_empty(&self, slot: Slot) -> bool {
        self.entries[slot.at()].1 == Entry::Empty
    }

    /// The bytes of all slots, to be read into.
    pub(crate) fn blocks_mut(&mut self) -> &mut [u8] {
        &mut self.blocks
    }

    fn block_mut(&mut self, slot: Slot) -> &mut [u8] {
        &mut self.blocks[slot.at() * BLOCK_SIZE..][..BLOCK_SIZE]
    }

    /// The bytes of a slot, to be filled, after `entry` of `level` was noted for it.
    pub(crate) fn put(&mut self, level: u8, slot: Slot, entry: Entry) -> &mut [u8] {
        self.entries[slot.at()] = (level, entry);
        self.block_mut(slot)
    }

    /// Empties a slot.
    pub(crate) fn clear(&mut self, slot: Slot) {
        self.entries[slot.at()] = EMPTY;
    }

    /// The slot that holds this, if there is one.
    pub(crate) fn slot_of(&self, level: u8, entry: Entry) -> Option<Slot> {
        self.entries.iter().position(|held| *held == (level, entry)).map(Slot::nth)
    }

    /// The block in a slot, if the slot is this level's and holds this.
    pub(crate) fn block(&self, level: u8, slot: Slot, entry: Entry) -> Option<&[u8]> {
        self.blocks(level, slot, &[entry]).next()?
    }

    /// The same of neighbouring slots, from `first` on.
    pub(crate) fn blocks<'a>(
        &'a self,
        level: u8,
        first: Slot,
        entries: &[Entry],
    ) -> impl Iterator<Item = Option<&'a [u8]>> {
        (first.at()..).zip(entries).map(move |(at, entry)| {
            let found = self.entries.get(at) == Some(&(level, *entry));
            found.then(|| &self.blocks[at * BLOCK_SIZE..][..BLOCK_SIZE])
        })
    }

    /// Each slot with its level and entry and the bytes to encrypt: zeros for an empty one.
    pub(crate) fn to_encrypt(&self) -> impl Iterator<Item = (Slot, u8, Entry, &[u8])> {
        let listed = Slot::all(self.slots()).zip(&self.entries).zip(self.blocks.chunks_exact(BLOCK_SIZE));
        listed.map(|((slot, (level, entry)), block)| {
            (slot, *level, *entry, if *entry == Entry::Empty { &ZEROS[..] } else { block })
        })
    }

    /// Takes over a slot whose ciphertext lies in it, if it `opens`; a block that does not is lost.
    /// An empty slot is opened too, for the time it takes. False if it is a page that is lost.
    pub(crate) fn take_over(
        &mut self,
        level: u8,
        slot: Slot,
        entry: Entry,
        opens: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let block = self.block_mut(slot);
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
        self.entries[slot.at()] = if kept == Entry::Empty { EMPTY } else { (level, kept) };
        kept != Entry::Empty || !matches!(entry, Entry::Page { .. })
    }
}
