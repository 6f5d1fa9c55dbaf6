//! Tests of the cache, and of its adoption by a successor.

use super::*;
use lacuna_contracts::BLOCK_SIZE;
use lacuna_kept_memory::KeptMemory;

const LIMIT: u64 = 1 << 20;

fn memory() -> KeptMemory {
    KeptMemory::simulated(&WriteRecords::layout(1, LIMIT)).unwrap()
}

fn cache_in(memory: &KeptMemory) -> DirtyCache {
    DirtyCache::new(1, LIMIT, WriteRecords::new(memory.clone()))
}

fn put(cache: &DirtyCache, index: u64, tag: u8) {
    let content = cache.records().data(&[tag; BLOCK_SIZE]).unwrap();
    assert!(cache.reserve(content.cost()));
    cache.put(Segment(0), index, vec![content]);
}

fn discard(cache: &DirtyCache) -> bool {
    assert!(cache.reserve(HOLE_COST));
    cache.put_discard(Segment(0), cache.records().discard().unwrap())
}

/// The blocks that a successor adopts, with their first bytes, and whether it adopts a discard.
fn adopted(memory: &KeptMemory) -> (Vec<(u64, u8)>, bool) {
    let memory = memory.as_if_died().unwrap();
    let cache = cache_in(&memory);
    let left = cache.records().take_left(SEGMENT_BLOCKS).unwrap();
    assert!(cache.adopt(left).len() <= 1);
    let found = cache.lookup(Segment(0), 0..SEGMENT_BLOCKS);
    let byte = |content: &BlockContent| content.record().bytes().first().copied().unwrap_or(0);
    let blocks = found.cached.iter().map(|(index, content)| (*index, byte(content)));
    (blocks.collect(), found.rest_is_zeros)
}

#[test]
fn a_second_discard_of_an_absent_segment_frees_the_cost_of_both() {
    let memory = memory();
    let (cache, segment) = (cache_in(&memory), Segment(0));
    assert!(discard(&cache));
    let moment = cache.lookup(segment, 0..1).begin_count.expect("nothing in flight");
    cache.if_none_begun(segment, moment, || cache.set_absent(segment));
    assert!(!discard(&cache));
    assert_eq!(cache.dirty_bytes(), 0);
    assert_eq!(adopted(&memory), (vec![], false));
}

#[test]
fn a_successor_adopts_what_was_not_acknowledged_by_the_store() {
    let memory = memory();
    let (cache, segment) = (cache_in(&memory), Segment(0));
    put(&cache, 3, 1);
    put(&cache, 4, 1);
    discard(&cache);
    put(&cache, 4, 2);
    put(&cache, 5, 2);
    put(&cache, 4, 3);
    assert_eq!(adopted(&memory), (vec![(4, 3), (5, 2)], true));
    let begun = cache.begin(segment, 9).unwrap();
    assert_eq!(adopted(&memory), (vec![(4, 3), (5, 2)], true));
    cache.commit(segment, &begun.work, false);
    assert_eq!(adopted(&memory), (vec![(4, 3), (5, 2)], false));
    // The store acknowledges a version that was replaced meanwhile.
    let begun = cache.begin(segment, 9).unwrap();
    put(&cache, 4, 4);
    cache.commit(segment, &begun.work, false);
    assert_eq!(adopted(&memory), (vec![(4, 4)], false));
    // A direct write replaces it.
    let begun = cache.begin_direct(segment, 0..300).unwrap();
    assert_eq!(adopted(&memory), (vec![(4, 4)], false));
    cache.commit(segment, &begun.work, false);
    assert_eq!(adopted(&memory), (vec![], false));
    assert_eq!(cache.dirty_bytes(), 0);
}

#[test]
fn a_record_of_another_disk_is_refused_and_stays() {
    let memory = memory();
    let cache = cache_in(&memory);
    put(&cache, 7, 1);
    let left = memory.as_if_died().unwrap();
    let refused = WriteRecords::new(left.clone()).take_left(7);
    assert_eq!(refused.err().expect("refused").kind(), lacuna_contracts::Kind::Corrupt);
    assert_eq!(adopted(&left), (vec![(7, 1)], false));
}

#[test]
fn a_budget_of_any_size_has_a_layout() {
    let layout = WriteRecords::layout(1, u64::MAX);
    assert!(layout[..2].iter().all(|pool| pool.records == u32::MAX));
    assert_eq!(layout[2].records, 1 + (1 << 12));
}
