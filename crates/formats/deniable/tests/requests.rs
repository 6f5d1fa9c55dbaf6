//! Counts the requests to the medium for reads of a hidden level. Every read goes to the medium,
//! because these reads leave nothing in a cache.

mod fixture;

use fixture::{create, fill, flush_hidden, open, params, stamp_of};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_medium::Medium;
use lacuna_sim::Rng;
use lacuna_testkit::CountingMedium;
use std::sync::Arc;

const BLOCKS: u64 = 60;

/// A read makes one request for each stripe, or one for a single block: the summaries are in
/// memory.
#[test]
fn a_hidden_level_is_read_by_stripes() {
    let params = params();
    let counting = Arc::new(CountingMedium::new(params.end()));
    let medium: Arc<dyn Medium> = counting.clone();
    create(&medium, &params, 2, 1).unwrap();
    let disk = open(&medium, &params, 2, 2).unwrap();
    let hidden = disk.levels()[1].clone();
    let mut data = vec![0; BLOCKS as usize * BLOCK_SIZE];
    for (at, block) in (0..).zip(data.chunks_exact_mut(BLOCK_SIZE)) {
        fill(at, 7, block);
    }
    hidden.write(BlockAddr(0), &data).unwrap();
    flush_hidden(&disk, &hidden).unwrap();

    let mut back = vec![0; data.len()];
    // The first time it reads summaries as well.
    hidden.read(BlockAddr(0), &mut back).unwrap();
    counting.take();
    hidden.read(BlockAddr(0), &mut back).unwrap();
    let requests = counting.take().requests;
    println!("{requests} requests for {BLOCKS} blocks");
    assert!(back == data && requests > 0 && 2 * requests <= BLOCKS as usize, "{requests} requests");

    let mut rng = Rng::new(5);
    let mut block = vec![0; BLOCK_SIZE];
    for _ in 0..100 {
        let at = rng.below(BLOCKS);
        hidden.read(BlockAddr(at), &mut block).unwrap();
        assert_eq!((stamp_of(at, &block), counting.take().requests), (Some(7), 1), "block {at}");
    }
}
