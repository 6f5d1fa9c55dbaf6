//! The map of a level against a plain model, on pages that a test format keeps and forgets.
#![forbid(unsafe_code)]

use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_levels::{FANOUT, LOST_PLACE, LevelMap, MapState, PageSource, SlotEntry, corrupt};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

const BLOCKS: u64 = 3 * FANOUT * FANOUT / 2;
const CYCLE: u64 = 8;

/// Pages by their place, as a format would hold them.
#[derive(Default)]
struct PageStore(RefCell<FxHashMap<u64, (SlotEntry, [u8; BLOCK_SIZE])>>);

impl PageSource for PageStore {
    fn load(&self, place: u64, entry: SlotEntry, block: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        match self.0.borrow().get(&place) {
            Some((held, page)) if *held == entry => {
                block.copy_from_slice(page);
                Ok(())
            }
            _ => Err(corrupt(format!("cannot read {entry}"))),
        }
    }
}

/// Writes the pages that are due in write `seq`, each at the next place.
fn write_due_pages(tree: &mut LevelMap, pages: &PageStore, seq: u64, next: &mut u64) {
    for _ in 0..tree.pages_due(seq) {
        let mut block = [0; BLOCK_SIZE];
        let Some(entry) = tree.write_next_page(*next, pages, &mut block).unwrap() else { return };
        pages.0.borrow_mut().insert(*next, (entry, block));
        *next += 1;
    }
}

fn dirty_pages(tree: &LevelMap) -> u64 {
    tree.status()[1].value
}

/// Continues until every page is written.
fn write_all_pages(tree: &mut LevelMap, pages: &PageStore, seq: &mut u64, next: &mut u64) {
    while tree.state().covered + 1 < *seq || dirty_pages(tree) > 0 {
        *seq += 1;
        write_due_pages(tree, pages, *seq, next);
    }
}

fn restored(state: MapState, pages: &PageStore) -> LevelMap {
    let mut tree = LevelMap::new(BLOCKS, CYCLE, 16);
    tree.restore(state, &FxHashMap::default(), pages).unwrap();
    tree
}

#[test]
fn a_map_written_in_cycles_matches_its_model() {
    let (pages, mut next, mut seq) = (PageStore::default(), 1 << 40, 1);
    let mut tree = LevelMap::new(BLOCKS, CYCLE, 16);
    let mut model = FxHashMap::default();
    for round in 0..200u64 {
        let addr = (round * round * 7919) % BLOCKS;
        tree.set(addr, round + 1, &pages).unwrap();
        model.insert(addr, round + 1);
        seq += 1;
        write_due_pages(&mut tree, &pages, seq, &mut next);
    }
    write_all_pages(&mut tree, &pages, &mut seq, &mut next);
    let mut again = restored(tree.state(), &pages);
    assert_eq!(again.state().data, model.len() as u64);
    assert_eq!(again.state().pages, tree.state().pages);
    for (addr, place) in model {
        assert_eq!(again.place_of(SlotEntry::Data(addr), &pages).unwrap(), place);
        assert_eq!(again.get(addr, &pages).unwrap(), place);
    }
}

/// More leaves change than memory holds, and pages are written slowly, one for each write.
#[test]
fn a_spilling_map_matches_its_model() {
    let (pages, mut next, mut seq) = (PageStore::default(), 1 << 40, 1);
    let mut tree = LevelMap::new(BLOCKS, CYCLE, 16).spilling(usize::MAX);
    let mut model = FxHashMap::default();
    let mut word = 1u64;
    for round in 0..6000u64 {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let addr = (word >> 33) % BLOCKS;
        assert_eq!(tree.set(addr, round + 1, &pages).unwrap(), model.insert(addr, round + 1).unwrap_or(0));
        if round % 50 == 0 {
            let first = addr / FANOUT * FANOUT - if addr > FANOUT { 3 } else { 0 };
            let count = (2 * FANOUT).min(BLOCKS - first);
            tree.clear(first, count, &pages).unwrap();
            model.retain(|addr, _| !(first..first + count).contains(addr));
        }
        seq += 1;
        if tree.pages_due(seq) > 0 {
            let mut block = [0; BLOCK_SIZE];
            if let Some(entry) = tree.write_next_page(next, &pages, &mut block).unwrap() {
                pages.0.borrow_mut().insert(next, (entry, block));
                next += 1;
            }
        }
        assert!(!tree.is_over_dirty_limit());
    }
    assert_eq!(tree.state().data, model.len() as u64);
    for addr in 0..BLOCKS {
        assert_eq!(tree.get(addr, &pages).unwrap(), model.get(&addr).copied().unwrap_or(0), "block {addr}");
    }
    write_all_pages(&mut tree, &pages, &mut seq, &mut next);
    let mut again = restored(tree.state(), &pages);
    for addr in 0..BLOCKS {
        assert_eq!(again.get(addr, &pages).unwrap(), model.get(&addr).copied().unwrap_or(0), "block {addr}");
    }
}

#[test]
fn places_in_memory_are_those_of_the_map() {
    let (pages, mut next, mut seq) = (PageStore::default(), 1 << 40, 1);
    let mut tree = LevelMap::new(BLOCKS, CYCLE, 16);
    for addr in [FANOUT - 1, FANOUT] {
        tree.set(addr, addr + 10, &pages).unwrap();
    }
    write_all_pages(&mut tree, &pages, &mut seq, &mut next);
    let mut again = restored(tree.state(), &pages);
    // The last two blocks of the first leaf, and the first two of the next.
    let mut places = [7; 4];
    for addr in [FANOUT - 1, FANOUT] {
        assert!(!again.places_in_memory(FANOUT - 2, &mut places), "a leaf is on the medium alone");
        again.get(addr, &pages).unwrap();
    }
    assert!(again.places_in_memory(FANOUT - 2, &mut places));
    assert_eq!(places, [0, FANOUT + 9, FANOUT + 10, 0]);
    assert!(again.places_in_memory(5 * FANOUT, &mut places), "a leaf without blocks is nowhere");
    assert_eq!(places, [0; 4]);
}

#[test]
fn entries_outside_the_map_have_no_place() {
    let (pages, mut next, mut seq) = (PageStore::default(), 1 << 40, 1);
    let mut tree = LevelMap::new(BLOCKS, CYCLE, 16);
    tree.set(5, 77, &pages).unwrap();
    write_all_pages(&mut tree, &pages, &mut seq, &mut next);
    let top = SlotEntry::Page { depth: 2, index: 0 };
    assert_eq!(tree.place_of(top, &pages).unwrap(), tree.state().root);
    let outside = [
        SlotEntry::Empty,
        SlotEntry::Trim { origin: 9 },
        SlotEntry::Data(6),
        SlotEntry::Data(BLOCKS),
        SlotEntry::Lost(u64::MAX),
        SlotEntry::Page { depth: 0, index: 1 },
        SlotEntry::Page { depth: 0, index: u64::MAX },
        SlotEntry::Page { depth: 3, index: 0 },
    ];
    for entry in outside {
        assert_eq!(tree.place_of(entry, &pages).unwrap(), 0, "{entry:?}");
    }
    assert_eq!(dirty_pages(&tree), 0);
}

#[test]
fn blocks_below_a_page_that_does_not_verify_are_lost() {
    let (pages, mut next, mut seq) = (PageStore::default(), 1 << 40, 1);
    let mut tree = LevelMap::new(BLOCKS, CYCLE, 16);
    for addr in [5, FANOUT * FANOUT] {
        tree.set(addr, 77, &pages).unwrap();
    }
    write_all_pages(&mut tree, &pages, &mut seq, &mut next);
    let lost = tree.place_of(SlotEntry::Page { depth: 1, index: 0 }, &pages).unwrap();
    pages.0.borrow_mut().remove(&lost);
    let mut again = restored(tree.state(), &pages);
    assert_eq!(again.get(5, &pages).unwrap(), LOST_PLACE);
    assert_eq!(again.place_of(SlotEntry::Data(5), &pages).unwrap(), LOST_PLACE);
    assert_eq!(again.get(FANOUT * FANOUT, &pages).unwrap(), 77);
}
