//! `flash`: the nonces of headers are hedged, and those of nodes are synthetic.

#[path = "../../../../formats/flash/tests/fixture/mod.rs"]
mod fixture;

use crate::{ExpectedRepeats, assert_no_nonce_repeats};
use fixture::TestDisk;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};

fn content(block: u64, version: u64) -> Vec<u8> {
    (version << 20 | block).to_le_bytes().into_iter().cycle().take(BLOCK_SIZE).collect()
}

/// Runs both copies from the beginning; they are identical until they diverge.
fn copies() {
    for copy in 1..3 {
        let mut test_disk = TestDisk::small(3);
        let disk = test_disk.open();
        let write = |block, version| disk.write(BlockAddr(block), &content(block, version)).unwrap();
        (0..20).for_each(|block| write(block, 1));
        disk.flush().unwrap();
        // The copies diverge here; some writes are still equal.
        for round in 0..3 {
            (0..20).for_each(|block| write(block, 100 * copy + round));
            write(30, round);
            disk.flush().unwrap();
        }
        disk.discard(BlockAddr(copy), 3).unwrap();
        disk.purge().unwrap();
        (5..15).for_each(|block| write(block, 200 * copy));
        disk.close().unwrap();
    }
}

#[test]
fn flash_disks_repeat_no_nonce() {
    // Each of three rounds writes twenty different blocks.
    assert_no_nonce_repeats("flash", 101, ExpectedRepeats { drawn: 1, synthetic: 60 }, copies);
}
