//! The head of a batch, one block of the journal: which cells the batch rewrites, and, to whoever has the key of a level,
//! what the level has in them.
//!
//! ```text
//!    0  salt            32  random
//!   32  tag             16  of the public part, over everything after it as well
//!   48  digest          16  keyed hash of the starts of the sectors of the record
//!   64  levels    8 x  120  the state of the map of each level and what it discarded, or random
//! 1024  cells    96 x   16  what the level that took a cell put there, or random
//! 2560  stash    32 x   16  what a slot of the stash holds, or random
//! 3072  public part         encrypted under the key of level 0, up to the end of the block
//! ```
//!
//! A cell that stays what it was is random here: the map knows it.

use crate::cell::CELL_LEN;
use crate::params::Params;
use lacuna_core::{BLOCK_SIZE, Result, Secret};
use lacuna_crypto::constant_time_eq;
use lacuna_levels::{Entry, MapState, SALT_LEN, STATE_LEN, TAG_LEN, WriteKey};

/// The most cells that a batch rewrites.
pub(crate) const MOST_CELLS: usize = 96;
/// Slots of the stash in the record of a batch. `bound.rs` says how seldom they are too few.
pub(crate) const STASH_SLOTS: usize = 32;
/// Levels that a head has room for, level 0 with them.
pub(crate) const MOST_LEVELS: usize = 8;
/// Discarded ranges that a level can record in a batch.
pub(crate) const MOST_TRIMS: usize = 4;

const RECORD_PLAIN: usize = TRIMS_AT + MOST_TRIMS * 16;
/// Where the ranges begin in what a level says of itself: after its state and the beginning of its cycle.
const TRIMS_AT: usize = STATE_LEN + 8;
pub(crate) const RECORD_LEN: usize = RECORD_PLAIN + TAG_LEN;
const COVER_LEN: usize = 16;
pub(crate) const TAG_AT: usize = SALT_LEN;
pub(crate) const DIGEST_AT: usize = TAG_AT + TAG_LEN;
pub(crate) const LEVELS_AT: usize = DIGEST_AT + TAG_LEN;
pub(crate) const CELLS_AT: usize = LEVELS_AT + MOST_LEVELS * RECORD_LEN;
pub(crate) const STASH_AT: usize = CELLS_AT + MOST_CELLS * COVER_LEN;
pub(crate) const PUBLIC_AT: usize = STASH_AT + STASH_SLOTS * COVER_LEN;
/// Bytes of the public part before its cells.
const PUBLIC_FIXED: usize = 40;
/// Marks the number of a page that was displaced; no map has so many.
const MOVED: u64 = 1 << 47;
/// A batch that no disk lives to see.
const MOST_SEQ: u64 = (1 << 48) - 1;

const _: () = assert!(PUBLIC_AT + PUBLIC_FIXED + MOST_CELLS * 8 <= BLOCK_SIZE);

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
    /// Its number, counted from 1.
    pub(crate) seq: u64,
    /// The first half of the salt of the batch before.
    pub(crate) previous: [u8; 16],
    /// A batch that was durable, with all before it, when this one was written.
    pub(crate) synced: u64,
    /// A batch whose cells, and those of all before it, were durable in place.
    pub(crate) applied: u64,
    /// The cells that it rewrites.
    pub(crate) cells: Vec<u64>,
}

impl PublicPart {
    fn encode(&self, out: &mut [u8]) {
        out.fill(0);
        out[0..8].copy_from_slice(&self.seq.to_le_bytes());
        out[8..24].copy_from_slice(&self.previous);
        out[24..32].copy_from_slice(&self.synced.to_le_bytes());
        out[32..40].copy_from_slice(&self.applied.to_le_bytes());
        for (out, cell) in out[PUBLIC_FIXED..].chunks_exact_mut(8).zip(&self.cells) {
            out.copy_from_slice(&cell.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8], params: &Params) -> Option<PublicPart> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let part = PublicPart {
            seq: word(0),
            previous: bytes[8..24].try_into().ok()?,
            synced: word(24),
            applied: word(32),
            cells: (0..params.batch_cells()).map(|at| word(PUBLIC_FIXED + at * 8)).collect(),
        };
        let sane = (1..=MOST_SEQ).contains(&part.seq)
            && part.synced < part.seq
            && part.applied <= part.synced
            && part.cells.iter().all(|cell| *cell < params.cells);
        sane.then_some(part)
    }
}

/// What a level says of itself in a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelRecord {
    pub(crate) state: MapState,
    /// The batch with which the cycle began that is writing pages of the map; 0 if none is.
    pub(crate) cycle: u64,
    /// Ranges discarded since the batch before: first block and length. They come before what the batch writes.
    pub(crate) trims: Vec<(u64, u64)>,
}

impl LevelRecord {
    fn encode(&self) -> [u8; RECORD_PLAIN] {
        debug_assert!(self.trims.len() <= MOST_TRIMS);
        let mut out = [0; RECORD_PLAIN];
        out[..STATE_LEN].copy_from_slice(&self.state.encode());
        out[STATE_LEN..TRIMS_AT].copy_from_slice(&self.cycle.to_le_bytes());
        for (out, (first, count)) in out[TRIMS_AT..].chunks_exact_mut(16).zip(&self.trims) {
            out[..8].copy_from_slice(&first.to_le_bytes());
            out[8..].copy_from_slice(&count.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8; RECORD_PLAIN]) -> LevelRecord {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let ranges = bytes[TRIMS_AT..].chunks_exact(16).map(|range| (word(&range[..8]), word(&range[8..])));
        LevelRecord {
            state: MapState::decode(&bytes[..STATE_LEN]),
            cycle: word(&bytes[STATE_LEN..TRIMS_AT]),
            trims: ranges.take_while(|(_, count)| *count > 0).collect(),
        }
    }
}

/// A head that is being written. What no level says in it is random from the start.
pub(crate) struct Draft {
    pub(crate) salt: [u8; SALT_LEN],
    block: Box<[u8; BLOCK_SIZE]>,
}

impl Draft {
    /// `block` is filled with random bytes.
    pub(crate) fn new(salt: [u8; SALT_LEN], mut block: Box<[u8; BLOCK_SIZE]>) -> Draft {
        block[..SALT_LEN].copy_from_slice(&salt);
        Draft { salt, block }
    }

    /// Says what a level put into one of the cells.
    pub(crate) fn list(&mut self, key: &WriteKey, slot: usize, entry: Entry) {
        let at = CELLS_AT + slot * COVER_LEN;
        let cover = key.cover(Domain::Cell as u8, slot as u8, entry);
        self.block[at..at + COVER_LEN].copy_from_slice(&cover);
    }

    /// Says of a page that it was displaced and put into one of the cells as it was: no later changes are in it.
    pub(crate) fn list_moved(&mut self, key: &WriteKey, slot: usize, page: Entry) {
        let Entry::Page { depth, index } = page else { return };
        self.list(key, slot, Entry::Page { depth, index: index | MOVED });
    }

    /// Says what a level left in a slot of the stash.
    pub(crate) fn list_stash(&mut self, key: &WriteKey, slot: usize, entry: Entry) {
        let at = STASH_AT + slot * COVER_LEN;
        let cover = key.cover(Domain::Stash as u8, slot as u8, entry);
        self.block[at..at + COVER_LEN].copy_from_slice(&cover);
    }

    /// Puts in what a level says of itself.
    pub(crate) fn put_level(&mut self, key: &WriteKey, level: u8, record: &LevelRecord) {
        let at = LEVELS_AT + usize::from(level) * RECORD_LEN;
        let (body, tag) = self.block[at..at + RECORD_LEN].split_at_mut(RECORD_PLAIN);
        tag.copy_from_slice(&key.seal(Domain::Level as u8, level, &[], &record.encode(), body));
    }

    /// Ends it. `key` is that of level 0, `record` what goes to the ring.
    pub(crate) fn finish(
        mut self,
        key: &WriteKey,
        public: &PublicPart,
        record: &[u8],
    ) -> Box<[u8; BLOCK_SIZE]> {
        let mut plain = [0; BLOCK_SIZE - PUBLIC_AT];
        public.encode(&mut plain);
        self.block[DIGEST_AT..LEVELS_AT].copy_from_slice(&key.digest(Domain::Digest as u8, record));
        let (clear, body) = self.block.split_at_mut(PUBLIC_AT);
        let tag = key.seal(Domain::Public as u8, 0, &clear[DIGEST_AT..], &plain, body);
        clear[TAG_AT..DIGEST_AT].copy_from_slice(&tag);
        self.block
    }
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
        let salt = block[..SALT_LEN].try_into().expect("the salt");
        let key = batch_key(level0, &salt)?;
        let mut plain: [u8; BLOCK_SIZE - PUBLIC_AT] = block[PUBLIC_AT..].try_into().expect("the public part");
        let tag = block[TAG_AT..DIGEST_AT].try_into().expect("the tag");
        if key.open(Domain::Public as u8, 0, &block[DIGEST_AT..PUBLIC_AT], &mut plain, &tag).is_err() {
            return Ok(None);
        }
        let public = PublicPart::decode(&plain, params);
        Ok(public.map(|public| Head { salt, public, key, block: Box::new(*block) }))
    }

    /// By what the next batch names this one.
    pub(crate) fn name(&self) -> [u8; 16] {
        self.salt[..16].try_into().expect("16 of 32 bytes")
    }

    /// Whether this is the record that it was written with, as far as its sectors go.
    pub(crate) fn has_record(&self, record: &[u8]) -> bool {
        debug_assert!(record.len().is_multiple_of(CELL_LEN));
        let digest = &self.block[DIGEST_AT..LEVELS_AT];
        constant_time_eq(&self.key.digest(Domain::Digest as u8, record), digest)
    }

    /// What a level says of itself, if it was open when this was written. `key` is that of the level for this batch.
    pub(crate) fn level(&self, key: &WriteKey, level: u8) -> Option<LevelRecord> {
        let at = LEVELS_AT + usize::from(level) * RECORD_LEN;
        let (body, tag) = self.block[at..at + RECORD_LEN].split_at(RECORD_PLAIN);
        let mut body: [u8; RECORD_PLAIN] = body.try_into().ok()?;
        let tag = tag.try_into().ok()?;
        key.open(Domain::Level as u8, level, &[], &mut body, &tag).ok()?;
        let sane =
            |record: &LevelRecord| record.state.covered < self.public.seq && record.cycle <= self.public.seq;
        Some(LevelRecord::decode(&body)).filter(sane)
    }

    /// What a level put into cells: for each its number, and whether it is a page that says no more than before.
    pub(crate) fn entries(&self, key: &WriteKey) -> Vec<(u64, Entry, bool)> {
        let listed = |(slot, cell): (usize, &u64)| {
            let at = CELLS_AT + slot * COVER_LEN;
            let cover = &self.block[at..at + COVER_LEN];
            Some(match key.uncover(Domain::Cell as u8, slot as u8, cover)? {
                Entry::Page { depth, index } if index & MOVED != 0 => {
                    (*cell, Entry::Page { depth, index: index & !MOVED }, true)
                }
                entry => (*cell, entry, false),
            })
        };
        self.public.cells.iter().enumerate().filter_map(listed).collect()
    }

    /// What a level left in the stash: slots, and what is in them.
    pub(crate) fn stash(&self, key: &WriteKey) -> Vec<(usize, Entry)> {
        let listed = |slot: usize| {
            let at = STASH_AT + slot * COVER_LEN;
            let cover = &self.block[at..at + COVER_LEN];
            Some((slot, key.uncover(Domain::Stash as u8, slot as u8, cover)?))
        };
        (0..STASH_SLOTS).filter_map(listed).collect()
    }
}
