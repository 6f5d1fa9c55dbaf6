//! Decrypts a trace with the keys of levels 0 to *d*, independently of the format's own reader, and
//! counts the bytes that these keys do not decrypt.

use lacuna_contracts::{BLOCK_SIZE, Secret};
use lacuna_crypto::{AesBlock, XAES_NONCE, XaesKey, derive};
use lacuna_levels::{SALT_LEN, SlotEntry, WriteKey};
use lacuna_oblivious::Params;
use lacuna_sim::{OpKind, RecordedOp};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

use crate::fixture::regions::{CELL, GROUP, GROUP_LEN, Regions, STASH_SLOTS};

// Offsets in a head.
const DIGEST: Range<usize> = 48..64;
const LEVELS_AT: usize = 64;
const COVERS_AT: usize = 544;
const STASH_AT: usize = 2336;
const PUBLIC_AT: usize = 2720;
// Offsets in a cell, after its block.
const NONCE: Range<usize> = BLOCK_SIZE..BLOCK_SIZE + XAES_NONCE;
const COVER: Range<usize> = NONCE.end..NONCE.end + 16;
const TAG: Range<usize> = COVER.end..COVER.end + 16;

/// A histogram of bytes.
pub(crate) struct ByteHistogram([u64; 256]);

impl ByteHistogram {
    fn count(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0[usize::from(*byte)] += 1);
    }

    pub(crate) fn add(&mut self, other: &ByteHistogram) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// Asserts that the bytes pass tests of randomness.
    pub(crate) fn assert_uniform(&self, what: &str) {
        let all: u64 = self.0.iter().sum();
        assert!(all > 1 << 20, "{what}: {all} bytes show nothing");
        let statistic = chi_square(&self.0);
        // Mean 255, standard deviation 22.6: at most six deviations away.
        assert!((120.0..392.0).contains(&statistic), "{what}: chi-square {statistic} over {all} bytes");
        let ones: u64 = (0u64..).zip(self.0).map(|(byte, count)| u64::from(byte.count_ones()) * count).sum();
        let bits = all as f64 * 8.0;
        assert!(
            (ones as f64 - bits / 2.0).abs() < 6.0 * (bits / 4.0).sqrt(),
            "{what}: {ones} ones of {bits}"
        );
    }
}

impl Default for ByteHistogram {
    fn default() -> ByteHistogram {
        ByteHistogram([0; 256])
    }
}

/// The chi-square statistic of counts against a uniform distribution.
pub(crate) fn chi_square(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    counts.iter().map(|n| (*n as f64 - expected).powi(2) / expected).sum()
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A decrypted block: its level, entry and place, and a hash of its content.
pub(crate) type DecryptedBlock = (u8, u64, u64, u64);

/// The decrypted content of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DecryptedWrite {
    Nothing,
    /// A head: its salt and public part, and for each known level the level's body and the entries
    /// of its cells.
    Head(Vec<u8>, Vec<(Vec<u8>, Vec<u64>)>),
    /// A record: the decrypted blocks of the cells and slots of a batch.
    Record(Vec<Option<DecryptedBlock>>),
    /// A cell that is written in place.
    Cell(u64, Option<DecryptedBlock>),
}

/// One write or sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedOp {
    pub kind: OpKind,
    pub offset: u64,
    pub len: u64,
    pub ok: bool,
    pub decrypted: DecryptedWrite,
}

impl ObservedOp {
    /// The part that an adversary without keys sees.
    pub(crate) fn visible_part(&self) -> (OpKind, u64, u64, bool) {
        (self.kind, self.offset, self.len, self.ok)
    }
}

struct ObserverKeys {
    level: Secret<32>,
    blocks: XaesKey,
    entries: AesBlock,
}

/// An adversary with the keys of levels 0 to some depth that observes the medium.
pub(crate) struct TraceObserver {
    params: Params,
    regions: Regions,
    known: Vec<ObserverKeys>,
    /// For each cell its contents in the ring, hashed, and their decrypted blocks.
    in_ring: HashMap<u64, HashMap<u64, Option<DecryptedBlock>>>,
    in_meta: HashSet<u64>,
    /// A record whose head was not written yet.
    record: Vec<u8>,
    pub trace: Vec<ObservedOp>,
    /// All bytes of records and heads.
    pub all_bytes: ByteHistogram,
    /// The bytes that the keys do not decrypt.
    pub undecrypted: ByteHistogram,
}

impl TraceObserver {
    pub(crate) fn new(params: &Params, masters: &[Secret<32>], uuid: &[u8; 16]) -> TraceObserver {
        let known = masters.iter().map(|master| {
            let level = derive(master, "oblivious level", uuid);
            ObserverKeys {
                blocks: XaesKey::new(&derive(&level, "oblivious cell", &[])),
                entries: AesBlock::new(&derive(&level, "oblivious entry", &[])),
                level,
            }
        });
        TraceObserver {
            params: *params,
            regions: Regions::of(params),
            known: known.collect(),
            in_ring: HashMap::new(),
            in_meta: HashSet::new(),
            record: Vec::new(),
            trace: Vec::new(),
            all_bytes: ByteHistogram::default(),
            undecrypted: ByteHistogram::default(),
        }
    }

    /// Observes writes and syncs in order; reads leave no trace on a medium.
    pub(crate) fn observe(&mut self, records: Vec<RecordedOp>) {
        for record in records.into_iter().filter(|record| record.kind != OpKind::Read) {
            let RecordedOp { kind, offset, len, ok, contents, .. } = record;
            let shown = contents.map_or(DecryptedWrite::Nothing, |bytes| self.decrypt_write(offset, bytes));
            self.trace.push(ObservedOp { kind, offset, len, ok, decrypted: shown });
        }
    }

    pub(crate) fn cells_start(&self) -> u64 {
        self.regions.cells_start as u64
    }

    /// The cells of a batch that belong to a level.
    fn slots(&self, level: usize) -> Range<usize> {
        let operations = usize::from(self.params.plan.operations);
        let of = |level: usize| match level {
            0 => operations,
            1 => (operations / 2).max(3),
            2 => (operations / 8).max(3),
            _ => 3,
        };
        let k = usize::from(self.params.plan.per_write);
        let drawn = |level: usize| (of(level) * k).next_multiple_of(GROUP);
        let first = (0..level).map(drawn).sum::<usize>();
        first..first + drawn(level)
    }

    fn decrypt_write(&mut self, offset: u64, bytes: Vec<u8>) -> DecryptedWrite {
        if offset >= self.cells_start() {
            let at = (offset - self.cells_start()) as usize;
            let (group, within) = (at / GROUP_LEN, at % GROUP_LEN);
            if within >= GROUP * BLOCK_SIZE {
                assert!(
                    bytes.len() == CELL - BLOCK_SIZE && self.in_meta.contains(&hash(&bytes)),
                    "metadata that was in the ring"
                );
                return DecryptedWrite::Nothing;
            }
            assert!(within.is_multiple_of(BLOCK_SIZE) && bytes.len() == BLOCK_SIZE, "a cell is a page");
            let cell = (group * GROUP + within / BLOCK_SIZE) as u64;
            let block = self.in_ring.get(&cell).and_then(|known| known.get(&hash(&bytes)));
            return DecryptedWrite::Cell(cell, *block.expect("blocks that go in place were in the ring"));
        }
        if offset >= self.regions.ring_start as u64 {
            assert_eq!(bytes.len(), self.regions.record);
            self.record = bytes;
            return DecryptedWrite::Nothing;
        }
        assert_eq!(bytes.len(), BLOCK_SIZE);
        self.read_head(&bytes)
    }

    /// Reads a head, and with its first copy the record before it.
    fn read_head(&mut self, head: &[u8]) -> DecryptedWrite {
        let salt: [u8; SALT_LEN] = head[..SALT_LEN].try_into().unwrap();
        let keys: Vec<WriteKey> = self
            .known
            .iter()
            .map(|known| WriteKey::derive(&known.level, "oblivious batch", &salt).unwrap())
            .collect();
        let mut public = head[PUBLIC_AT..].to_vec();
        let tag = head[SALT_LEN..DIGEST.start].try_into().unwrap();
        keys[0].open(1, 0, &head[DIGEST.start..PUBLIC_AT], &mut public, &tag).expect("a head of level 0");
        let mut level_parts = Vec::new();
        for (level, key) in keys.iter().enumerate() {
            let slots = self.slots(level);
            let covers = &head[COVERS_AT + slots.start * 8..COVERS_AT + slots.end * 8];
            let stash = if level == 0 { &head[STASH_AT..PUBLIC_AT] } else { &[] };
            let at = LEVELS_AT + level * 120;
            let mut body = head[at..at + 104].to_vec();
            let tag = head[at + 104..at + 120].try_into().unwrap();
            key.open(3, level as u8, &[covers, stash].concat(), &mut body, &tag)
                .expect("the part of a level verifies");
            let entry = |domain: u8, slot: usize, cover: &[u8]| {
                let pad = key.encrypt_entry(domain, slot as u8, SlotEntry::Empty);
                let plain: Vec<u8> = cover.iter().zip(pad).map(|(byte, pad)| byte ^ pad).collect();
                u64::from_le_bytes(plain.try_into().unwrap())
            };
            let put = slots.zip(covers.chunks_exact(8)).map(|(slot, cover)| entry(4, slot, cover));
            let stashed = stash.chunks_exact(8).enumerate().map(|(slot, cover)| entry(5, slot, cover));
            level_parts.push((body, put.chain(stashed).collect()));
        }
        if !self.record.is_empty() {
            assert!(head[DIGEST] == keys[0].digest(2, &self.record), "a head belongs to its record");
            self.all_bytes.count(head);
            let known = self.slots(self.known.len() - 1).end;
            self.undecrypted.count(&head[LEVELS_AT + self.known.len() * 120..COVERS_AT]);
            self.undecrypted.count(&head[COVERS_AT + known * 8..STASH_AT]);
            let blocks = self.read_record(&public, &level_parts);
            self.trace.last_mut().expect("the record").decrypted = DecryptedWrite::Record(blocks);
        }
        DecryptedWrite::Head([&salt[..], &public].concat(), level_parts)
    }

    fn read_record(
        &mut self,
        public: &[u8],
        level_parts: &[(Vec<u8>, Vec<u64>)],
    ) -> Vec<Option<DecryptedBlock>> {
        let record = std::mem::take(&mut self.record);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let seq = number(&public[..8]);
        self.all_bytes.count(&record);
        let drawn = self.params.batch_cells();
        let mut blocks = Vec::new();
        for (slot, bytes) in record.chunks_exact(CELL).enumerate().take(drawn + STASH_SLOTS) {
            let level = (0..self.known.len()).find(|level| self.slots(*level).contains(&slot));
            let level = if slot < drawn { level } else { Some(0) };
            let block = level.and_then(|level| self.open_cell(level, bytes));
            if block.is_none() {
                self.undecrypted.count(bytes);
            }
            if let Some((level, entry, place, _)) = block {
                let listed = &level_parts[usize::from(level)].1;
                let at = if slot < drawn {
                    slot - self.slots(level.into()).start
                } else {
                    slot - drawn + self.slots(0).len()
                };
                // A head has no entry for an unchanged cell, or for a slot with a random filler.
                let now = place >> 40 & ((1 << 23) - 1) == seq;
                assert_eq!(listed[at], if now { entry } else { 0 }, "a head names the content of a cell");
            }
            if slot < drawn {
                let at = 40 + slot / GROUP * 5;
                let cell = number(&public[at..at + 5]) * GROUP as u64 + (slot % GROUP) as u64;
                self.in_ring.entry(cell).or_default().insert(hash(&bytes[..BLOCK_SIZE]), block);
                self.in_meta.insert(hash(&bytes[BLOCK_SIZE..]));
            }
            blocks.push(block);
        }
        blocks
    }

    /// The decrypted block of a level in a cell, if there is one. Counts the bytes that stay
    /// encrypted.
    fn open_cell(&mut self, level: usize, bytes: &[u8]) -> Option<DecryptedBlock> {
        let known = &self.known[level];
        let nonce: [u8; XAES_NONCE] = bytes[NONCE].try_into().unwrap();
        let pad = known.entries.encrypt(nonce[..16].try_into().unwrap());
        let plain: Vec<u8> = pad.iter().zip(&bytes[COVER]).map(|(pad, byte)| pad ^ byte).collect();
        let word = |at: usize| u64::from_le_bytes(plain[at..at + 8].try_into().unwrap());
        let (entry, place) = (word(0), word(8));
        let aad = [place.to_le_bytes(), entry.to_le_bytes()].concat();
        let mut block = bytes[..BLOCK_SIZE].to_vec();
        let opened = known.blocks.open_in_place(&nonce, &aad, &mut block, &bytes[TAG].try_into().unwrap());
        opened.unwrap().ok()?;
        self.undecrypted.count(&nonce);
        self.undecrypted.count(&bytes[TAG.end..]);
        Some((level as u8, entry, place, hash(&block)))
    }
}
