//! `docs/format/flash.md` and the code agree: the code writes disks that a reader made from the
//! page reads, and lengths are as the page states.

mod fixture;
mod second_reader;

use fixture::{CreatedDisk, master, options, random};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_flash::{FlashDisk, HEADER_COPY_LEN, Params, header_lebs};
use lacuna_medium::MemoryMedium;
use lacuna_nand::{ChipGeometry, FlashGeometry, Mapping, SimulatedChip};
use lacuna_testkit::format_page::FormatPage;
use second_reader::{ParsedParams, SecondReader};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Chips with pages shorter than, as long as and longer than a block, and the length of a key on
/// each.
const CHIPS: [(ChipGeometry, u8); 4] = [
    (ChipGeometry { page: 512, pages: 64, blocks: 80 }, 16),
    (ChipGeometry { page: 2048, pages: 16, blocks: 100 }, 32),
    (ChipGeometry { page: 4096, pages: 16, blocks: 80 }, 16),
    (ChipGeometry { page: 16384, pages: 8, blocks: 64 }, 32),
];

struct SavedChip {
    medium: Arc<MemoryMedium>,
    params: Params,
}

impl SavedChip {
    fn new(geometry: ChipGeometry, key_len: u8) -> SavedChip {
        let CreatedDisk { memory: medium, params, .. } = CreatedDisk::on(geometry, key_len, 200);
        SavedChip { medium, params }
    }

    fn open(&self, seed: u64) -> FlashDisk {
        let chip = Arc::new(SimulatedChip::open(self.medium.clone(), seed).unwrap());
        let flash = Arc::new(Mapping::open(chip).unwrap());
        FlashDisk::open(flash, &self.params, &master(), &options(1 << 18, random(seed))).unwrap()
    }

    fn read_by_page(&self) -> SecondReader {
        SecondReader::read(&self.medium.snapshot(), &self.params.encode(), &master())
    }
}

fn content(block: u64, version: u64) -> Vec<u8> {
    (version << 20 | block).to_le_bytes().into_iter().cycle().take(BLOCK_SIZE).collect()
}

/// Writes, overwrites and discards enough for garbage collection, and records the expected
/// versions.
fn work(disk: &FlashDisk, held: &mut BTreeMap<u64, u64>, rounds: std::ops::Range<u64>) {
    let blocks = disk.blocks();
    for round in rounds {
        let first = round * 37 % blocks;
        let count = (1 + round * 5 % 23).min(blocks - first);
        if round % 6 == 5 {
            disk.discard(BlockAddr(first), count).unwrap();
            held.retain(|block, _| !(first..first + count).contains(block));
        } else {
            let data: Vec<u8> = (first..first + count).flat_map(|block| content(block, round)).collect();
            disk.write(BlockAddr(first), &data).unwrap();
            held.extend((first..first + count).map(|block| (block, round)));
        }
        if round % 4 == 1 {
            disk.flush().unwrap();
        }
        if round % 20 == 7 {
            disk.purge().unwrap();
        }
    }
    disk.flush().unwrap();
}

/// Compares the blocks that the second reader finds with the expected versions, and the key state
/// map with the index.
fn check(reader: &SecondReader, held: &BTreeMap<u64, u64>) {
    for block in 0..reader.params.blocks {
        let expected = held.get(&block).map(|version| content(block, *version));
        assert!(reader.block(block) == expected, "block {block}");
    }
    let named: BTreeSet<u64> = reader.index.values().map(|place| place.key).collect();
    assert_eq!(named.len(), reader.index.len(), "a key for each block");
    assert!(named == reader.used, "the index names the keys that are used");
    assert!(named.is_disjoint(&reader.deleted));
}

#[test]
fn disks_match_the_page() {
    for (geometry, key_len) in CHIPS {
        let saved = SavedChip::new(geometry, key_len);
        check(&saved.read_by_page(), &BTreeMap::new());
        let mut held = BTreeMap::new();
        let mut disk = saved.open(2);
        for (seed, rounds) in [(3, 0..60), (4, 60..90), (5, 90..140)] {
            work(&disk, &mut held, rounds);
            // As after a crash, with a log to replay.
            let reader = saved.read_by_page();
            assert!(!reader.groups.is_empty());
            check(&reader, &held);
            assert_eq!(reader.deleted.is_empty(), disk.recoverable() == 0);
            drop(disk);
            disk = saved.open(seed);
            let (used, deleted) = (reader.used.len() as u64, reader.deleted.len() as u64);
            let items = disk.status().items;
            let counts = ["keys_used", "keys_deleted"]
                .map(|name| items.iter().find(|item| item.name == name).expect("a counter").value);
            assert_eq!(counts, [used, deleted], "the code replays the same");
        }
        disk.close().unwrap();
        let reader = saved.read_by_page();
        check(&reader, &held);
        // Closing purges, and the checkpoint is written last.
        assert!(reader.deleted.is_empty() && reader.groups.is_empty() && !reader.purging);
        assert!(reader.epoch >= 7);
        check_log_table(&reader);
    }
}

/// The checkpoint's table of the log agrees with the index and with the groups on the flash.
fn check_log_table(reader: &SecondReader) {
    let units =
        reader.params.leb_len / reader.params.page * reader.params.page / reader.params.page.min(4096);
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for place in reader.index.values() {
        *live.entry(place.unit / units - u64::from(reader.areas.log.0)).or_default() += 1;
    }
    for (leb, (count, written)) in (0..).zip(&reader.log_table) {
        let blocks = live.get(&leb).copied().unwrap_or(0);
        // Pages of the index live there too.
        assert!(blocks <= *count && *count <= blocks + reader.areas.index_pages, "LEB {leb}");
        let first = reader.group((u64::from(reader.areas.log.0) + leb) * units);
        assert!(*count == 0 || first.is_some_and(|first| first.sequence <= *written), "LEB {leb}");
    }
    let all: u64 = reader.log_table.iter().map(|(live, _)| live).sum();
    assert_eq!(all, reader.index.len() as u64 + reader.areas.index_pages);
}

#[test]
fn parameters_and_areas_match_the_page() {
    let doc = FormatPage::read("flash");
    assert_eq!(doc.constant("header bytes"), u64::from(HEADER_COPY_LEN));
    let flashes =
        [(512, 31 << 10, 200), (2048, 124 << 10, 1000), (4096, 252 << 10, 4096), (65536, 1 << 20, 90)];
    for (page, leb_len, lebs) in flashes {
        for (key_len, spare) in [(16, 70), (32, 70), (32, 300)] {
            let flash = FlashGeometry { page, leb_len, lebs };
            let params = Params::fitting(flash, key_len, spare).unwrap();
            let read = ParsedParams::read(&params.encode());
            assert_eq!((read.blocks, read.key_len), (params.blocks, u64::from(key_len)));
            let areas = read.areas();
            assert_eq!(areas.keys, (header_lebs(flash), params.key_blocks()));
            let layout = format!("{:?}", params.layout().unwrap());
            for (name, (first, count)) in
                [("keys", areas.keys), ("checkpoints", areas.checkpoints), ("log", areas.log)]
            {
                assert!(layout.contains(&format!(" {name}: ({first}, {count})")), "{layout} {areas:?}");
            }
            assert!(layout.contains(&format!("leb_keys: {},", areas.leb_keys)), "{layout} {areas:?}");
        }
    }
}

/// Most bytes of a group's header are checked by other tests; this one checks the limits that the
/// page states.
#[test]
fn page_numbers_match_the_code() {
    let doc = FormatPage::read("flash");
    assert_eq!(doc.constant("checkpoints"), 2);
    assert_eq!(doc.constant("master key bytes"), 32);
    assert_eq!(doc.constant("fanout") * 8, BLOCK_SIZE as u64);
    let kinds: Vec<u64> =
        doc.rows("Kinds").iter().map(|row| row[1].split(':').next().unwrap().parse().unwrap()).collect();
    assert_eq!(kinds, [1, 2, 3, 4, 5]);
    // The most nodes that an ordinal can number.
    assert_eq!(doc.rows("Place")[1][0], "28 to 33");
    assert_eq!(doc.constant("nodes of a group"), 1 << (33 - 28 + 1));
}
