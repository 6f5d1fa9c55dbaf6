//! The head of a batch, one block of the journal: which cells the batch rewrites, and, to those who have the key of a level,
//! what the level has in them.
//!
//! ```text
//!    0  salt            32  random
//!   32  tag             16  of the public part, over everything after it as well
//!   48  digest          16  keyed hash of the starts of the sectors of the record
//!   64  levels    4 x  120  the state of the map of each level and what it discarded, or random
//!  544  cells   224 x    8  what the level of the region put into a cell, or random
//! 2336  stash    48 x    8  what a slot of the stash holds of level 0
//! 2720  public part         encrypted under the key of level 0, up to the end of the block
//! ```
//!
//! What a level put into cells is covered by a key stream; the tag of what the level says of itself is over it too. A cell
//! that stays what it was, or that nobody owns, is listed as empty. The public part numbers groups of cells. Heads of version
//! 1 have more levels, covers of 16 bytes that tell by themselves whether they are of a level, and numbers of single cells.

use crate::limits::{
    CELL_BITS, GROUP, HIDDEN_LEVELS, JOURNAL_START, MOST_CELLS, MOST_CELLS_V1, MOST_LEVELS_V1, MOST_TRIMS,
    STASH_SLOTS, STASH_SLOTS_V1,
};
use crate::params::{Params, Version};
use crate::place::{BatchSeq, Cell, StashSlot};
use crate::progress::Claims;
use lacuna_core::{BLOCK_SIZE, Record, Result, Secret};
use lacuna_crypto::constant_time_eq;
use lacuna_levels::{Entry, MapState, SALT_LEN, STATE_LEN, TAG_LEN, WriteKey};
use std::ops::Range;

/// Levels that a head has room for, level 0 with them.
const MOST_LEVELS: usize = HIDDEN_LEVELS + 1;

const RECORD_PLAIN: usize = TRIMS_AT + MOST_TRIMS * 16;
/// Where the ranges begin in what a level says of itself: after its state and the beginning of its cycle.
const TRIMS_AT: usize = STATE_LEN + 8;
const RECORD_LEN: usize = RECORD_PLAIN + TAG_LEN;
const TAG_AT: usize = SALT_LEN;
const DIGEST_AT: usize = TAG_AT + TAG_LEN;
const LEVELS_AT: usize = DIGEST_AT + TAG_LEN;
/// Bytes of the public part before its cells.
const PUBLIC_FIXED: usize = 40;
/// Bytes of the number of a group of cells.
const CELL_NUMBER: usize = CELL_BITS as usize / 8;
/// Marks, in version 1, the number of a page that was displaced; no map has so many.
const MOVED: u64 = 1 << 47;
/// A batch that no disk lives to see.
const MOST_SEQ: u64 = (1 << 48) - 1;

/// Where things stand in a head, and how long covers and numbers of cells are.
#[derive(Clone, Copy)]
struct Shape {
    cells_at: usize,
    stash_at: usize,
    public_at: usize,
    cover: usize,
    number: usize,
    /// Cells that a number stands for.
    group: u64,
}

const fn shape(levels: usize, cells: usize, stash: usize, cover: usize, number: usize, group: u64) -> Shape {
    let cells_at = LEVELS_AT + levels * RECORD_LEN;
    let stash_at = cells_at + cells * cover;
    Shape { cells_at, stash_at, public_at: stash_at + stash * cover, cover, number, group }
}

const NOW: Shape = shape(MOST_LEVELS, MOST_CELLS, STASH_SLOTS, 8, CELL_NUMBER, GROUP);
const FIRST: Shape = shape(MOST_LEVELS_V1, MOST_CELLS_V1, STASH_SLOTS_V1, 16, 8, 1);
const _: () = assert!(NOW.public_at + PUBLIC_FIXED + MOST_CELLS / GROUP as usize * CELL_NUMBER <= BLOCK_SIZE);
const _: () = assert!(FIRST.public_at == 3072 && JOURNAL_START.is_multiple_of(BLOCK_SIZE as u64));

impl Shape {
    fn of(params: &Params) -> Shape {
        if params.version == Version::Two { NOW } else { FIRST }
    }

    fn covers(&self, slots: Range<usize>) -> Range<usize> {
        self.cells_at + slots.start * self.cover..self.cells_at + slots.end * self.cover
    }
}

/// What is encrypted under one key, so that nonces differ.
#[derive(Clone, Copy)]
enum Domain {
    Public = 1,
    Digest = 2,
    Level = 3,
    Cell = 4,
    Stash = 5,
}

/// The key of a level for one batch.
pub(crate) fn batch_key(level: &Secret<32>, salt: &[u8; SALT_LEN]) -> Result<WriteKey> {
    WriteKey::derive(level, "oblivious batch", salt)
}

/// What everybody with the key of level 0 knows of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicPart {
    /// Its number.
    pub(crate) seq: BatchSeq,
    /// The first half of the salt of the batch before.
    pub(crate) previous: [u8; 16],
    /// What was durable when it was written.
    pub(crate) claims: Claims,
    /// The cells that it rewrites: whole groups.
    pub(crate) cells: Vec<Cell>,
}

impl PublicPart {
    fn encode(&self, shape: &Shape, out: &mut [u8]) {
        out.fill(0);
        out[0..8].copy_from_slice(&self.seq.0.to_le_bytes());
        out[8..24].copy_from_slice(&self.previous);
        out[24..32].copy_from_slice(&self.claims.synced.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.claims.applied.0.to_le_bytes());
        let firsts = self.cells.iter().step_by(shape.group as usize);
        for (out, cell) in out[PUBLIC_FIXED..].chunks_exact_mut(shape.number).zip(firsts) {
            out.copy_from_slice(&(cell.0 / shape.group).to_le_bytes()[..shape.number]);
        }
    }

    fn decode(bytes: &[u8], shape: &Shape, params: &Params) -> Option<PublicPart> {
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        let word = |at: usize| number(&bytes[at..at + 8]);
        let numbers = bytes[PUBLIC_FIXED..].chunks_exact(shape.number);
        let part = PublicPart {
            seq: BatchSeq(word(0)),
            previous: bytes[8..24].try_into().ok()?,
            claims: Claims { synced: BatchSeq(word(24)), applied: BatchSeq(word(32)) },
            cells: numbers
                .take(params.batch_cells() / shape.group as usize)
                .map(|bytes| number(bytes).saturating_mul(shape.group))
                .flat_map(|first| (0..shape.group).map(move |cell| Cell(first.saturating_add(cell))))
                .collect(),
        };
        let sane = (1..=MOST_SEQ).contains(&part.seq.0)
            && part.claims.synced < part.seq
            && part.claims.applied <= part.claims.synced
            && part.has_cells_of(params);
        sane.then_some(part)
    }

    /// Whether every cell is one of the region that the batch takes it from.
    fn has_cells_of(&self, params: &Params) -> bool {
        if params.version != Version::Two {
            return self.cells.iter().all(|cell| cell.0 < params.cells);
        }
        let mut cells = self.cells.iter();
        params.regions().iter().all(|region| cells.by_ref().take(region.drawn).all(|cell| region.has(*cell)))
    }
}

/// What a level says of itself in a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelRecord {
    pub(crate) state: MapState,
    /// The batch with which the cycle began that is writing pages of the map; 0 if none is.
    pub(crate) cycle: BatchSeq,
    /// Ranges discarded since the batch before: first block and length. They come before what the batch writes.
    pub(crate) trims: Vec<(u64, u64)>,
}

impl LevelRecord {
    pub(crate) fn encode(&self) -> [u8; RECORD_PLAIN] {
        debug_assert!(self.trims.len() <= MOST_TRIMS);
        let mut out = [0; RECORD_PLAIN];
        out[..STATE_LEN].copy_from_slice(&self.state.encode());
        out[STATE_LEN..TRIMS_AT].copy_from_slice(&self.cycle.0.to_le_bytes());
        for (out, (first, count)) in out[TRIMS_AT..].chunks_exact_mut(16).zip(&self.trims) {
            out[..8].copy_from_slice(&first.to_le_bytes());
            out[8..].copy_from_slice(&count.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8; RECORD_PLAIN]) -> LevelRecord {
        let ranges =
            bytes[TRIMS_AT..].chunks_exact(16).map(|range| (Record(range).u64(0), Record(range).u64(8)));
        LevelRecord {
            state: MapState::decode(&bytes[..STATE_LEN]),
            cycle: BatchSeq(Record(bytes).u64(STATE_LEN)),
            trims: ranges.take_while(|(_, count)| *count > 0).collect(),
        }
    }
}

/// A head that is being written. What no level says in it is random from the start.
pub(crate) struct Draft {
    block: Box<[u8; BLOCK_SIZE]>,
}

impl Draft {
    /// `block` is random.
    pub(crate) fn new(salt: [u8; SALT_LEN], mut block: Box<[u8; BLOCK_SIZE]>) -> Draft {
        block[..SALT_LEN].copy_from_slice(&salt);
        Draft { block }
    }

    fn cover(&mut self, key: &WriteKey, domain: Domain, at: usize, slot: usize, entry: Entry) {
        let cover = key.cover(domain as u8, slot as u8, entry);
        self.block[at..at + NOW.cover].copy_from_slice(&cover[..NOW.cover]);
    }

    /// A level says what it put into its cells, and what it left in the stash if it is level 0, and then of itself.
    pub(crate) fn put_level(
        &mut self,
        key: &WriteKey,
        level: u8,
        slots: Range<usize>,
        entries: &[Entry],
        stashed: &[Entry],
        record: &LevelRecord,
    ) {
        debug_assert!(slots.len() == entries.len() && (level == 0 || stashed.is_empty()));
        for (slot, entry) in slots.clone().zip(entries) {
            self.cover(key, Domain::Cell, NOW.covers(slot..slot + 1).start, slot, *entry);
        }
        if level == 0 {
            for slot in 0..STASH_SLOTS {
                let entry = stashed.get(slot).copied().unwrap_or(Entry::Empty);
                self.cover(key, Domain::Stash, NOW.stash_at + slot * NOW.cover, slot, entry);
            }
        }
        let at = LEVELS_AT + usize::from(level) * RECORD_LEN;
        let bound = bound_to_level(&self.block, &NOW, level, slots);
        let (body, tag) = self.block[at..at + RECORD_LEN].split_at_mut(RECORD_PLAIN);
        tag.copy_from_slice(&key.seal(Domain::Level as u8, level, &bound, &record.encode(), body));
    }

    /// Ends it. `key` is that of level 0, `record` what goes to the ring.
    pub(crate) fn finish(
        mut self,
        key: &WriteKey,
        public: &PublicPart,
        record: &[u8],
    ) -> Box<[u8; BLOCK_SIZE]> {
        let mut plain = [0; BLOCK_SIZE - NOW.public_at];
        public.encode(&NOW, &mut plain);
        self.block[DIGEST_AT..LEVELS_AT].copy_from_slice(&key.digest(Domain::Digest as u8, record));
        let (clear, body) = self.block.split_at_mut(NOW.public_at);
        let tag = key.seal(Domain::Public as u8, 0, &clear[DIGEST_AT..], &plain, body);
        clear[TAG_AT..DIGEST_AT].copy_from_slice(&tag);
        self.block
    }
}

/// What the tag of a level is over beside what the level says of itself: its covers, as they stand.
fn bound_to_level(block: &[u8; BLOCK_SIZE], shape: &Shape, level: u8, slots: Range<usize>) -> Vec<u8> {
    let stash = if level == 0 { shape.stash_at..shape.public_at } else { 0..0 };
    [&block[shape.covers(slots)], &block[stash]].concat()
}

/// A head that verified under the key of level 0.
pub(crate) struct Head {
    pub(crate) salt: [u8; SALT_LEN],
    pub(crate) public: PublicPart,
    key: WriteKey,
    block: Box<[u8; BLOCK_SIZE]>,
}

impl Head {
    /// Reads a head. None if it is not one that this level-0 key wrote.
    pub(crate) fn open(
        params: &Params,
        level0: &Secret<32>,
        block: &[u8; BLOCK_SIZE],
    ) -> Result<Option<Head>> {
        let shape = Shape::of(params);
        let salt = block[..SALT_LEN].try_into().expect("the salt");
        let key = batch_key(level0, &salt)?;
        let mut plain = block[shape.public_at..].to_vec();
        let tag = block[TAG_AT..DIGEST_AT].try_into().expect("the tag");
        let clear = &block[DIGEST_AT..shape.public_at];
        if key.open(Domain::Public as u8, 0, clear, &mut plain, &tag).is_err() {
            return Ok(None);
        }
        let public = PublicPart::decode(&plain, &shape, params);
        Ok(public.map(|public| Head { salt, public, key, block: Box::new(*block) }))
    }

    /// The name by which the next batch points to this one.
    pub(crate) fn name(&self) -> [u8; 16] {
        self.salt[..16].try_into().expect("16 of 32 bytes")
    }

    /// Whether this is the record that it was written with, as far as its sectors go.
    pub(crate) fn has_record(&self, record: &[u8]) -> bool {
        let digest = &self.block[DIGEST_AT..LEVELS_AT];
        constant_time_eq(&self.key.digest(Domain::Digest as u8, record), digest)
    }

    /// What a level says of itself, if it was open when this was written. `key` is that of the level for this batch.
    pub(crate) fn level(&self, params: &Params, key: &WriteKey, level: u8) -> Option<LevelRecord> {
        let at = LEVELS_AT + usize::from(level) * RECORD_LEN;
        let (body, tag) = self.block[at..at + RECORD_LEN].split_at(RECORD_PLAIN);
        let mut body: [u8; RECORD_PLAIN] = body.try_into().ok()?;
        let bound = match params.version {
            Version::One { .. } => Vec::new(),
            Version::Two => bound_to_level(&self.block, &NOW, level, params.slots(level)),
        };
        key.open(Domain::Level as u8, level, &bound, &mut body, &tag.try_into().ok()?).ok()?;
        let seq = self.public.seq;
        let sane = |record: &LevelRecord| record.state.covered < seq.0 && record.cycle <= seq;
        Some(LevelRecord::decode(&body)).filter(sane)
    }

    /// What a cover says; of version 2, only once the level's record verified.
    fn uncover(
        &self,
        shape: &Shape,
        key: &WriteKey,
        domain: Domain,
        at: usize,
        slot: usize,
    ) -> Option<Entry> {
        let cover = &self.block[at..at + shape.cover];
        if shape.cover == 16 {
            return key.uncover(domain as u8, slot as u8, cover);
        }
        // The pad of zeros is the pad.
        let pad = key.cover(domain as u8, slot as u8, Entry::Empty);
        let plain = cover.iter().zip(&pad).rev().fold(0, |plain, (a, b)| plain << 8 | u64::from(a ^ b));
        Entry::unpack(plain).filter(|entry| *entry != Entry::Empty)
    }

    /// What a level put into cells: for each its number, and whether it is a page that says no more than before. The level's
    /// record verified.
    pub(crate) fn entries(&self, params: &Params, key: &WriteKey, level: u8) -> Vec<(Cell, Entry, bool)> {
        let shape = Shape::of(params);
        let listed = |slot: usize| {
            let at = shape.covers(slot..slot + 1).start;
            let cell = self.public.cells[slot];
            Some(match self.uncover(&shape, key, Domain::Cell, at, slot)? {
                Entry::Page { depth, index } if index & MOVED != 0 => {
                    (cell, Entry::Page { depth, index: index & !MOVED }, true)
                }
                entry => (cell, entry, false),
            })
        };
        params.slots(level).filter_map(listed).collect()
    }

    /// What a level left in the stash: slots, and what is in them. The level's record verified.
    pub(crate) fn stash(&self, params: &Params, key: &WriteKey, level: u8) -> Vec<(StashSlot, Entry)> {
        let shape = Shape::of(params);
        if level > 0 && params.version == Version::Two {
            return Vec::new();
        }
        let listed = |slot: usize| {
            let at = shape.stash_at + slot * shape.cover;
            Some((StashSlot(slot), self.uncover(&shape, key, Domain::Stash, at, slot)?))
        };
        (0..params.stash_slots()).filter_map(listed).collect()
    }
}
