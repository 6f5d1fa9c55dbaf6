//! The head of a batch, one block of the journal: the cells that the batch rewrites and, under the
//! key of each level, the entries of the level in them.
//!
//! ```text
//!    0  salt            32  random
//!   32  tag             16  of the public part; also binds all bytes between tag and public part
//!   48  digest          16  keyed hash of the first bytes of the sectors of the record
//!   64  levels    4 x  120  the state of the map of each level and its discards, or random
//!  544  cells   224 x    8  the entry that the level of the region put into a cell, or random
//! 2336  stash    48 x    8  the entry of level 0 in a slot of the stash
//! 2720  public part         encrypted under the key of level 0, up to the end of the block
//! ```
//!
//! The entries of a level are encrypted with a key stream, and the tag of the level's record binds
//! them too. A cell that keeps its block, or that no level uses, is listed as empty. The public
//! part lists groups of cells.

use crate::cells::place::{BatchSeq, CellNo, StashSlot};
use crate::limits::{CELL_BITS, GROUP, HIDDEN_LEVELS, JOURNAL_START, MAX_CELLS, MAX_TRIMS, STASH_SLOTS};
use crate::params::Params;
use crate::progress::Claims;
use lacuna_contracts::{BLOCK_SIZE, LeReader, Result, Secret};
use lacuna_crypto::constant_time_eq;
use lacuna_levels::{MapState, SALT_LEN, STATE_LEN, SlotEntry, TAG_LEN, WriteKey};
use std::ops::Range;

/// Levels that a head has room for, level 0 included.
const MAX_LEVELS: usize = HIDDEN_LEVELS + 1;

const RECORD_PLAIN: usize = TRIMS_AT + MAX_TRIMS * 16;
/// Offset of the ranges in a level's record: after its state and the beginning of its cycle.
const TRIMS_AT: usize = STATE_LEN + 8;
const RECORD_LEN: usize = RECORD_PLAIN + TAG_LEN;
const TAG_AT: usize = SALT_LEN;
const DIGEST_AT: usize = TAG_AT + TAG_LEN;
const LEVELS_AT: usize = DIGEST_AT + TAG_LEN;
/// Bytes of an encrypted entry.
const COVER_LEN: usize = 8;
const COVERS_AT: usize = LEVELS_AT + MAX_LEVELS * RECORD_LEN;
const STASH_AT: usize = COVERS_AT + MAX_CELLS * COVER_LEN;
const PUBLIC_AT: usize = STASH_AT + STASH_SLOTS * COVER_LEN;
/// Bytes of the public part before its groups.
const PUBLIC_FIXED: usize = 40;
/// Bytes of the number of a group of cells.
const GROUP_NUMBER: usize = CELL_BITS as usize / 8;
/// The highest number of a batch; no disk reaches it.
const MAX_SEQ: u64 = (1 << 48) - 1;

const _: () = assert!(PUBLIC_AT + PUBLIC_FIXED + MAX_CELLS / GROUP as usize * GROUP_NUMBER <= BLOCK_SIZE);
const _: () = assert!(JOURNAL_START.is_multiple_of(BLOCK_SIZE as u64));

/// Offset of the encrypted entry of a cell of the batch.
fn cell_cover_at(slot: usize) -> usize {
    COVERS_AT + slot * COVER_LEN
}

/// Offset of the encrypted entry of a slot of the stash.
fn stash_cover_at(slot: usize) -> usize {
    STASH_AT + slot * COVER_LEN
}

/// Domains of the encryption under a batch's keys, which keep nonces apart.
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

/// The part of a head that the key of level 0 opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicHead {
    /// Its number.
    pub(crate) seq: BatchSeq,
    /// The first half of the salt of the batch before.
    pub(crate) previous: [u8; 16],
    /// The batches that were durable when it was written.
    pub(crate) claims: Claims,
    /// The cells that it rewrites: whole groups.
    pub(crate) cells: Vec<CellNo>,
}

impl PublicHead {
    fn encode(&self, out: &mut [u8]) {
        out.fill(0);
        out[0..8].copy_from_slice(&self.seq.0.to_le_bytes());
        out[8..24].copy_from_slice(&self.previous);
        out[24..32].copy_from_slice(&self.claims.synced.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.claims.applied.0.to_le_bytes());
        let firsts = self.cells.iter().step_by(GROUP as usize);
        for (out, cell) in out[PUBLIC_FIXED..].chunks_exact_mut(GROUP_NUMBER).zip(firsts) {
            out.copy_from_slice(&(cell.0 / GROUP).to_le_bytes()[..GROUP_NUMBER]);
        }
    }

    fn decode(bytes: &[u8], params: &Params) -> Option<PublicHead> {
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        let word = |at: usize| number(&bytes[at..at + 8]);
        let numbers = bytes[PUBLIC_FIXED..].chunks_exact(GROUP_NUMBER);
        let part = PublicHead {
            seq: BatchSeq(word(0)),
            previous: bytes[8..24].try_into().ok()?,
            claims: Claims { synced: BatchSeq(word(24)), applied: BatchSeq(word(32)) },
            cells: numbers
                .take(params.batch_cells() / GROUP as usize)
                .map(|bytes| number(bytes) * GROUP)
                .flat_map(|first| (first..first + GROUP).map(CellNo))
                .collect(),
        };
        let sane = (1..=MAX_SEQ).contains(&part.seq.0)
            && part.claims.synced < part.seq
            && part.claims.applied <= part.claims.synced
            && part.is_within_regions(params);
        sane.then_some(part)
    }

    /// Whether every cell lies in the region that the batch draws it from.
    fn is_within_regions(&self, params: &Params) -> bool {
        let mut cells = self.cells.iter();
        params
            .regions()
            .iter()
            .all(|region| cells.by_ref().take(region.drawn).all(|cell| region.contains(*cell)))
    }
}

/// The record of a level in a head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelRecord {
    pub(crate) state: MapState,
    /// The batch that began the cycle that is writing pages of the map; 0 if none runs.
    pub(crate) cycle: BatchSeq,
    /// Ranges discarded since the batch before: first block and length. They precede the writes of
    /// the batch.
    pub(crate) trims: Vec<(u64, u64)>,
}

impl LevelRecord {
    pub(crate) fn encode(&self) -> [u8; RECORD_PLAIN] {
        debug_assert!(self.trims.len() <= MAX_TRIMS);
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
            bytes[TRIMS_AT..].chunks_exact(16).map(|range| (LeReader(range).u64(0), LeReader(range).u64(8)));
        LevelRecord {
            state: MapState::decode(&bytes[..STATE_LEN]),
            cycle: BatchSeq(LeReader(bytes).u64(STATE_LEN)),
            trims: ranges.take_while(|(_, count)| *count > 0).collect(),
        }
    }
}

/// A head that is being written. All bytes that no level fills are random.
pub(crate) struct HeadBuilder {
    block: Box<[u8; BLOCK_SIZE]>,
}

impl HeadBuilder {
    /// `block` must be random.
    pub(crate) fn new(salt: [u8; SALT_LEN], mut block: Box<[u8; BLOCK_SIZE]>) -> HeadBuilder {
        block[..SALT_LEN].copy_from_slice(&salt);
        HeadBuilder { block }
    }

    fn encrypt_entry(&mut self, key: &WriteKey, domain: Domain, at: usize, slot: usize, entry: SlotEntry) {
        let cover = key.encrypt_entry(domain as u8, slot as u8, entry);
        self.block[at..at + COVER_LEN].copy_from_slice(&cover[..COVER_LEN]);
    }

    /// Writes the entries that a level put into its cells and, for level 0, left in the stash, and
    /// then the record of the level.
    pub(crate) fn put_level(
        &mut self,
        key: &WriteKey,
        level: u8,
        slots: Range<usize>,
        entries: &[SlotEntry],
        stashed: &[SlotEntry],
        record: &LevelRecord,
    ) {
        debug_assert!(slots.len() == entries.len() && (level == 0 || stashed.is_empty()));
        for (slot, entry) in slots.clone().zip(entries) {
            self.encrypt_entry(key, Domain::Cell, cell_cover_at(slot), slot, *entry);
        }
        if level == 0 {
            for slot in 0..STASH_SLOTS {
                let entry = stashed.get(slot).copied().unwrap_or(SlotEntry::Empty);
                self.encrypt_entry(key, Domain::Stash, stash_cover_at(slot), slot, entry);
            }
        }
        let at = LEVELS_AT + usize::from(level) * RECORD_LEN;
        let bound = bound_to_level(&self.block, level, slots);
        let (body, tag) = self.block[at..at + RECORD_LEN].split_at_mut(RECORD_PLAIN);
        tag.copy_from_slice(&key.seal(Domain::Level as u8, level, &bound, &record.encode(), body));
    }

    /// Finishes the head. `key` is that of level 0, `record` the bytes for the ring.
    pub(crate) fn finish(
        mut self,
        key: &WriteKey,
        public: &PublicHead,
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

/// The bytes that the tag of a level's record binds: its encrypted entries.
fn bound_to_level(block: &[u8; BLOCK_SIZE], level: u8, slots: Range<usize>) -> Vec<u8> {
    let stash = if level == 0 { STASH_AT..PUBLIC_AT } else { 0..0 };
    [&block[cell_cover_at(slots.start)..cell_cover_at(slots.end)], &block[stash]].concat()
}

/// A head that verified under the key of level 0.
pub(crate) struct JournalHead {
    pub(crate) salt: [u8; SALT_LEN],
    pub(crate) public: PublicHead,
    key: WriteKey,
    block: Box<[u8; BLOCK_SIZE]>,
}

impl JournalHead {
    /// Opens a head. None if it was not written with this key of level 0.
    pub(crate) fn open(
        params: &Params,
        level0: &Secret<32>,
        block: &[u8; BLOCK_SIZE],
    ) -> Result<Option<JournalHead>> {
        let salt = block[..SALT_LEN].try_into().expect("the salt");
        let key = batch_key(level0, &salt)?;
        let mut plain = block[PUBLIC_AT..].to_vec();
        let tag = block[TAG_AT..DIGEST_AT].try_into().expect("the tag");
        let clear = &block[DIGEST_AT..PUBLIC_AT];
        if key.open(Domain::Public as u8, 0, clear, &mut plain, &tag).is_err() {
            return Ok(None);
        }
        let public = PublicHead::decode(&plain, params);
        Ok(public.map(|public| JournalHead { salt, public, key, block: Box::new(*block) }))
    }

    /// The name of this batch in the head of the next.
    pub(crate) fn name(&self) -> [u8; 16] {
        self.salt[..16].try_into().expect("16 of 32 bytes")
    }

    /// Whether the record was written with this head, judged by the first bytes of its sectors.
    pub(crate) fn has_record(&self, record: &[u8]) -> bool {
        let digest = &self.block[DIGEST_AT..LEVELS_AT];
        constant_time_eq(&self.key.digest(Domain::Digest as u8, record), digest)
    }

    /// The record of a level, if the level was open when the head was written. `key` is that of the
    /// level for this batch.
    pub(crate) fn level_record(&self, params: &Params, key: &WriteKey, level: u8) -> Option<LevelRecord> {
        let at = LEVELS_AT + usize::from(level) * RECORD_LEN;
        let (body, tag) = self.block[at..at + RECORD_LEN].split_at(RECORD_PLAIN);
        let mut body: [u8; RECORD_PLAIN] = body.try_into().ok()?;
        let bound = bound_to_level(&self.block, level, params.slots(level));
        key.open(Domain::Level as u8, level, &bound, &mut body, &tag.try_into().ok()?).ok()?;
        let seq = self.public.seq;
        let sane = |record: &LevelRecord| record.state.covered < seq.0 && record.cycle <= seq;
        Some(LevelRecord::decode(&body)).filter(sane)
    }

    /// Decrypts an entry of a level with a verified record; none for [`SlotEntry::Empty`].
    fn decrypt_entry(&self, key: &WriteKey, domain: Domain, at: usize, slot: usize) -> Option<SlotEntry> {
        let cover = &self.block[at..at + COVER_LEN];
        // The cover of the empty entry, which is all zeros, is the pad.
        let pad = key.encrypt_entry(domain as u8, slot as u8, SlotEntry::Empty);
        let plain = cover.iter().zip(&pad).rev().fold(0, |plain, (a, b)| plain << 8 | u64::from(a ^ b));
        SlotEntry::unpack(plain).filter(|entry| *entry != SlotEntry::Empty)
    }

    /// The entries that a level put into cells. The level's record must have verified.
    pub(crate) fn entries(&self, params: &Params, key: &WriteKey, level: u8) -> Vec<(CellNo, SlotEntry)> {
        let listed = |slot: usize| {
            let entry = self.decrypt_entry(key, Domain::Cell, cell_cover_at(slot), slot)?;
            Some((self.public.cells[slot], entry))
        };
        params.slots(level).filter_map(listed).collect()
    }

    /// The slots of the stash that level 0 filled, and their entries. `key` is that of level 0,
    /// with a verified record.
    pub(crate) fn stash(&self, key: &WriteKey) -> Vec<(StashSlot, SlotEntry)> {
        let listed = |slot: usize| {
            let entry = self.decrypt_entry(key, Domain::Stash, stash_cover_at(slot), slot)?;
            Some((StashSlot(slot), entry))
        };
        (0..STASH_SLOTS).filter_map(listed).collect()
    }
}
