//! The journal: a circular, append-only region of batches, each written and synced at once. It
//! holds data that is durable but not yet destaged.
//!
//! Invariants:
//! - Batch n+1 is written only after batch n is durable. So the valid batches after the retired
//!   position are exactly the durable ones, and the first invalid batch ends them. A valid batch
//!   beyond it means that the journal was altered, not that power failed.
//! - A batch never wraps: if it does not fit before the end of the region, it starts at the
//!   region's beginning.
//! - No batch key is used for two batches with the same number, unless they are equal: the salt of
//!   each is hedged, so it depends on a random value that every opening draws, on the number, and
//!   on the whole batch. A number is used again after a failed append, and two copies of a running
//!   machine use the same numbers.
//!
//! Byte-exact: `docs/format/sealed.md`.

mod batch;

#[cfg(feature = "fuzzing")]
pub use batch::count_entries;
pub(crate) use batch::{BatchEntry, JournalBatch, ParsedBatch};

use batch::{BatchHead, HEAD_LEN, MAX_BATCH};
use lacuna_contracts::{Action, BLOCK_SIZE, Error, Hint, Kind, LeReader, LeWriter, Result, Secret};
use lacuna_crypto::{GcmKey, HedgedNonce, derive, derive_gcm, keyed_hash};
use lacuna_medium::{Medium, WriteExtent};
use std::sync::Arc;

const RETIRED_MAGIC: [u8; 8] = *b"LACRETD1";
const RETIRED_LEN: usize = 64;
/// The two places of the retired record, each with a block of its own.
pub(crate) const RETIRED_AREA: u64 = 2 * BLOCK_SIZE as u64;
/// The most bytes of the journal that are reserved for a full medium; in a small journal, an
/// eighth.
const MAX_RESERVE: u64 = 16 << 20;
/// Unverifiable heads of later batches that are tolerated.
const MAX_PLANTED_HEADS: u32 = 16;

/// How far the journal has been retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RetiredRecord {
    /// Counts retirements. The record with the higher count is valid.
    count: u64,
    /// The number of the next batch.
    next_seq: u64,
    /// Where the next batch lies, as an offset into the region of batches.
    position: u64,
}

impl RetiredRecord {
    fn encode(&self, key: &Secret<32>) -> [u8; RETIRED_LEN] {
        let mut out = [0; RETIRED_LEN];
        let mut record = LeWriter(&mut out);
        record.put(0, &RETIRED_MAGIC).u64(8, self.count).u64(16, self.next_seq).u64(24, self.position);
        let tag = keyed_hash(key, &[&out[..32]]);
        out[32..].copy_from_slice(&tag);
        out
    }

    fn parse(bytes: &[u8; RETIRED_LEN], key: &Secret<32>, region: u64) -> Option<RetiredRecord> {
        let record = LeReader(bytes);
        let retired =
            RetiredRecord { count: record.u64(8), next_seq: record.u64(16), position: record.u64(24) };
        let sane = bytes[..8] == RETIRED_MAGIC
            && bytes[32..] == keyed_hash(key, &[&bytes[..32]])
            && retired.position <= region
            && retired.position.is_multiple_of(BLOCK_SIZE as u64);
        sane.then_some(retired)
    }
}

/// A position of the journal's end.
#[derive(Clone, Copy)]
pub(crate) struct JournalMark {
    next_seq: u64,
    position: u64,
    used: u64,
}

/// The journal of an open disk.
pub(crate) struct Journal {
    medium: Arc<dyn Medium>,
    start: u64,
    region: u64,
    master: Secret<32>,
    retired_key: Secret<32>,
    /// The random value of this opening, and the key that makes salts of it.
    random: [u8; 16],
    salts: HedgedNonce,
    retired: RetiredRecord,
    next_seq: u64,
    position: u64,
    used: u64,
    damage: DamageState,
}

/// How a damaged journal is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DamageState {
    /// The disk is not opened.
    Refused,
    /// The disk is opened for rescue: unreadable parts of the journal are left out. No damage was
    /// found so far.
    Tolerated,
    /// The disk is opened for rescue, and damage was found.
    Found,
}

impl Journal {
    /// Writes the first retired record of a new disk. Not synced.
    pub(crate) fn create(medium: &dyn Medium, start: u64, len: u64, master: &Secret<32>) -> Result<()> {
        // Written, not discarded: the journal then owns its space and accepts acknowledged writes
        // even when the host's disk is full.
        let zeros = vec![0; (1 << 20).min(len as usize)];
        for at in (0..len).step_by(zeros.len()) {
            medium.write_at(start + at, &zeros[..zeros.len().min((len - at) as usize)])?;
        }
        let first = RetiredRecord { count: 1, next_seq: 1, position: 0 };
        medium.write_at(start, &first.encode(&derive(master, "sealed ring retired", &[])))
    }

    /// Opens the journal at its retired position. `random` must be fresh. With `rescue`, damage is
    /// tolerated.
    pub(crate) fn open(
        medium: Arc<dyn Medium>,
        start: u64,
        len: u64,
        master: Secret<32>,
        random: [u8; 16],
        rescue: bool,
    ) -> Result<Journal> {
        let retired_key = derive(&master, "sealed ring retired", &[]);
        let region = len - RETIRED_AREA;
        let mut found = [None; 2];
        for (place, record) in (0..).zip(&mut found) {
            let mut bytes = [0; RETIRED_LEN];
            medium.read_at(start + place * BLOCK_SIZE as u64, &mut bytes)?;
            *record = RetiredRecord::parse(&bytes, &retired_key, region);
        }
        let later = |a: RetiredRecord, b: RetiredRecord| if b.count > a.count { b } else { a };
        let (retired, damage) = match (found.into_iter().flatten().reduce(later), rescue) {
            (Some(retired), false) => (retired, DamageState::Refused),
            (Some(retired), true) => (retired, DamageState::Tolerated),
            // No batch has this number: nothing is replayed.
            (None, true) => (RetiredRecord { count: 0, next_seq: u64::MAX, position: 0 }, DamageState::Found),
            (None, false) => {
                return Err(Error::new(Kind::Corrupt, "the journal of this disk is not readable")
                    .found("neither of its two retired records verifies")
                    .expected("at least one that this disk wrote")
                    .hint(
                        Hint::from("restore the medium from a backup; if there is none, ")
                            .action(Action("rescue"))
                            .text(" copies what there is"),
                    ));
            }
        };
        let salts = HedgedNonce::derive(&master, "sealed ring salt", &[]);
        let (next_seq, position) = (retired.next_seq, retired.position);
        Ok(Journal {
            medium,
            start,
            region,
            master,
            retired_key,
            random,
            salts,
            retired,
            next_seq,
            position,
            used: 0,
            damage,
        })
    }

    /// Whether damage was found, and the disk was opened all the same.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damage == DamageState::Found
    }

    /// Calls `each` for every durable batch that is not retired, in order, and leaves the position
    /// behind the last.
    pub(crate) fn replay(&mut self, mut each: impl FnMut(ParsedBatch) -> Result<()>) -> Result<u64> {
        let mut batches = 0;
        loop {
            let found = match self.read(self.position)? {
                Some(batch) if batch.seq == self.next_seq => Some((self.position, batch)),
                _ if self.position == 0 => None,
                _ => match self.read(0)? {
                    Some(batch) if batch.seq == self.next_seq => Some((0, batch)),
                    _ => None,
                },
            };
            let Some((at, batch)) = found else { break };
            self.advance_to(at, batch.bytes.len() as u64);
            self.next_seq += 1;
            batches += 1;
            each(batch)?;
        }
        match self.refuse_later_batches() {
            Err(e) if e.kind() == Kind::Corrupt && self.damage != DamageState::Refused => {
                self.damage = DamageState::Found;
            }
            refused => refused?,
        }
        Ok(batches)
    }

    /// Whether a batch of `len` bytes fits without retiring anything.
    pub(crate) fn fits(&self, len: usize) -> bool {
        let (_, waste) = self.place_for(len as u64);
        self.used + waste + len as u64 <= self.region
    }

    /// Bytes reserved in a journal of `len` bytes for a disk that is opened on a full medium.
    pub(crate) fn reserve_of(len: u64) -> u64 {
        ((len - RETIRED_AREA) / 8).min(MAX_RESERVE)
    }

    /// Bytes reserved in this journal.
    pub(crate) fn reserve(&self) -> usize {
        Self::reserve_of(self.region + RETIRED_AREA) as usize
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Writes a batch durably and returns its bytes. The batch must fit.
    pub(crate) fn append(&mut self, batch: JournalBatch) -> Result<Arc<Vec<u8>>> {
        let len = batch.len();
        if !self.fits(len) || len > MAX_BATCH {
            return Err(Error::new(Kind::Other, "the journal is full")
                .found(format!("a batch of {len} bytes, {} of {} bytes used", self.used, self.region)));
        }
        let bytes = batch.finish(self.next_seq, |batch| {
            let salt = self.salts.nonce(&self.random, &self.next_seq.to_le_bytes(), batch);
            Ok((salt, batch_key(&self.master, &salt)?))
        })?;
        let (at, _) = self.place_for(len as u64);
        let offset = self.start + RETIRED_AREA + at;
        if let Err(e) = self.medium.write_durable(&[WriteExtent { offset, data: &bytes }]) {
            // As for a sync (`SlotStore::sync`), it is unknown whether the batch is durable.
            return Err(e.with_kind(Kind::Io));
        }
        self.advance_to(at, len as u64);
        self.next_seq += 1;
        Ok(Arc::new(bytes))
    }

    /// Retires everything in the journal. All of it must be durable in its slots.
    pub(crate) fn retire(&mut self) -> Result<()> {
        let mark = self.mark();
        self.retire_before(mark)
    }

    /// The present end of the journal.
    pub(crate) fn mark(&self) -> JournalMark {
        JournalMark { next_seq: self.next_seq, position: self.position, used: self.used }
    }

    /// Whether everything before a mark was retired, by this or a later mark.
    pub(crate) fn is_retired(&self, mark: JournalMark) -> bool {
        mark.next_seq <= self.retired.next_seq
    }

    /// Retires everything before a mark, which was not retired since. All of it must be durable in
    /// its slots or lie behind the mark too.
    pub(crate) fn retire_before(&mut self, mark: JournalMark) -> Result<()> {
        let retired =
            RetiredRecord { count: self.retired.count + 1, next_seq: mark.next_seq, position: mark.position };
        // Overwrite the older record: a torn write must not hit the valid one.
        let place = self.start + (retired.count - 1) % 2 * BLOCK_SIZE as u64;
        self.medium
            .write_durable(&[WriteExtent { offset: place, data: &retired.encode(&self.retired_key) }])
            .map_err(Error::of_sync)?;
        self.retired = retired;
        self.used -= mark.used;
        Ok(())
    }

    fn place_for(&self, len: u64) -> (u64, u64) {
        if self.position + len > self.region { (0, self.region - self.position) } else { (self.position, 0) }
    }

    fn advance_to(&mut self, at: u64, len: u64) {
        let waste = if at == self.position { 0 } else { self.region - self.position };
        self.used += waste + len;
        self.position = at + len;
    }

    /// The head of the batch at a place, and its bytes.
    fn read_head(&self, at: u64) -> Result<Option<(BatchHead, [u8; HEAD_LEN])>> {
        if at + HEAD_LEN as u64 > self.region {
            return Ok(None);
        }
        let mut bytes = [0; HEAD_LEN];
        self.medium.read_at(self.start + RETIRED_AREA + at, &mut bytes)?;
        let head = BatchHead::parse(&bytes).filter(|head| at + head.total as u64 <= self.region);
        Ok(head.map(|head| (head, bytes)))
    }

    fn read(&self, at: u64) -> Result<Option<ParsedBatch>> {
        let Some((head, start)) = self.read_head(at)? else { return Ok(None) };
        self.read_rest(at, &head, &start)
    }

    /// The batch with this head. Nothing is read twice: a medium may return different bytes the
    /// second time, and the batch would seem torn.
    fn read_rest(&self, at: u64, head: &BatchHead, start: &[u8; HEAD_LEN]) -> Result<Option<ParsedBatch>> {
        let mut bytes = vec![0; head.total];
        let (front, rest) = bytes.split_at_mut(HEAD_LEN);
        front.copy_from_slice(start);
        self.medium.read_at(self.start + RETIRED_AREA + at + HEAD_LEN as u64, rest)?;
        Ok(ParsedBatch::verify(bytes, head, &batch_key(&self.master, &head.salt)?))
    }

    /// Tells an attack from a crash: a valid batch beyond the end of the log was cut off from it. A
    /// few unverifiable heads of later batches are tolerated. More than [`MAX_PLANTED_HEADS`] were
    /// planted and are refused, so that a hostile medium cannot make opening take for ever.
    fn refuse_later_batches(&self) -> Result<()> {
        let (mut at, mut planted) = (0, 0);
        while at < self.region {
            if let Some((head, start)) = self.read_head(at)?.filter(|(head, _)| head.seq > self.next_seq)
                && (self.read_rest(at, &head, &start)?.is_some() || {
                    planted += 1;
                    planted > MAX_PLANTED_HEADS
                })
            {
                return Err(Error::new(Kind::Corrupt, "the journal of this disk was altered")
                    .found(format!("batch {} without batch {}", head.seq, self.next_seq))
                    .expected("every batch up to the last")
                    .hint("restore the medium from a backup"));
            }
            at += BLOCK_SIZE as u64;
        }
        Ok(())
    }
}

/// The key of the batch with this salt.
fn batch_key(master: &Secret<32>, salt: &[u8; 16]) -> Result<GcmKey> {
    derive_gcm(master, "sealed ring", salt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{SegmentNo, SlotNo};
    use lacuna_contracts::BlockAddr;
    use lacuna_medium::MemoryMedium;

    const LEN: u64 = 64 * 4096;

    fn open(medium: &Arc<MemoryMedium>, salt: u8) -> Journal {
        Journal::open(medium.clone(), 0, LEN, Secret::copy_from(&[1; 32]), [salt; 16], false).unwrap()
    }

    fn batch(tag: u8, blocks: u64) -> JournalBatch {
        let mut batch = JournalBatch::with_room(vec![], blocks as usize + 2, blocks as usize);
        for block in 0..blocks {
            batch.write(BlockAddr(block), |data, meta| {
                data.fill(tag);
                meta.fill(tag);
            });
        }
        batch.erase(BlockAddr(9), 3);
        batch.move_segment(SegmentNo::checked(4, 10).unwrap(), SlotNo::checked(7, 10));
        batch
    }

    fn replayed(journal: &mut Journal) -> Vec<u8> {
        let mut tags = vec![];
        journal
            .replay(|b| {
                assert_eq!(b.entries[b.entries.len() - 1], BatchEntry::Move { segment: 4, slot: Some(7) });
                tags.push(b.bytes[b.data_at]);
                Ok(())
            })
            .unwrap();
        tags
    }

    #[test]
    fn appended_batches_are_replayed_across_the_wrap() {
        let medium = Arc::new(MemoryMedium::new(LEN));
        Journal::create(&*medium, 0, LEN, &Secret::copy_from(&[1; 32])).unwrap();
        let mut expected: Vec<u8> = vec![];
        for round in 0..60u8 {
            let mut journal = open(&medium, round);
            assert_eq!(replayed(&mut journal), expected);
            if !journal.fits(9 * 4096) {
                journal.retire().unwrap();
                expected.clear();
            }
            journal.append(batch(round, u64::from(round % 7) + 1)).unwrap();
            expected.push(round);
        }
    }

    /// Salts repeat only for equal batches, on two copies of a running machine and after a failed
    /// append.
    #[test]
    fn a_salt_repeats_only_with_its_whole_batch() {
        let salt_of = |tag: u8, numbered: u8| {
            let medium = Arc::new(MemoryMedium::new(LEN));
            Journal::create(&*medium, 0, LEN, &Secret::copy_from(&[1; 32])).unwrap();
            let mut journal = open(&medium, 5);
            let bytes = (1..=numbered)
                .map(|n| journal.append(batch(if n == numbered { tag } else { 0 }, 2)).unwrap());
            bytes.last().unwrap()[16..32].to_vec()
        };
        assert_eq!(salt_of(1, 1), salt_of(1, 1));
        assert_ne!(salt_of(1, 1), salt_of(2, 1));
        assert_ne!(salt_of(1, 1), salt_of(1, 2));
    }

    #[test]
    fn a_torn_last_batch_ends_the_log_and_a_torn_middle_one_is_refused() {
        let medium = Arc::new(MemoryMedium::new(LEN));
        Journal::create(&*medium, 0, LEN, &Secret::copy_from(&[1; 32])).unwrap();
        let mut journal = open(&medium, 1);
        for tag in 1..=3 {
            journal.append(batch(tag, 2)).unwrap();
        }
        let flip = |at: u64| {
            let mut byte = [0];
            medium.read_at(at, &mut byte).unwrap();
            medium.write_at(at, &[byte[0] ^ 4]).unwrap();
        };
        let last = RETIRED_AREA + 2 * 3 * 4096;
        flip(last + 5000);
        assert_eq!(replayed(&mut open(&medium, 2)), [1, 2]);
        flip(last + 5000);
        assert_eq!(replayed(&mut open(&medium, 2)), [1, 2, 3]);
        flip(RETIRED_AREA + 3 * 4096 + 100);
        assert_eq!(open(&medium, 2).replay(|_| Ok(())).unwrap_err().kind(), Kind::Corrupt);
        // A rescue opens the remaining batches.
        let rescued =
            || Journal::open(medium.clone(), 0, LEN, Secret::copy_from(&[1; 32]), [3; 16], true).unwrap();
        let mut torn = rescued();
        assert!(!torn.is_damaged());
        assert_eq!(replayed(&mut torn), [1]);
        assert!(torn.is_damaged());
        medium.write_at(0, &[0xa5; RETIRED_AREA as usize]).unwrap();
        let mut lost = rescued();
        assert!(lost.is_damaged() && replayed(&mut lost).is_empty());
    }
}
