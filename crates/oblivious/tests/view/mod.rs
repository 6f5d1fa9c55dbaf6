//! What the key of level 0 shows of a trace, read as the format is described and not by its own reader; and the bytes that
//! it does not open, counted.

use lacuna_core::{BLOCK_SIZE, Secret};
use lacuna_crypto::{AesBlock, XAES_NONCE, XaesKey, derive};
use lacuna_levels::{Entry, SALT_LEN, WriteKey};
use lacuna_oblivious::Params;
use lacuna_sim::{OpKind, Record};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

pub const CELL: usize = BLOCK_SIZE + 512;
const STASH_SLOTS: usize = 32;
const JOURNAL_START: u64 = 1 << 20;
// Of a head.
const DIGEST: Range<usize> = 48..64;
const LEVEL_0: Range<usize> = 64..168;
const LEVEL_0_TAG: Range<usize> = 168..184;
const CELLS_AT: usize = 1024;
const STASH_AT: usize = 2560;
const PUBLIC_AT: usize = 3072;
// Of a cell, after its block.
const NONCE: Range<usize> = BLOCK_SIZE..BLOCK_SIZE + XAES_NONCE;
const COVER: Range<usize> = NONCE.end..NONCE.end + 16;
const TAG: Range<usize> = COVER.end..COVER.end + 16;

/// How often each byte occurred.
pub struct Bytes([u64; 256]);

impl Bytes {
    fn count(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0[usize::from(*byte)] += 1);
    }

    pub fn add(&mut self, other: &Bytes) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// Asserts that these could be random bytes.
    pub fn assert_uniform(&self, what: &str) {
        let all: u64 = self.0.iter().sum();
        assert!(all > 1 << 20, "{what}: {all} bytes show nothing");
        let statistic = chi_square(&self.0);
        // Mean 255, standard deviation 22.6: six of them away.
        assert!((120.0..392.0).contains(&statistic), "{what}: chi-square {statistic} over {all} bytes");
        let ones: u64 = (0u64..).zip(self.0).map(|(byte, count)| u64::from(byte.count_ones()) * count).sum();
        let bits = all as f64 * 8.0;
        assert!(
            (ones as f64 - bits / 2.0).abs() < 6.0 * (bits / 4.0).sqrt(),
            "{what}: {ones} ones of {bits}"
        );
    }
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes([0; 256])
    }
}

/// The chi-square statistic of counts, against uniform.
pub fn chi_square(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    counts.iter().map(|n| (*n as f64 - expected).powi(2) / expected).sum()
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A block of level 0: what it is, and a hash of what it holds.
pub type Block = (Entry, u64);

/// What a write shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    Nothing,
    /// Salt, public part, what level 0 says of itself, and what it put into which cells and slots of the stash.
    Head(Vec<u8>, Vec<(usize, Entry)>, Vec<(usize, Entry)>),
    /// The blocks of level 0 among the cells and slots of a batch.
    Record(Vec<Option<Block>>),
    /// A cell, written in place.
    Cell(u64, Option<Block>),
}

/// One write or sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: OpKind,
    pub offset: u64,
    pub len: u64,
    pub ok: bool,
    pub shown: Shown,
}

impl Seen {
    /// What everybody sees.
    pub fn outside(&self) -> (OpKind, u64, u64, bool) {
        (self.kind, self.offset, self.len, self.ok)
    }
}

/// Someone with the key of level 0 who watches the medium.
pub struct Observer {
    params: Params,
    level0: Secret<32>,
    blocks: XaesKey,
    entries: AesBlock,
    /// The batch that put the block of level 0 into its cell.
    placed: HashMap<u64, u64>,
    /// What the ring last had for each cell, hashed, and what that shows.
    in_ring: HashMap<u64, (u64, Option<Block>)>,
    /// A record whose head is still to come.
    record: Vec<u8>,
    pub trace: Vec<Seen>,
    /// All bytes of records and heads.
    pub all: Bytes,
    /// Those that the key does not open.
    pub rest: Bytes,
}

impl Observer {
    pub fn new(params: &Params, master: &Secret<32>, uuid: &[u8; 16]) -> Observer {
        let level0 = derive(master, "oblivious level", uuid);
        Observer {
            params: *params,
            blocks: XaesKey::new(&derive(&level0, "oblivious cell", &[])),
            entries: AesBlock::new(&derive(&level0, "oblivious entry", &[])),
            level0,
            placed: HashMap::new(),
            in_ring: HashMap::new(),
            record: Vec::new(),
            trace: Vec::new(),
            all: Bytes::default(),
            rest: Bytes::default(),
        }
    }

    /// Writes and syncs, as they come; reads leave no trace on a medium.
    pub fn watch(&mut self, records: Vec<Record>) {
        for record in records.into_iter().filter(|record| record.kind != OpKind::Read) {
            let Record { kind, offset, len, ok, contents, .. } = record;
            let shown = contents.map_or(Shown::Nothing, |bytes| self.read(offset, bytes));
            self.trace.push(Seen { kind, offset, len, ok, shown });
        }
    }

    pub fn cells_start(&self) -> u64 {
        self.ring_start() + u64::from(self.params.ring) * ((self.cells() + STASH_SLOTS) * CELL) as u64
    }

    fn ring_start(&self) -> u64 {
        JOURNAL_START + 2 * u64::from(self.params.journal) * BLOCK_SIZE as u64
    }

    fn cells(&self) -> usize {
        self.params.batch_cells()
    }

    fn read(&mut self, offset: u64, bytes: Vec<u8>) -> Shown {
        if offset >= self.cells_start() {
            let (cell, within) =
                ((offset - self.cells_start()) / CELL as u64, (offset - self.cells_start()) % CELL as u64);
            assert!(within == 0 && bytes.len() == CELL, "a cell is written whole");
            let (ring, block) = self.in_ring.get(&cell).expect("it was in the ring before");
            assert!(*ring == hash(&bytes), "what goes in place is what was in the ring");
            return Shown::Cell(cell, *block);
        }
        if offset >= self.ring_start() {
            assert_eq!(bytes.len(), (self.cells() + STASH_SLOTS) * CELL);
            self.record = bytes;
            return Shown::Nothing;
        }
        assert_eq!(bytes.len(), BLOCK_SIZE);
        self.head(&bytes)
    }

    /// Reads a head, and when its first copy comes the record before it.
    fn head(&mut self, head: &[u8]) -> Shown {
        let salt: [u8; SALT_LEN] = head[..SALT_LEN].try_into().unwrap();
        let key = WriteKey::derive(&self.level0, "oblivious batch", &salt).unwrap();
        let mut public = head[PUBLIC_AT..].to_vec();
        let tag = head[SALT_LEN..DIGEST.start].try_into().unwrap();
        key.open(1, 0, &head[DIGEST.start..PUBLIC_AT], &mut public, &tag).expect("a head of level 0");
        let mut level = head[LEVEL_0].to_vec();
        key.open(3, 0, &[], &mut level, &head[LEVEL_0_TAG].try_into().unwrap()).expect("what level 0 says");
        let covers = |domain: u8, at: usize, count: usize| -> Vec<(usize, Entry)> {
            let cover = |slot: usize| &head[at + slot * 16..at + slot * 16 + 16];
            (0..count)
                .filter_map(|slot| Some((slot, key.uncover(domain, slot as u8, cover(slot))?)))
                .collect()
        };
        let (put, stashed) = (covers(4, CELLS_AT, self.cells()), covers(5, STASH_AT, STASH_SLOTS));
        if !self.record.is_empty() {
            assert!(head[DIGEST] == key.digest(2, &self.record), "a head belongs to its record");
            self.all.count(head);
            self.rest.count(&head[LEVEL_0_TAG.end..CELLS_AT]);
            for (at, count, known) in [(CELLS_AT, 96, &put), (STASH_AT, STASH_SLOTS, &stashed)] {
                let hidden = (0..count).filter(|slot| known.iter().all(|(of, _)| of != slot));
                hidden.for_each(|slot| self.rest.count(&head[at + slot * 16..at + slot * 16 + 16]));
            }
            let blocks = self.record(&public, &put, &stashed);
            self.trace.last_mut().expect("the record").shown = Shown::Record(blocks);
        }
        Shown::Head([&salt[..], &public, &level].concat(), put, stashed)
    }

    fn record(
        &mut self,
        public: &[u8],
        put: &[(usize, Entry)],
        stashed: &[(usize, Entry)],
    ) -> Vec<Option<Block>> {
        let record = std::mem::take(&mut self.record);
        let word = |at: usize| u64::from_le_bytes(public[at..at + 8].try_into().unwrap());
        let seq = word(0);
        self.all.count(&record);
        let mut blocks = Vec::new();
        for (slot, bytes) in record.chunks_exact(CELL).enumerate() {
            let (place, listed) = match slot.checked_sub(self.cells()) {
                Some(slot) => {
                    let listed = stashed.iter().find(|(of, _)| *of == slot);
                    (1 << 63 | seq << 40 | slot as u64, listed)
                }
                None => {
                    let cell = word(40 + slot * 8);
                    let listed = put.iter().find(|(of, _)| *of == slot);
                    if listed.is_some() {
                        self.placed.insert(cell, seq);
                    }
                    (self.placed.get(&cell).unwrap_or(&0) << 40 | (cell + 1), listed)
                }
            };
            let block = self.open(place, bytes);
            if let Some((_, entry)) = listed {
                assert_eq!(block.map(|(entry, _)| entry), Some(*entry), "a head says what a cell holds");
            }
            if slot < self.cells() {
                let cell = word(40 + slot * 8);
                self.in_ring.insert(cell, (hash(bytes), block));
            }
            blocks.push(block);
        }
        blocks
    }

    /// The block of level 0 in a cell, if there is one, and counts what it leaves closed.
    fn open(&mut self, place: u64, bytes: &[u8]) -> Option<Block> {
        let nonce: [u8; XAES_NONCE] = bytes[NONCE].try_into().unwrap();
        let pad = self.entries.encrypt(nonce[..16].try_into().unwrap());
        let plain: Vec<u8> = pad.iter().zip(&bytes[COVER]).map(|(pad, byte)| pad ^ byte).collect();
        let (packed, check) = plain.split_at(8);
        if check != [0; 8] {
            self.rest.count(bytes);
            return None;
        }
        self.rest.count(&nonce);
        self.rest.count(&bytes[TAG.end..]);
        let packed: [u8; 8] = packed.try_into().unwrap();
        let entry = Entry::unpack(u64::from_le_bytes(packed)).expect("zeros by chance come once in 2^64");
        let aad = [place.to_le_bytes(), packed].concat();
        let mut block = bytes[..BLOCK_SIZE].to_vec();
        let opened = self.blocks.open_in_place(&nonce, &aad, &mut block, &bytes[TAG].try_into().unwrap());
        opened.unwrap().expect("what level 0 has in a cell verifies");
        Some((entry, hash(&block)))
    }
}
