//! One batch of the journal: assembles it, and parses it.
//!
//! Invariant: any bytes of a medium are parsed without a panic, and without allocating more than
//! [`MAX_BATCH`].

use crate::address::{SegmentNo, SlotNo};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, LeReader, LeWriter, Result};
use lacuna_crypto::GcmKey;

/// Bytes of the head at the start of a batch.
pub(super) const HEAD_LEN: usize = 64;
const ENTRY: usize = 48;
const MAGIC: [u8; 8] = *b"LACRING1";
/// The longest batch, in bytes: bounds the allocations of a reader.
pub(super) const MAX_BATCH: usize = 8 << 20;

/// The entry of one block or segment. The numbers are unchecked; the reader checks them against the
/// disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BatchEntry {
    /// The next data block of the batch is the ciphertext of `block`, with this metadata.
    Write { block: BlockAddr, meta: [u8; 32] },
    /// These blocks are unwritten from this batch onwards.
    Erase { block: BlockAddr, count: u32 },
    /// The segment has this slot from this batch onwards, or none; earlier entries for its blocks
    /// are void.
    Move { segment: u64, slot: Option<u64> },
}

/// A batch under construction, as the bytes to be written.
pub(crate) struct JournalBatch {
    /// As long as the batch may become; bytes after `len` are from an earlier batch.
    buf: Vec<u8>,
    len: usize,
    entries: usize,
    max_entries: usize,
    head_len: usize,
}

impl JournalBatch {
    /// An empty batch with room for `entries` entries and `blocks` data blocks, in a buffer of an
    /// earlier batch or an empty one.
    pub(crate) fn with_room(mut buf: Vec<u8>, entries: usize, blocks: usize) -> JournalBatch {
        let head_len = (HEAD_LEN + entries * ENTRY).next_multiple_of(BLOCK_SIZE);
        buf.resize(head_len + blocks * BLOCK_SIZE, 0);
        buf[..head_len].fill(0);
        JournalBatch { buf, len: head_len, entries: 0, max_entries: entries, head_len }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Bytes of a batch with this number of entries and data blocks.
    pub(crate) fn len_for(entries: usize, blocks: usize) -> usize {
        (HEAD_LEN + entries * ENTRY).next_multiple_of(BLOCK_SIZE) + blocks * BLOCK_SIZE
    }

    /// Adds a block; `fill` writes its ciphertext and its metadata in place. Returns the offset of
    /// the data.
    pub(crate) fn write(&mut self, block: BlockAddr, fill: impl FnOnce(&mut [u8], &mut [u8; 32])) -> usize {
        let at = self.len;
        self.len += BLOCK_SIZE;
        let mut meta = [0; 32];
        fill(&mut self.buf[at..at + BLOCK_SIZE], &mut meta);
        self.entry(1, 0, block.0, &meta);
        at
    }

    pub(crate) fn erase(&mut self, block: BlockAddr, count: u32) {
        self.entry(2, count, block.0, &[0; 32]);
    }

    pub(crate) fn move_segment(&mut self, segment: SegmentNo, slot: Option<SlotNo>) {
        let mut meta = [0; 32];
        if let Some(slot) = slot {
            LeWriter(&mut meta).u64(0, u64::from(slot.get()) + 1);
        }
        self.entry(3, 0, u64::from(segment.get()), &meta);
    }

    fn entry(&mut self, kind: u8, count: u32, addr: u64, meta: &[u8; 32]) {
        assert!(self.entries < self.max_entries, "a batch holds no more entries than it was made for");
        let at = HEAD_LEN + self.entries * ENTRY;
        let mut out = LeWriter(&mut self.buf[at..at + ENTRY]);
        out.put(0, &[kind]).u32(4, count).u64(8, addr).put(16, meta);
        self.entries += 1;
    }

    /// Bytes of the batch.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Completes the batch with its number, salt and tag. `key_of` returns salt and key, given all
    /// other bytes.
    pub(super) fn finish(
        self,
        seq: u64,
        key_of: impl FnOnce(&[u8]) -> Result<([u8; 16], GcmKey)>,
    ) -> Result<Vec<u8>> {
        let mut buf = self.buf;
        buf.truncate(self.len);
        let mut head = LeWriter(&mut buf);
        head.put(0, &MAGIC).u64(8, seq);
        head.u32(32, self.entries as u32).u32(36, self.head_len as u32).u32(40, self.len as u32);
        let (salt, key) = key_of(&buf)?;
        LeWriter(&mut buf).put(16, &salt);
        let tag = key.seal(&nonce(seq), &buf, &[], &mut []);
        buf[48..64].copy_from_slice(&tag);
        Ok(buf)
    }
}

/// A batch read back.
pub(crate) struct ParsedBatch {
    pub(crate) seq: u64,
    pub(crate) entries: Vec<BatchEntry>,
    pub(crate) data_at: usize,
    pub(crate) bytes: Vec<u8>,
}

impl ParsedBatch {
    /// Parses the batch in `bytes`, which begin with `head` and have the length in it; `None` if
    /// its tag does not verify under `key`.
    pub(super) fn verify(mut bytes: Vec<u8>, head: &BatchHead, key: &GcmKey) -> Option<ParsedBatch> {
        let place = bytes.get_mut(48..64)?;
        let tag: [u8; 16] = (&*place).try_into().ok()?;
        place.fill(0);
        key.open(&nonce(head.seq), &bytes, &[], &tag, &mut []).ok()?;
        let entries = parse_entries(&bytes, head)?;
        Some(ParsedBatch { seq: head.seq, entries, data_at: head.head_len, bytes })
    }
}

/// The plaintext head of a batch, which holds its length.
pub(super) struct BatchHead {
    pub(super) seq: u64,
    pub(super) salt: [u8; 16],
    entries: usize,
    head_len: usize,
    pub(super) total: usize,
}

impl BatchHead {
    pub(super) fn parse(bytes: &[u8; HEAD_LEN]) -> Option<BatchHead> {
        let record = LeReader(bytes);
        let head = BatchHead {
            seq: record.u64(8),
            salt: record.array(16),
            entries: record.u32(32) as usize,
            head_len: record.u32(36) as usize,
            total: record.u32(40) as usize,
        };
        let sane = bytes[..8] == MAGIC
            && head.total <= MAX_BATCH
            && head.head_len <= head.total
            && head.entries <= MAX_BATCH / ENTRY
            && HEAD_LEN + head.entries * ENTRY <= head.head_len
            && head.head_len.is_multiple_of(BLOCK_SIZE)
            && head.total.is_multiple_of(BLOCK_SIZE);
        sane.then_some(head)
    }
}

/// Parses the entries of a batch with a verified tag; `None` if no correct writer could have made
/// them.
fn parse_entries(bytes: &[u8], head: &BatchHead) -> Option<Vec<BatchEntry>> {
    let table = bytes.get(HEAD_LEN..HEAD_LEN + head.entries * ENTRY)?;
    let mut writes = 0;
    let mut entries = Vec::with_capacity(head.entries);
    for e in table.as_chunks::<ENTRY>().0 {
        let record = LeReader(e);
        let (count, addr, meta) = (record.u32(4), record.u64(8), record.array(16));
        entries.push(match e[0] {
            1 => {
                writes += 1;
                BatchEntry::Write { block: BlockAddr(addr), meta }
            }
            2 => BatchEntry::Erase { block: BlockAddr(addr), count },
            3 => BatchEntry::Move { segment: addr, slot: record.u64(16).checked_sub(1) },
            _ => return None,
        });
    }
    (head.head_len + writes * BLOCK_SIZE == head.total).then_some(entries)
}

/// The number of entries of a batch, parsed without a key; 0 if it does not parse. It must neither
/// panic nor allocate beyond its input.
#[cfg(feature = "fuzzing")]
pub fn count_entries(bytes: &[u8]) -> usize {
    let Some(head) = bytes.first_chunk::<HEAD_LEN>().and_then(BatchHead::parse) else { return 0 };
    if bytes.len() < head.total { 0 } else { parse_entries(bytes, &head).map_or(0, |e| e.len()) }
}

fn nonce(seq: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&seq.to_le_bytes());
    nonce
}
