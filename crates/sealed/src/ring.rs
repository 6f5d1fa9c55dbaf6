//! The ring: an append-only circle of batches, each written and synced at once, that holds what is durable but
//! not yet home.
//!
//! Invariants:
//! - Batch n+1 is written only after batch n is durable. So the valid batches after the retired position are
//!   exactly the durable ones, the first invalid one ends them, and a valid batch beyond it means that the ring
//!   was altered, not that power failed.
//! - A batch never wraps: one that does not fit before the end of the region starts at its beginning.
//! - No batch key is used for two batches with one number: every opening draws a fresh salt, and so does an
//!   append that fails, after which its number is used again.
//!
//! Byte-exact: `docs/format/sealed.md`.

use crate::map::Home;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, Secret};
use lacuna_crypto::{GcmKey, derive, keyed_hash};
use lacuna_medium::{Medium, WriteExtent};
use std::sync::Arc;

pub(crate) const HEAD: usize = 64;
pub(crate) const ENTRY: usize = 48;
const MAGIC: [u8; 8] = *b"LACRING1";
const RETIRED_MAGIC: [u8; 8] = *b"LACRETD1";
const RETIRED_LEN: usize = 64;
/// The two places of the retired record, each in a block of its own.
pub(crate) const RETIRED_AREA: u64 = 2 * BLOCK_SIZE as u64;
/// No batch is longer: bounds what a reader allocates.
pub(crate) const MAX_BATCH: usize = 8 << 20;

/// Unverifiable later heads that are forgiven.
const PLANTED_HEADS: u32 = 16;

/// What a batch says of one block or segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The next data block of the batch is the ciphertext of `block`, with this metadata.
    Write { block: u64, meta: [u8; 32] },
    /// These blocks are unwritten now.
    Erase { block: u64, count: u32 },
    /// The segment lives there now, all of it; earlier entries for its blocks are void.
    Move { segment: u64, home: Home },
}

/// A batch under construction, in the bytes in which it will be written.
pub(crate) struct Batch {
    buf: Vec<u8>,
    entries: usize,
    max_entries: usize,
    head_len: usize,
}

impl Batch {
    /// An empty batch with room for `entries` entries, `blocks` of which carry data, in a buffer of an earlier
    /// batch or an empty one.
    pub(crate) fn with_room(mut buf: Vec<u8>, entries: usize, blocks: usize) -> Batch {
        let head_len = (HEAD + entries * ENTRY).next_multiple_of(BLOCK_SIZE);
        buf.clear();
        buf.reserve_exact(head_len + blocks * BLOCK_SIZE);
        buf.resize(head_len, 0);
        Batch { buf, entries: 0, max_entries: entries, head_len }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Bytes that a batch of so many entries and data blocks takes.
    pub(crate) fn len_for(entries: usize, blocks: usize) -> usize {
        (HEAD + entries * ENTRY).next_multiple_of(BLOCK_SIZE) + blocks * BLOCK_SIZE
    }

    /// Adds a block; `fill` writes its ciphertext and its metadata in place. Returns where the data lies.
    pub(crate) fn write(&mut self, block: u64, fill: impl FnOnce(&mut [u8], &mut [u8; 32])) -> usize {
        let at = self.buf.len();
        self.buf.resize(at + BLOCK_SIZE, 0);
        let mut meta = [0; 32];
        fill(&mut self.buf[at..], &mut meta);
        self.entry(1, 0, block, &meta);
        at
    }

    pub(crate) fn erase(&mut self, block: u64, count: u32) {
        self.entry(2, count, block, &[0; 32]);
    }

    pub(crate) fn move_segment(&mut self, segment: u64, home: Home) {
        let mut meta = [0; 32];
        if let Home::At(home) = home {
            meta[..8].copy_from_slice(&(u64::from(home) + 1).to_le_bytes());
        }
        self.entry(3, 0, segment, &meta);
    }

    fn entry(&mut self, kind: u8, count: u32, addr: u64, meta: &[u8; 32]) {
        assert!(self.entries < self.max_entries, "a batch holds no more entries than it was made for");
        let at = HEAD + self.entries * ENTRY;
        let out = &mut self.buf[at..at + ENTRY];
        out[0] = kind;
        out[4..8].copy_from_slice(&count.to_le_bytes());
        out[8..16].copy_from_slice(&addr.to_le_bytes());
        out[16..].copy_from_slice(meta);
        self.entries += 1;
    }

    fn finish(&mut self, seq: u64, salt: &[u8; 16], key: &GcmKey) {
        let total = self.buf.len() as u32;
        self.buf[..8].copy_from_slice(&MAGIC);
        self.buf[8..16].copy_from_slice(&seq.to_le_bytes());
        self.buf[16..32].copy_from_slice(salt);
        self.buf[32..36].copy_from_slice(&(self.entries as u32).to_le_bytes());
        self.buf[36..40].copy_from_slice(&(self.head_len as u32).to_le_bytes());
        self.buf[40..44].copy_from_slice(&total.to_le_bytes());
        let tag = key.seal(&nonce(seq), &self.buf, &[], &mut []);
        self.buf[48..64].copy_from_slice(&tag);
    }
}

/// A batch read back.
pub(crate) struct ParsedBatch {
    pub(crate) seq: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) data_at: usize,
    pub(crate) bytes: Vec<u8>,
}

/// The plain head of a batch: enough to know how much to read.
struct BatchHead {
    seq: u64,
    salt: [u8; 16],
    entries: usize,
    head_len: usize,
    total: usize,
}

impl BatchHead {
    fn parse(bytes: &[u8; HEAD]) -> Option<BatchHead> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize;
        let head = BatchHead {
            seq: u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes")),
            salt: bytes[16..32].try_into().expect("16 bytes"),
            entries: u32_at(32),
            head_len: u32_at(36),
            total: u32_at(40),
        };
        let sane = bytes[..8] == MAGIC
            && head.total <= MAX_BATCH
            && head.head_len <= head.total
            && head.entries <= MAX_BATCH / ENTRY
            && HEAD + head.entries * ENTRY <= head.head_len
            && head.head_len.is_multiple_of(BLOCK_SIZE)
            && head.total.is_multiple_of(BLOCK_SIZE);
        sane.then_some(head)
    }
}

/// Parses the entries of a batch whose tag was verified; `None` if no writer of ours could have made them.
fn parse_entries(bytes: &[u8], head: &BatchHead) -> Option<Vec<Entry>> {
    let table = bytes.get(HEAD..HEAD + head.entries * ENTRY)?;
    let mut writes = 0;
    let mut entries = Vec::with_capacity(head.entries);
    for e in table.as_chunks::<ENTRY>().0 {
        let count = u32::from_le_bytes(e[4..8].try_into().ok()?);
        let addr = u64::from_le_bytes(e[8..16].try_into().ok()?);
        let meta: [u8; 32] = e[16..].try_into().ok()?;
        entries.push(match e[0] {
            1 => {
                writes += 1;
                Entry::Write { block: addr, meta }
            }
            2 => Entry::Erase { block: addr, count },
            3 => {
                let home = u64::from_le_bytes(meta[..8].try_into().ok()?);
                let home = if home == 0 { Home::Nowhere } else { Home::At(u32::try_from(home - 1).ok()?) };
                Entry::Move { segment: addr, home }
            }
            _ => return None,
        });
    }
    (head.head_len + writes * BLOCK_SIZE == head.total).then_some(entries)
}

/// For the fuzz target: parses a batch without a key. Must neither panic nor allocate beyond its input.
#[doc(hidden)]
pub fn fuzz_parse(bytes: &[u8]) -> usize {
    let Some(head) = bytes.first_chunk::<HEAD>().and_then(BatchHead::parse) else { return 0 };
    if bytes.len() < head.total { 0 } else { parse_entries(bytes, &head).map_or(0, |e| e.len()) }
}

/// How far the ring has been retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Retired {
    /// Counts retirements; the higher of the two places counts.
    count: u64,
    /// The number of the next batch.
    next_seq: u64,
    /// Where the next batch is, as an offset into the region of batches.
    position: u64,
}

impl Retired {
    fn encode(&self, key: &Secret<32>) -> [u8; RETIRED_LEN] {
        let mut out = [0; RETIRED_LEN];
        out[..8].copy_from_slice(&RETIRED_MAGIC);
        out[8..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..24].copy_from_slice(&self.next_seq.to_le_bytes());
        out[24..32].copy_from_slice(&self.position.to_le_bytes());
        let tag = keyed_hash(key, &[&out[..32]]);
        out[32..].copy_from_slice(&tag);
        out
    }

    fn parse(bytes: &[u8; RETIRED_LEN], key: &Secret<32>, region: u64) -> Option<Retired> {
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let retired = Retired { count: u64_at(8), next_seq: u64_at(16), position: u64_at(24) };
        let sane = bytes[..8] == RETIRED_MAGIC
            && bytes[32..] == keyed_hash(key, &[&bytes[..32]])
            && retired.position <= region
            && retired.position.is_multiple_of(BLOCK_SIZE as u64);
        sane.then_some(retired)
    }
}

/// The ring of an open disk.
pub(crate) struct Ring {
    medium: Arc<dyn Medium>,
    start: u64,
    region: u64,
    master: Secret<32>,
    retired_key: Secret<32>,
    salt: [u8; 16],
    key: GcmKey,
    retired: Retired,
    next_seq: u64,
    position: u64,
    used: u64,
}

impl Ring {
    /// Writes the first retired record of a new disk. Not synced.
    pub(crate) fn create(medium: &dyn Medium, start: u64, len: u64, master: &Secret<32>) -> Result<()> {
        // Written, not discarded: a ring that already has its space takes what was acknowledged even when the
        // host's disk is full.
        let zeros = vec![0; (1 << 20).min(len as usize)];
        for at in (0..len).step_by(zeros.len()) {
            medium.write_at(start + at, &zeros[..zeros.len().min((len - at) as usize)])?;
        }
        let first = Retired { count: 1, next_seq: 1, position: 0 };
        medium.write_at(start, &first.encode(&derive(master, "sealed ring retired", &[])))
    }

    /// Opens the ring at its retired position. `salt` must be fresh.
    pub(crate) fn open(
        medium: Arc<dyn Medium>,
        start: u64,
        len: u64,
        master: Secret<32>,
        salt: [u8; 16],
    ) -> Result<Ring> {
        let retired_key = derive(&master, "sealed ring retired", &[]);
        let region = len - RETIRED_AREA;
        let mut best: Option<Retired> = None;
        for place in 0..2 {
            let mut bytes = [0; RETIRED_LEN];
            medium.read_at(start + place * BLOCK_SIZE as u64, &mut bytes)?;
            let found = Retired::parse(&bytes, &retired_key, region);
            best = best.max_by_count(found);
        }
        let retired = best.ok_or_else(|| {
            Error::new(Kind::Corrupt, "the ring of this disk is not readable")
                .found("neither of its two retired records verifies")
                .expected("at least one that this disk wrote")
                .remedy("restore the medium from a backup")
        })?;
        let key = GcmKey::new(&derive(&master, "sealed ring", &salt))?;
        let (next_seq, position) = (retired.next_seq, retired.position);
        Ok(Ring {
            medium,
            start,
            region,
            master,
            retired_key,
            salt,
            key,
            retired,
            next_seq,
            position,
            used: 0,
        })
    }

    /// Calls `each` for every durable batch that is not retired, in order, and leaves the ring behind the last.
    pub(crate) fn replay(&mut self, mut each: impl FnMut(ParsedBatch) -> Result<()>) -> Result<u64> {
        let mut batches = 0;
        loop {
            let found = match self.read(self.position)? {
                Some(batch) if batch.seq == self.next_seq => Some((self.position, batch)),
                _ => match self.read(0)? {
                    Some(batch) if batch.seq == self.next_seq => Some((0, batch)),
                    _ => None,
                },
            };
            let Some((at, batch)) = found else { break };
            self.take_place(at, batch.bytes.len() as u64);
            self.next_seq += 1;
            batches += 1;
            each(batch)?;
        }
        self.refuse_later_batches()?;
        Ok(batches)
    }

    /// Whether a batch of `len` bytes fits without retiring anything.
    pub(crate) fn fits(&self, len: usize) -> bool {
        let (_, waste) = self.place_for(len as u64);
        self.used + waste + len as u64 <= self.region
    }

    /// Whether more than half of the ring is in use: time to send everything home.
    pub(crate) fn is_half_full(&self) -> bool {
        self.used > self.region / 2
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Writes a batch durably and gives its bytes back. The batch must fit.
    pub(crate) fn append(&mut self, mut batch: Batch) -> Result<Arc<Vec<u8>>> {
        if !self.fits(batch.buf.len()) || batch.buf.len() > MAX_BATCH {
            return Err(Error::new(Kind::Other, "the ring is full").found(format!(
                "a batch of {} bytes, {} of {} bytes used",
                batch.buf.len(),
                self.used,
                self.region
            )));
        }
        batch.finish(self.next_seq, &self.salt, &self.key);
        let (at, _) = self.place_for(batch.buf.len() as u64);
        let offset = self.start + RETIRED_AREA + at;
        if let Err(e) = self.medium.write_durable(&[WriteExtent { offset, data: &batch.buf }]) {
            self.renew_key()?;
            // As for a sync (`Store::sync`): whether it is durable is unknown.
            return Err(e.with_kind(Kind::Io));
        }
        self.take_place(at, batch.buf.len() as u64);
        self.next_seq += 1;
        Ok(Arc::new(batch.buf))
    }

    /// After a failed append the number is used again, for other bytes: never under the same key.
    fn renew_key(&mut self) -> Result<()> {
        let hash = keyed_hash(&self.retired_key, &[&self.salt, &self.next_seq.to_le_bytes()]);
        self.key = GcmKey::new(&derive(&self.master, "sealed ring", &hash[..16]))?;
        self.salt.copy_from_slice(&hash[..16]);
        Ok(())
    }

    /// Retires everything in the ring, which must be durable at home.
    pub(crate) fn retire(&mut self) -> Result<()> {
        let retired =
            Retired { count: self.retired.count + 1, next_seq: self.next_seq, position: self.position };
        // The older record is the one that may be torn.
        let place = self.start + (retired.count - 1) % 2 * BLOCK_SIZE as u64;
        self.medium
            .write_durable(&[WriteExtent { offset: place, data: &retired.encode(&self.retired_key) }])?;
        self.retired = retired;
        self.used = 0;
        Ok(())
    }

    fn place_for(&self, len: u64) -> (u64, u64) {
        if self.position + len > self.region { (0, self.region - self.position) } else { (self.position, 0) }
    }

    fn take_place(&mut self, at: u64, len: u64) {
        let waste = if at == self.position { 0 } else { self.region - self.position };
        self.used += waste + len;
        self.position = at + len;
    }

    fn read_head(&self, at: u64) -> Result<Option<BatchHead>> {
        if at + HEAD as u64 > self.region {
            return Ok(None);
        }
        let mut head = [0; HEAD];
        self.medium.read_at(self.start + RETIRED_AREA + at, &mut head)?;
        Ok(BatchHead::parse(&head).filter(|head| at + head.total as u64 <= self.region))
    }

    fn read(&self, at: u64) -> Result<Option<ParsedBatch>> {
        let Some(head) = self.read_head(at)? else { return Ok(None) };
        let mut bytes = vec![0; head.total];
        self.medium.read_at(self.start + RETIRED_AREA + at, &mut bytes)?;
        let mut tag = [0; 16];
        tag.copy_from_slice(&bytes[48..64]);
        bytes[48..64].fill(0);
        let key = GcmKey::new(&derive(&self.master, "sealed ring", &head.salt))?;
        if key.open(&nonce(head.seq), &bytes, &[], &tag, &mut []).is_err() {
            return Ok(None);
        }
        // The head may have changed between the two reads; what was verified is what counts.
        let Some(head) = bytes.first_chunk::<HEAD>().and_then(BatchHead::parse) else { return Ok(None) };
        let Some(entries) = parse_entries(&bytes, &head) else { return Ok(None) };
        Ok(Some(ParsedBatch { seq: head.seq, entries, data_at: head.head_len, bytes }))
    }

    /// An attack is not mistaken for a crash: a valid batch that the log does not reach was cut off from it.
    /// Heads of later batches that do not verify were planted: a few are looked at, so that a hostile medium
    /// cannot make opening take for ever.
    fn refuse_later_batches(&self) -> Result<()> {
        let (mut at, mut planted) = (0, 0);
        while at < self.region {
            if let Some(head) = self.read_head(at)?.filter(|head| head.seq > self.next_seq)
                && (self.read(at)?.is_some() || {
                    planted += 1;
                    planted > PLANTED_HEADS
                })
            {
                return Err(Error::new(Kind::Corrupt, "the ring of this disk was altered")
                    .found(format!("batch {} without batch {}", head.seq, self.next_seq))
                    .expected("every batch up to the last")
                    .remedy("restore the medium from a backup"));
            }
            at += BLOCK_SIZE as u64;
        }
        Ok(())
    }
}

trait MaxByCount {
    fn max_by_count(self, other: Option<Retired>) -> Option<Retired>;
}

impl MaxByCount for Option<Retired> {
    fn max_by_count(self, other: Option<Retired>) -> Option<Retired> {
        match (self, other) {
            (Some(a), Some(b)) => Some(if b.count > a.count { b } else { a }),
            (a, b) => a.or(b),
        }
    }
}

fn nonce(seq: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&seq.to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;

    const LEN: u64 = 64 * 4096;

    fn open(medium: &Arc<MemoryMedium>, salt: u8) -> Ring {
        Ring::open(medium.clone(), 0, LEN, Secret::copy_from(&[1; 32]), [salt; 16]).unwrap()
    }

    fn batch(tag: u8, blocks: u64) -> Batch {
        let mut batch = Batch::with_room(vec![], blocks as usize + 2, blocks as usize);
        for block in 0..blocks {
            batch.write(block, |data, meta| {
                data.fill(tag);
                meta.fill(tag);
            });
        }
        batch.erase(9, 3);
        batch.move_segment(4, Home::At(7));
        batch
    }

    fn replayed(ring: &mut Ring) -> Vec<u8> {
        let mut tags = vec![];
        ring.replay(|b| {
            assert_eq!(b.entries[b.entries.len() - 1], Entry::Move { segment: 4, home: Home::At(7) });
            tags.push(b.bytes[b.data_at]);
            Ok(())
        })
        .unwrap();
        tags
    }

    #[test]
    fn what_was_appended_is_replayed_around_the_circle() {
        let medium = Arc::new(MemoryMedium::new(LEN));
        Ring::create(&*medium, 0, LEN, &Secret::copy_from(&[1; 32])).unwrap();
        let mut expected: Vec<u8> = vec![];
        for round in 0..60u8 {
            let mut ring = open(&medium, round);
            assert_eq!(replayed(&mut ring), expected);
            if !ring.fits(9 * 4096) {
                ring.retire().unwrap();
                expected.clear();
            }
            ring.append(batch(round, u64::from(round % 7) + 1)).unwrap();
            expected.push(round);
        }
    }

    #[test]
    fn a_torn_last_batch_ends_the_log_and_a_torn_middle_one_is_an_attack() {
        let medium = Arc::new(MemoryMedium::new(LEN));
        Ring::create(&*medium, 0, LEN, &Secret::copy_from(&[1; 32])).unwrap();
        let mut ring = open(&medium, 1);
        for tag in 1..=3 {
            ring.append(batch(tag, 2)).unwrap();
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
    }
}
