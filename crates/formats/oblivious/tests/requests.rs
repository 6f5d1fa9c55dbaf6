//! Counts the requests to the medium for reads of a hidden level. Every read goes to the medium,
//! because these reads leave nothing in a cache.

mod fixture;

use fixture::{create, fill, flush_hidden, open, stamp_of};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_medium::Medium;
use lacuna_oblivious::{Levels, Params, Plan};
use lacuna_sim::Rng;
use lacuna_testkit::{CountingMedium, DiscreetReads};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A MiB.
const BLOCKS: u64 = 256;
/// Bytes of eight cells in place: their blocks, and the page of their metadata.
const GROUP_LEN: u64 = 9 * 4096;

/// The beginning of the group of cells in place at an offset; an offset in the ring is its own.
fn group(params: &Params, offset: u64) -> u64 {
    let cells_start = params.end() - params.cells / 8 * GROUP_LEN;
    let within = offset.checked_sub(cells_start);
    within.map_or(offset, |at| offset - at % GROUP_LEN)
}

/// A read makes one request for each group of cells, however blocks lie in them, and one for a
/// single block. The metadata of a cell is read again only if a batch has rewritten the cell.
#[test]
fn a_hidden_level_is_read_by_groups_of_cells() {
    let params = Params::plan(80 << 20, Plan::DEFAULT).unwrap();
    let counting = Arc::new(CountingMedium::new(params.end()));
    let medium: Arc<dyn Medium> = counting.clone();
    create(&medium, &params, 2, 1).unwrap();
    let disk = open(&medium, &params, 2, 2).unwrap();
    let hidden = disk.levels()[1].clone();
    let mut block = vec![0; BLOCK_SIZE];
    // Every other block, and later those between: neighbours lie in cells of different groups.
    let order: Vec<u64> = (0..BLOCKS).step_by(2).chain((1..BLOCKS).step_by(2)).collect();
    for some in order.chunks(32) {
        for at in some {
            fill(*at, 7, &mut block);
            hidden.write(BlockAddr(*at), &block).unwrap();
        }
        flush_hidden(&disk, &hidden).unwrap();
    }
    disk.close().unwrap();
    drop((hidden, disk));

    let disk = open(&medium, &params, 2, 3).unwrap();
    let hidden = disk.levels()[1].clone();
    let mut data = vec![0; BLOCKS as usize * BLOCK_SIZE];
    // The first time it reads the map as well.
    hidden.read(BlockAddr(0), &mut data).unwrap();
    data.fill(0);
    counting.take();
    hidden.read(BlockAddr(0), &mut data).unwrap();
    for (at, block) in (0..).zip(data.chunks_exact(BLOCK_SIZE)) {
        assert_eq!(stamp_of(at, block), Some(7), "block {at}");
    }
    let DiscreetReads { offsets, requests } = counting.take();
    let extents = offsets.len();
    let groups: BTreeSet<u64> = offsets.iter().map(|offset| group(&params, *offset)).collect();
    let shown = format!("{requests} requests for {extents} extents in {} groups", groups.len());
    println!("{shown}");
    assert_eq!(extents, BLOCKS as usize, "their metadata is known: {shown}");
    assert!(requests <= groups.len() && requests < extents, "{shown}");

    (0..400).for_each(|_| disk.refresh().unwrap());
    counting.take();
    hidden.read(BlockAddr(0), &mut data).unwrap();
    for (at, block) in (0..).zip(data.chunks_exact(BLOCK_SIZE)) {
        assert_eq!(stamp_of(at, block), Some(7), "block {at}");
    }
    let rewritten = counting.take().offsets.len();
    assert!(rewritten > extents, "{rewritten} extents: no block was read again with its metadata");
    hidden.read(BlockAddr(0), &mut data).unwrap();
    assert_eq!(counting.take().offsets.len(), extents, "all metadata is known again");

    let mut rng = Rng::new(5);
    for _ in 0..100 {
        let at = rng.below(BLOCKS);
        hidden.read(BlockAddr(at), &mut block).unwrap();
        assert_eq!((stamp_of(at, &block), counting.take().requests), (Some(7), 1), "block {at}");
    }
}
