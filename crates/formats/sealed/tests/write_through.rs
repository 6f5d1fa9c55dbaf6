//! Write-through: an acknowledged write is durable without a flush.

mod fixture;

use fixture::*;
use lacuna_contracts::{BlockAddr, Disk, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_sealed::OpenOptions;
use lacuna_sim::{CrashMedium, Rng};
use std::sync::Arc;

const BLOCKS: u64 = 6 * SEGMENT_BLOCKS;

/// Writes on every path to the medium (whole segments, long and short writes), and discards, are
/// durable once acknowledged.
#[test]
fn acknowledged_writes_survive_a_power_cut() {
    for cipher in Cipher::ALL.into_iter().filter(|cipher| cipher.meta_size() > 0) {
        let params = params(cipher, BLOCKS);
        let medium = Arc::new(CrashMedium::new(params.geometry().end()));
        create(&*medium, &params);
        let disk =
            open_with(medium.clone(), &params, OpenOptions { write_through: true, ..options(1) }).unwrap();
        let mut stamps = vec![0; BLOCKS as usize];
        let mut rng = Rng::new(5);
        for stamp in 1..60u64 {
            let (first, count) = match stamp % 4 {
                0 => (rng.below(6) * SEGMENT_BLOCKS, SEGMENT_BLOCKS),
                1 => (rng.below(5) * SEGMENT_BLOCKS + 900, 300),
                _ => (rng.below(BLOCKS - 20), 1 + rng.below(20)),
            };
            let discards = stamp % 7 == 3;
            if discards {
                disk.discard(BlockAddr(first), count).unwrap();
            } else {
                write(&disk, first, count, stamp).unwrap();
            }
            stamps[first as usize..][..count as usize].fill(if discards { 0 } else { stamp });
            if stamp % 5 != 0 {
                continue;
            }
            let left = Arc::new(CrashMedium::from_image(medium.durable_image()));
            let again = open_with(left, &params, options(stamp + 2)).unwrap();
            for (block, stamp) in (0..).zip(&stamps) {
                assert_eq!(stamp_of(block, &read(&again, block).unwrap()), Some(*stamp), "block {block}");
            }
        }
        disk.close().unwrap();
    }
}

/// Threads that write at once need fewer syncs than writes.
#[test]
fn writers_share_a_sync() {
    const WRITES: u64 = 400;
    let params = params(Cipher::XtsRandom, BLOCKS);
    let medium = Arc::new(CrashMedium::new(params.geometry().end()));
    create(&*medium, &params);
    let options = OpenOptions { write_through: true, ..options(1) };
    let disk = open_with(medium.clone(), &params, options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let disk = &disk;
            scope.spawn(move || {
                for n in 0..WRITES / 8 {
                    write(disk, thread * 700 + n, 1, n + 1).unwrap();
                }
            });
        }
    });
    assert!(status(&disk, "journal_batches") <= WRITES, "{} batches", status(&disk, "journal_batches"));
    let left = Arc::new(CrashMedium::from_image(medium.durable_image()));
    let again = open_with(left, &params, fixture::options(2)).unwrap();
    for (thread, n) in (0..8).flat_map(|thread| (0..WRITES / 8).map(move |n| (thread, n))) {
        let block = thread * 700 + n;
        assert_eq!(stamp_of(block, &read(&again, block).unwrap()), Some(n + 1), "block {block}");
    }
}
