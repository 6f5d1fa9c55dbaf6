//! Compares `docs/format/oblivious.md` with the medium: parses the tables of the page, and reads a
//! fresh disk with nothing but them and the primitives that they name.

mod fixture;

use fixture::{UUID, create, fill, flush_hidden, master_keys, open, params, stamp_of};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Secret};
use lacuna_crypto::{AesBlock, GcmKey, derive};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Levels, Params, VERSION};
use lacuna_testkit::format_page::{Fields, FormatPage, number};
use lacuna_testkit::levels::{FreshDisk, fresh_disk};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A block of each level, written last, and its version.
const WRITTEN: [(u64, u64); 2] = [(7, 11), (9, 22)];

fn page() -> FormatPage {
    FormatPage::read("oblivious")
}

fn named(heading: &str, name: &str) -> String {
    page().value_of(heading, name)
}

fn constant(name: &str) -> u64 {
    page().constant(name)
}

fn fields(heading: &str, len: usize) -> Fields {
    page().fields(heading).assert_len(len)
}

fn domain(name: &str) -> u8 {
    named("Keys", name).parse().unwrap()
}

/// The label in the row of a key.
fn label(key: &str) -> String {
    let row = named("Keys", key);
    row.split("label `").nth(1).unwrap().split('`').next().unwrap().to_string()
}

fn level_key(level: usize) -> Secret<32> {
    derive(&master_keys(2)[level], &label("level key"), &UUID)
}

/// Decrypts a cover with this pad: an entry and, in a cell, the place.
fn uncovered(pad: [u8; 16], cover: &[u8]) -> Vec<u64> {
    let plain: Vec<u8> = cover.iter().zip(pad).map(|(byte, pad)| byte ^ pad).collect();
    plain.chunks(8).map(number).collect()
}

fn data(addr: u64) -> u64 {
    named("Entries", "data").parse::<u64>().unwrap() << 56 | addr
}

fn leaf(index: u64) -> u64 {
    named("Entries", "page").parse::<u64>().unwrap() << 56 | index
}

/// XAES-256-GCM by its specification, from AES and AES-256-GCM.
fn xaes_open(key: &Secret<32>, nonce: &[u8], aad: &[u8], bytes: &[u8], tag: &[u8]) -> Vec<u8> {
    let aes = AesBlock::new(key);
    let first = u128::from_be_bytes(aes.encrypt([0; 16]));
    let subkey = first << 1 ^ if first >> 127 == 1 { 0x87 } else { 0 };
    let half = |counter: u8| {
        let mut message = [0; 16];
        message[..4].copy_from_slice(&[0, counter, b'X', 0]);
        message[4..].copy_from_slice(&nonce[..12]);
        aes.encrypt((u128::from_be_bytes(message) ^ subkey).to_be_bytes())
    };
    let derived = [half(1), half(2)].concat();
    let gcm = GcmKey::new(&Secret::copy_from(derived[..].try_into().unwrap())).unwrap();
    let mut plain = vec![0; bytes.len()];
    let nonce = nonce[12..].try_into().unwrap();
    gcm.open(&nonce, aad, bytes, tag.try_into().unwrap(), &mut plain).expect("a cell");
    plain
}

/// The two keys of a level for a batch.
struct BatchKeys(GcmKey, AesBlock);

impl BatchKeys {
    fn of(level: usize, salt: &[u8]) -> BatchKeys {
        let both: Secret<64> = derive(&level_key(level), &label("batch key"), salt);
        let half = |at: usize| Secret::copy_from(both.expose()[at..at + 32].try_into().unwrap());
        BatchKeys(GcmKey::new(&half(0)).unwrap(), AesBlock::new(&half(32)))
    }

    fn open(&self, name: &str, index: u8, aad: &[u8], bytes: &[u8], tag: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; 12];
        nonce[..2].copy_from_slice(&[domain(name), index]);
        let mut plain = vec![0; bytes.len()];
        self.0.open(&nonce, aad, bytes, tag.try_into().unwrap(), &mut plain).ok().map(|()| plain)
    }

    /// The entry in a cover; none if it is empty.
    fn uncover(&self, name: &str, index: usize, cover: &[u8]) -> Option<u64> {
        let mut block = [0; 16];
        block[..2].copy_from_slice(&[domain(name), index as u8]);
        Some(uncovered(self.1.encrypt(block), cover)[0]).filter(|entry| *entry != 0)
    }
}

/// A medium, and its layout as the page defines it.
struct PageReader {
    bytes: Vec<u8>,
    cells_of_batch: usize,
    ring: u64,
    journal: u64,
    ring_start: usize,
    record: usize,
    cells_start: usize,
    /// The first cell of each level among those of a batch.
    slots: Vec<usize>,
}

/// A head that verified, its public part in the clear.
struct PageHead<'a> {
    block: &'a [u8],
    public: Vec<u8>,
}

impl PageReader {
    fn new(bytes: Vec<u8>, params: &Params) -> PageReader {
        let field = fields("Parameters", 64);
        let encoded = params.encode();
        let value = |name: &str| number(&encoded[field[name].clone()]);
        let (ring, journal) = (value("ring"), value("journal heads"));
        let operations = value("operations");
        let inserted = [8, 2].map(|part| operations * part / 16);
        let inserted = [operations, inserted[0].max(3), inserted[1].max(3), 3, 1];
        let mut slots = vec![0];
        inserted
            .iter()
            .map(|count| (count * value("per write")).next_multiple_of(constant("group")) as usize)
            .for_each(|drawn| slots.push(slots[slots.len() - 1] + drawn));
        let cells_of_batch = slots[5];
        let ring_start = (constant("journal") + 2 * journal * constant("block")) as usize;
        let record = (cells_of_batch + constant("stash slots") as usize) * constant("cell length") as usize;
        let record = record.next_multiple_of(4096);
        let cells_start = ring_start + ring as usize * record;
        PageReader { bytes, cells_of_batch, ring, journal, ring_start, record, cells_start, slots }
    }

    fn head(&self, seq: u64, copy: u64) -> PageHead<'_> {
        let at = (constant("journal") + (copy * self.journal + seq % self.journal) * 4096) as usize;
        let block = &self.bytes[at..at + 4096];
        let field = fields("Head", 4096);
        let aad = &block[field["digest"].start..field["public part"].start];
        let keys = BatchKeys::of(0, &block[field["salt"].clone()]);
        let part = &block[field["public part"].clone()];
        let public = keys.open("public", 0, aad, part, &block[field["tag"].clone()]).expect("a head");
        assert_eq!(number(&public[public_field("seq")]), seq);
        PageHead { block, public }
    }

    /// The last batch of a disk with a journal that has not wrapped around.
    fn end(&self) -> u64 {
        (1..self.journal).take_while(|seq| self.bytes[self.journal_at(*seq)] != [0; 32]).last().unwrap()
    }

    fn journal_at(&self, seq: u64) -> Range<usize> {
        let at = (constant("journal") + seq % self.journal * 4096) as usize;
        at..at + 32
    }

    fn record(&self, seq: u64) -> &[u8] {
        let at = self.ring_start + (seq % self.ring) as usize * self.record;
        &self.bytes[at..at + self.record]
    }

    /// The block of a level that lies in a cell in place.
    fn in_place(&self, level: usize, wanted: u64, place: u64) -> Vec<u8> {
        let cell = (place & ((1 << constant("cell bits")) - 1)) - 1;
        let (each, meta) = (constant("group"), constant("metadata") as usize);
        let group = self.cells_start + (cell / each * (each + 1)) as usize * 4096;
        let at = group + (cell % each) as usize * 4096;
        let rest = group + each as usize * 4096 + (cell % each) as usize * meta;
        let whole = [&self.bytes[at..at + 4096], &self.bytes[rest..rest + meta]].concat();
        open_cell(level, wanted, place, &whole)
    }
}

/// A closed disk of two levels with [`WRITTEN`]; all batches except the last are in place.
fn written(params: &Params) -> Vec<u8> {
    let FreshDisk { memory, disk, levels } = fresh_disk(params, 2, [1, 2]);
    for (level, (addr, stamp)) in levels.iter().zip(WRITTEN) {
        let mut block = vec![0; BLOCK_SIZE];
        fill(addr, stamp, &mut block);
        level.write(BlockAddr(addr), &block).unwrap();
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    // Until the maps are written out.
    (0..params.cycle + 3).for_each(|_| disk.refresh().unwrap());
    disk.close().unwrap();
    memory.snapshot()
}

/// The number of a cell of the batch, by its index.
fn cell_of(head: &PageHead<'_>, slot: usize) -> u64 {
    let (group, groups) = (constant("group") as usize, &head.public[public_field("groups")]);
    let at = slot / group * 5;
    number(&groups[at..at + 5]) * group as u64 + (slot % group) as u64
}

/// The position of a field in the public part of a head.
fn public_field(name: &str) -> Range<usize> {
    fields("Public part", 1376)[name].clone()
}

/// The block of a level in a cell, at a place.
fn open_cell(level: usize, wanted: u64, place: u64, cell: &[u8]) -> Vec<u8> {
    let field = fields("Cell", constant("cell length") as usize);
    let part = |name: &str| &cell[field[name].clone()];
    let entries = AesBlock::new(&derive(&level_key(level), &label("entry key"), &[]));
    let pad = entries.encrypt(part("nonce")[..16].try_into().unwrap());
    assert_eq!(uncovered(pad, part("cover")), [wanted, place], "level {level}");
    let aad = [place.to_le_bytes(), wanted.to_le_bytes()].concat();
    let key = derive(&level_key(level), &label("cell key"), &[]);
    xaes_open(&key, part("nonce"), &aad, part("block"), part("tag"))
}

#[test]
fn constants_and_parameters_match_the_page() {
    let p = params();
    let encoded = p.encode();
    let field = fields("Parameters", encoded.len());
    let value = |name: &str| number(&encoded[field[name].clone()]);
    assert_eq!(value("version"), u64::from(VERSION));
    assert_eq!(value("hiding"), 2);
    assert_eq!(value("per write"), u64::from(p.plan.per_write));
    assert_eq!(value("operations"), u64::from(p.plan.operations));
    assert_eq!(value("page writes"), u64::from(p.page_writes));
    assert_eq!(value("cover"), u64::from(p.plan.cover_millis));
    assert_eq!(value("ring"), u64::from(p.ring));
    assert_eq!(value("journal heads"), u64::from(p.journal));
    assert_eq!(value("cycle"), u64::from(p.cycle));
    assert_eq!(value("cells"), p.cells);
    assert_eq!(value("blocks"), p.blocks);
    assert_eq!(constant("block"), BLOCK_SIZE as u64);
    assert_eq!(constant("fanout") * 8, BLOCK_SIZE as u64);
    assert!(p.cells >= constant("least cells") && constant("cell bits") + constant("batch bits") == 63);
    let reader = PageReader::new(Vec::new(), &p);
    assert_eq!(
        p.end(),
        reader.cells_start as u64 + p.cells / constant("group") * (constant("group") + 1) * 4096
    );
    assert_eq!(reader.cells_of_batch, p.batch_cells());
    assert!(value("ring").is_multiple_of(constant("parts")));
    for (limit, name) in [("most cells of a batch", "covers"), ("stash slots", "stash covers")] {
        assert_eq!(fields("Head", 4096)[name].len() as u64, constant(limit) * 8);
    }
    let record = constant("trims") * 16 + 32 + 8 + 16;
    assert_eq!(fields("Head", 4096)["level records"].len() as u64, constant("levels") * record);
    fields("Level record", record as usize - 16);
    assert_eq!(u64::from(Params::HIDDEN_LEVELS) + 1, constant("levels"));
}

/// The regions, and the lengths of hidden levels, as the page defines them.
#[test]
fn level_lengths_match_the_page() {
    let p = params();
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(p.end()));
    create(&medium, &p, 4, 1).unwrap();
    let mut left = p.cells;
    for level in open(&medium, &p, 4, 2).unwrap().levels() {
        let region = if level.level() == 0 { left / 5 * 3 } else { left - left / 4 };
        let region = region / constant("group") * constant("group");
        left -= region;
        let usable = if p.plan.per_write == 2 { region / 3 } else { region / 2 };
        // All of them have maps of one leaf.
        let most = usable - 1;
        assert_eq!(p.max_blocks(level.level()), most);
        let key: Secret<8> = derive(
            &derive(&master_keys(4)[usize::from(level.level())], &label("level key"), &UUID),
            "oblivious length",
            &[],
        );
        let less = number(key.expose()) % (most / 16 + 1);
        assert_eq!(level.blocks(), if level.level() == 0 { p.blocks } else { most - less });
    }
}

#[test]
fn heads_match_the_page() {
    let p = params();
    let reader = PageReader::new(written(&p), &p);
    let (end, field) = (reader.end(), fields("Head", 4096));
    let mut previous = vec![0; 16];
    for seq in 1..=end {
        let head = reader.head(seq, 0);
        assert!(reader.head(seq, 1).block == head.block);
        let inside = |name: &str| &head.public[public_field(name)];
        assert_eq!(inside("previous"), previous);
        previous = head.block[..16].to_vec();
        assert!(number(inside("applied")) <= number(inside("synced")) && number(inside("synced")) < seq);
        if seq + reader.ring > end {
            let record = reader.record(seq);
            let starts: Vec<u8> = record.chunks(512).flat_map(|sector| sector[..16].to_vec()).collect();
            let keys = BatchKeys::of(0, &head.block[field["salt"].clone()]);
            keys.open("digest", 0, &starts, &[], &head.block[field["digest"].clone()]).expect("the digest");
        }
    }
    // The closing batch calls everything before it durable and in place.
    let last = reader.head(end, 0);
    assert_eq!(number(&last.public[public_field("applied")]), end - 1);
    assert!(last.public[public_field("zero")].iter().all(|&byte| byte == 0));
}

#[test]
fn both_levels_match_the_page() {
    let p = params();
    let reader = PageReader::new(written(&p), &p);
    let (end, field) = (reader.end(), fields("Head", 4096));
    let record_fields = fields("Level record", 104);
    for (level, (addr, stamp)) in WRITTEN.into_iter().enumerate() {
        let (mut root, mut noted) = (0, HashMap::new());
        for seq in 1..=end {
            let head = reader.head(seq, 0);
            let keys = BatchKeys::of(level, &head.block[field["salt"].clone()]);
            let at = field["level records"].start + level * 120;
            let (body, tag) = head.block[at..at + 120].split_at(104);
            let slots = reader.slots[level]..reader.slots[level + 1];
            let covers = field["covers"].start;
            let covers = &head.block[covers + slots.start * 8..covers + slots.end * 8];
            let stash = if level == 0 { &head.block[field["stash covers"].clone()] } else { &[] };
            let record = keys.open("level", level as u8, &[covers, stash].concat(), body, tag);
            let record = record.expect("the level was always open");
            root = number(&record[record_fields["root"].clone()]);
            for (slot, cover) in slots.zip(covers.chunks(8)) {
                if let Some(entry) = keys.uncover("cell", slot, cover) {
                    let batch = seq % (1 << constant("batch bits"));
                    noted.insert(entry, batch << constant("cell bits") | (cell_of(&head, slot) + 1));
                }
            }
            for (slot, cover) in stash.chunks(8).enumerate() {
                assert_eq!(keys.uncover("stash", slot, cover), None, "nothing waits");
            }
        }
        // The map of a level this small is one leaf.
        assert_eq!(noted[&leaf(0)], root);
        let map = map_of(&reader, level, root, end);
        let place = number(&map[addr as usize * 8..][..8]);
        assert_eq!(place, noted[&data(addr)]);
        let written: Vec<usize> = (0..512).filter(|at| number(&map[at * 8..][..8]) != 0).collect();
        assert_eq!(written, [addr as usize]);
        assert_eq!(stamp_of(addr, &find(&reader, level, data(addr), place, end)), Some(stamp));
    }
}

fn map_of(reader: &PageReader, level: usize, root: u64, end: u64) -> Vec<u8> {
    find(reader, level, leaf(0), root, end)
}

/// The block at a place: from the ring if a batch that no head calls applied rewrote the cell, else
/// in place.
fn find(reader: &PageReader, level: usize, wanted: u64, place: u64, end: u64) -> Vec<u8> {
    let cell = (place & ((1 << constant("cell bits")) - 1)) - 1;
    let applied = number(&reader.head(end, 0).public[public_field("applied")]);
    for seq in (applied + 1..=end).rev() {
        let head = reader.head(seq, 0);
        let slot = (0..reader.cells_of_batch).find(|slot| cell_of(&head, *slot) == cell);
        if let Some(slot) = slot {
            let len = constant("cell length") as usize;
            return open_cell(level, wanted, place, &reader.record(seq)[slot * len..(slot + 1) * len]);
        }
    }
    reader.in_place(level, wanted, place)
}
