//! Disks on objects against a model: every cipher with every layout, random operations, clients
//! killed at random moments, failing transactions. Every run is determined by its seed, down to the
//! bytes of its transactions.
//!
//! `LACUNA_CUTS` sets the number of killed clients, for all ciphers and layouts together (default
//! 216), `LACUNA_SEED` the first seed (0).

mod scripted_stores;

use lacuna_contracts::{BlockAddr, Disk, Kind, Result, SEGMENT_BLOCKS};
use lacuna_sealed_objects::ObjectDisk;
use lacuna_sim::{Rng, env_number};
use scripted_stores::*;
use std::sync::atomic::Ordering;

/// Nine segments, so that not all metadata pages fit the cache of the adaptive layout, and a part
/// of one.
const BLOCKS: u64 = 9 * SEGMENT_BLOCKS + 300;

/// Sessions of one disk; in two of three the client is killed.
const SESSIONS: u64 = 9;

/// The possible contents of each block: the last version known to be durable, and every later one,
/// oldest first.
struct BlockVersions(Vec<Vec<u64>>);

impl BlockVersions {
    fn new() -> BlockVersions {
        BlockVersions(vec![vec![0]; BLOCKS as usize])
    }
    fn put(&mut self, first: u64, count: u64, stamp: u64) {
        self.0[first as usize..(first + count) as usize].iter_mut().for_each(|block| block.push(stamp));
    }
    fn latest(&self, block: u64) -> u64 {
        *self.0[block as usize].last().unwrap()
    }
    fn flushed(&mut self) {
        for block in &mut self.0 {
            block.drain(..block.len() - 1);
        }
    }
    fn check(&self, disk: &ObjectDisk, first: u64, count: u64) {
        let found = stamps(disk, first, count).unwrap();
        for (block, found) in (first..).zip(found) {
            assert_eq!(found, self.latest(block), "block {block}");
        }
    }
    /// After a power cut each block has an allowed version; from then it keeps the one found.
    fn adopt_found(&mut self, disk: &ObjectDisk) {
        for first in (0..BLOCKS).step_by(100) {
            let count = 100.min(BLOCKS - first);
            for (block, found) in (first..).zip(stamps(disk, first, count).unwrap()) {
                let allowed = &mut self.0[block as usize];
                assert!(allowed.contains(&found), "block {block} is {found}, may be {allowed:?}");
                *allowed = vec![found];
            }
        }
    }
}

/// A range of blocks: mostly small, sometimes in the last segments, sometimes a whole segment or
/// more.
fn range(rng: &mut Rng) -> (u64, u64) {
    let count = match rng.below(20) {
        0 => 1 + rng.below(1100),
        1 | 2 => 60 + rng.below(80),
        3..7 => 1 + rng.below(20),
        _ => 1,
    };
    // Half of the operations fall on two segments, so that they overlap.
    let first = if rng.chance(1, 2) { rng.below(2 * SEGMENT_BLOCKS) } else { rng.below(BLOCKS) };
    let first = if rng.chance(1, 4) { first / 64 * 64 } else { first };
    (first, count.min(BLOCKS - first))
}

fn discarded(rng: &mut Rng) -> (u64, u64) {
    if rng.chance(1, 3) {
        let first = rng.below(BLOCKS / SEGMENT_BLOCKS + 1) * SEGMENT_BLOCKS;
        (first, SEGMENT_BLOCKS.min(BLOCKS - first))
    } else {
        range(rng)
    }
}

/// One random operation. All its possible changes are in the model, also if it failed.
fn act(rng: &mut Rng, disk: &ObjectDisk, model: &mut BlockVersions, stamp: u64) -> Result<()> {
    match rng.below(40) {
        0..22 => {
            let (first, count) = range(rng);
            model.put(first, count, stamp);
            write(disk, first, count, stamp)
        }
        22..25 => {
            let (first, count) = discarded(rng);
            model.put(first, count, 0);
            disk.discard(BlockAddr(first), count)
        }
        25 | 26 => disk.flush().map(|()| model.flushed()),
        27 => {
            let (first, count) = range(rng);
            let mut at = first;
            for extent in disk.extents(BlockAddr(first), count)? {
                let quiet = (at..at + extent.blocks).all(|block| model.latest(block) == 0);
                assert!(extent.written || quiet, "extent at {at}");
                at += extent.blocks;
            }
            assert_eq!(at, first + count);
            Ok(())
        }
        _ => {
            let (first, count) = range(rng);
            model.check(disk, first, count);
            Ok(())
        }
    }
}

/// One session that ends normally, two with the client killed, and so on. Returns a digest of all
/// transactions.
fn sessions(kind: CipherAndLayout, seed: u64, rounds: u64, write_through: bool) -> u64 {
    let params = plan(kind, BLOCKS);
    let mut rng = Rng::new(seed);
    let mut scripted = ScriptedStores::new();
    scripted.create(&params);
    let mut model = BlockVersions::new();
    let (mut stamp, mut digest) = (0, 0u64);
    for round in 0..rounds {
        scripted = scripted.again();
        scripted.script.seed(rng.next_u64());
        let disk = scripted.open_with(
            &params,
            lacuna_sealed_objects::ObjectOptions { write_through, ..options(rng.next_u64()) },
        );
        let disk = disk.unwrap();
        let killed = round % 3 != 0;
        if killed {
            let opened = scripted.script.transactions.load(Ordering::SeqCst);
            scripted.script.dies_at.store(opened + 1 + rng.below(60), Ordering::SeqCst);
        }
        for _ in 0..150 {
            stamp += 1;
            match act(&mut rng, &disk, &mut model, stamp) {
                Ok(()) if write_through => model.flushed(),
                Ok(()) => {}
                Err(e) => {
                    assert!(killed && [Kind::Io, Kind::FailStop].contains(&e.kind()), "{e}");
                    break;
                }
            }
        }
        match disk.close() {
            Ok(()) => model.flushed(),
            Err(e) => assert!(killed, "{e}"),
        }
        drop(disk);
        digest = digest.rotate_left(7) ^ scripted.script.digest.load(Ordering::SeqCst);
        scripted = scripted.again();
        let disk = scripted.open(&params, rng.next_u64());
        model.adopt_found(&disk);
        if rng.chance(1, 2) {
            disk.close().unwrap();
        }
    }
    digest
}

#[test]
fn every_cipher_and_layout_matches_the_model_when_clients_die() {
    let (killed, first) = (env_number("LACUNA_CUTS", 216), env_number("LACUNA_SEED", 0));
    let disks = killed.div_ceil(SESSIONS * 2 / 3 * all_ciphers_and_layouts().len() as u64);
    for kind in all_ciphers_and_layouts() {
        for seed in first..first + disks {
            // A panic in a session does not mention the seed.
            println!("{kind:?}, seed {seed}");
            let digest = sessions(kind, seed, SESSIONS, seed % 4 == 3);
            println!("{kind:?}, seed {seed}: digest {digest:016x}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_transactions() {
    for kind in all_ciphers_and_layouts() {
        let digests = [5, 5, 6].map(|seed| sessions(kind, seed, 3, false));
        assert_eq!(digests[0], digests[1], "{kind:?}");
        assert_ne!(digests[1], digests[2], "{kind:?}");
    }
}

#[test]
fn a_failed_transaction_stops_writes_and_loses_no_flushed_data() {
    for kind in all_ciphers_and_layouts() {
        for seed in 0..3 {
            let params = plan(kind, BLOCKS);
            let mut rng = Rng::new(seed);
            let scripted = ScriptedStores::new();
            scripted.create(&params);
            let disk = scripted.open(&params, seed);
            let mut model = BlockVersions::new();
            scripted.script.seed(seed);
            let now = scripted.script.transactions.load(Ordering::SeqCst);
            scripted.script.fails_at.store(now + 5 + rng.below(40), Ordering::SeqCst);
            let mut stamp = 0;
            let error = loop {
                stamp += 1;
                if let Err(e) = act(&mut rng, &disk, &mut model, stamp) {
                    break e;
                }
            };
            assert_eq!(error.kind(), Kind::Io);
            let sent = scripted.script.transactions.load(Ordering::SeqCst);
            for _ in 0..3 {
                assert_eq!(write(&disk, 5, 1, 1).unwrap_err().kind(), Kind::FailStop);
                assert_eq!(disk.discard(BlockAddr(5), 1).unwrap_err().kind(), Kind::FailStop);
                assert_eq!(disk.flush().unwrap_err().kind(), Kind::FailStop);
            }
            // Readable data is the data that the next session reads; data that never reached the
            // store is not readable.
            let again = scripted.again().open(&params, 1);
            let (mut good, mut stranded) = (0, 0);
            for block in (0..BLOCKS).step_by(7) {
                match stamps(&disk, block, 1) {
                    Ok(found) => {
                        assert_eq!(found, stamps(&again, block, 1).unwrap(), "block {block}");
                        good += 1;
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), Kind::FailStop, "{e}");
                        assert!(e.to_string().contains("never reached the store"), "{e}");
                        stranded += 1;
                    }
                }
            }
            assert!(good > 0, "{kind:?}: nothing can be read, {stranded} blocks never reached the store");
            assert!(disk.close().is_err());
            assert_eq!(scripted.script.transactions.load(Ordering::SeqCst), sent);
            model.adopt_found(&again);
        }
    }
}

#[test]
fn a_failed_read_does_not_stop_the_disk() {
    for kind in all_ciphers_and_layouts() {
        let params = plan(kind, BLOCKS);
        let scripted = ScriptedStores::new();
        scripted.create(&params);
        let disk = scripted.open(&params, 1);
        write(&disk, 0, 64, 1).unwrap();
        disk.flush().unwrap();
        write(&disk, 3, 1, 2).unwrap();
        scripted.script.queries_fail.store(true, Ordering::SeqCst);
        assert_eq!(stamps(&disk, 0, 1).unwrap_err().kind(), Kind::Io);
        assert_eq!(stamps(&disk, 3, 1).unwrap(), [2]);
        scripted.script.queries_fail.store(false, Ordering::SeqCst);
        assert_eq!(stamps(&disk, 2, 3).unwrap(), [1, 2, 1]);
        disk.close().unwrap();
    }
}
