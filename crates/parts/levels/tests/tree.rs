//! The map of a level against a plain model, on pages that a test format keeps and forgets.
#![forbid(unsafe_code)]

use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_levels::{Entry, FANOUT, LOST, MapState, PageSource, Tree, corrupt};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

const BLOCKS: u64 = 3 * FANOUT * FANOUT / 2;
const CYCLE: u64 = 8;

/// Pages by their place, as a format would hold them.
#[derive(Default)]
struct Pages(RefCell<FxHashMap<u64, (Entry, [u8; BLOCK_SIZE])>>);

impl PageSource for Pages {
    fn load(&self, place: u64, entry: Entry, block: &mut [u8; BLOCK_SIZE]) -> Result<()> {
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
fn write_out(tree: &mut Tree, pages: &Pages, seq: u64, next: &mut u64) {
    for _ in 0..tree.due(seq) {
        let mut block = [0; BLOCK_SIZE];
        let Some(entry) = tree.emit(*next, pages, &mut block).unwrap() else { return };
        pages.0.borrow_mut().insert(*next, (entry, block));
        *next += 1;
    }
}

fn pages_waiting(tree: &Tree) -> u64 {
    tree.status()[1].value
}

/// Continues until every page is written.
fn settle(tree: &mut Tree, pages: &Pages, seq: &mut u64, next: &mut u64) {
    while tree.state().covered + 1 < *seq || pages_waiting(tree) > 0 {
        *seq += 1;
        write_out(tree, pages, *seq, next);
    }
}

fn restored(state: MapState, pages: &Pages) -> Tree {
    let mut tree = Tree::new(BLOCKS, CYCLE, 16);
    tree.restore(state, &FxHashMap::default(), pages).unwrap();
    tree
}

#[test]
fn a_map_that_is_written_in_cycles_says_the_same() {
    let (pages, mut next, mut seq) = (Pages::default(), 1 << 40, 1);
    let mut tree = Tree::new(BLOCKS, CYCLE, 16);
    let mut model = FxHashMap::default();
    for round in 0..200u64 {
        let addr = (round * round * 7919) % BLOCKS;
        tree.set(addr, round + 1, &pages).unwrap();
        model.insert(addr, round + 1);
        seq += 1;
        write_out(&mut tree, &pages, seq, &mut next);
    }
    settle(&mut tree, &pages, &mut seq, &mut next);
    let mut again = restored(tree.state(), &pages);
    assert_eq!(again.state().data, model.len() as u64);
    assert_eq!(again.state().pages, tree.state().pages);
    for (addr, place) in model {
        assert_eq!(again.place_of(Entry::Data(addr), &pages).unwrap(), place);
        assert_eq!(again.get(addr, &pages).unwrap(), place);
    }
}

/// More leaves change than memory holds, and pages are written slowly, one for each write.
#[test]
fn a_map_that_spills_says_the_same() {
    let (pages, mut next, mut seq) = (Pages::default(), 1 << 40, 1);
    let mut tree = Tree::new(BLOCKS, CYCLE, 16).spilling(usize::MAX);
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
        if tree.due(seq) > 0 {
            let mut block = [0; BLOCK_SIZE];
            if let Some(entry) = tree.emit(next, &pages, &mut block).unwrap() {
                pages.0.borrow_mut().insert(next, (entry, block));
                next += 1;
            }
        }
        assert!(!tree.crowded());
    }
    assert_eq!(tree.state().data, model.len() as u64);
    for addr in 0..BLOCKS {
        assert_eq!(tree.get(addr, &pages).unwrap(), model.get(&addr).copied().unwrap_or(0), "block {addr}");
    }
    settle(&mut tree, &pages, &mut seq, &mut next);
    let mut again = restored(tree.state(), &pages);
    for addr in 0..BLOCKS {
        assert_eq!(again.get(addr, &pages).unwrap(), model.get(&addr).copied().unwrap_or(0), "block {addr}");
    }
}

#[test]
fn what_is_in_no_map_is_nowhere() {
    let (pages, mut next, mut seq) = (Pages::default(), 1 << 40, 1);
    let mut tree = Tree::new(BLOCKS, CYCLE, 16);
    tree.set(5, 77, &pages).unwrap();
    settle(&mut tree, &pages, &mut seq, &mut next);
    let top = Entry::Page { depth: 2, index: 0 };
    assert_eq!(tree.place_of(top, &pages).unwrap(), tree.state().root);
    let nowhere = [
        Entry::Empty,
        Entry::Trim { origin: 9 },
        Entry::Data(6),
        Entry::Data(BLOCKS),
        Entry::Lost(u64::MAX),
        Entry::Page { depth: 0, index: 1 },
        Entry::Page { depth: 0, index: u64::MAX },
        Entry::Page { depth: 3, index: 0 },
    ];
    for entry in nowhere {
        assert_eq!(tree.place_of(entry, &pages).unwrap(), 0, "{entry:?}");
    }
    assert_eq!(pages_waiting(&tree), 0);
}

#[test]
fn blocks_below_a_page_that_does_not_verify_are_lost() {
    let (pages, mut next, mut seq) = (Pages::default(), 1 << 40, 1);
    let mut tree = Tree::new(BLOCKS, CYCLE, 16);
    for addr in [5, FANOUT * FANOUT] {
        tree.set(addr, 77, &pages).unwrap();
    }
    settle(&mut tree, &pages, &mut seq, &mut next);
    let lost = tree.place_of(Entry::Page { depth: 1, index: 0 }, &pages).unwrap();
    pages.0.borrow_mut().remove(&lost);
    let mut again = restored(tree.state(), &pages);
    assert_eq!(again.get(5, &pages).unwrap(), LOST);
    assert_eq!(again.place_of(Entry::Data(5), &pages).unwrap(), LOST);
    assert_eq!(again.get(FANOUT * FANOUT, &pages).unwrap(), 77);
}
