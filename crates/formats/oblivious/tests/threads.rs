//! A disk with threads: many clients at once on both levels, beats of the paced cover, closing
//! without cover, and a medium that fails.

mod fixture;

use fixture::regions::Regions;
use fixture::{DiskWorkload, create, fill, models, open as open_alone, stamp_of};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{HidingMode, LevelDisk, ObliviousDisk, Params, Plan};
use lacuna_sim::{OpKind, Rng};
use lacuna_testkit::StopAtEnd;
use lacuna_testkit::levels::ThreadedDisk;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn params(hiding: HidingMode, cover_millis: u32) -> Params {
    let plan = Plan { hiding, operations: 6, cover_millis, ..Plan::DEFAULT };
    Params::plan(12 << 20, plan).unwrap()
}

fn threaded(params: &Params) -> ThreadedDisk<'_, Params> {
    ThreadedDisk { params, levels: 2 }
}

fn open(medium: &Arc<dyn Medium>, params: &Params, seed: u64) -> (Arc<ObliviousDisk>, Vec<Arc<LevelDisk>>) {
    threaded(params).open(medium, seed)
}

#[test]
fn many_clients_work_on_both_levels() {
    threaded(&params(HidingMode::Opportunistic, 3)).assert_serves_many_clients();
}

/// Here every operation makes batches; flushes of hidden levels wait for these and for the clock.
#[test]
fn many_clients_work_on_a_plausible_disk() {
    threaded(&params(HidingMode::Plausible, 3)).assert_serves_many_clients();
}

/// Closing a disk without cover may lose pending hidden blocks, and reports that; level 0 is whole.
#[test]
fn closing_without_cover_reports_the_loss_and_keeps_level_0() {
    let params = params(HidingMode::Opportunistic, 0);
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.end()));
    create(&medium, &params, 2, 1).unwrap();
    let mut models = models(&open_alone(&medium, &params, 2, 1).unwrap());
    let (mut rng, mut next_stamp) = (Rng::new(4), 0);
    for session in 1..20 {
        let (disk, levels) = open(&medium, &params, session);
        for round in 0..60 {
            let at = round % 2;
            let (disk, model) = (&*levels[at], &mut models[at]);
            DiskWorkload { disk, model, rng: &mut rng, next_stamp: &mut next_stamp }.write(2).unwrap();
        }
        let model = &mut models[1];
        DiskWorkload { disk: &*levels[1], model, rng: &mut rng, next_stamp: &mut next_stamp }
            .write(60)
            .unwrap();
        assert_eq!(levels[1].close().unwrap_err().kind(), Kind::NoCover);
        assert_eq!(levels[0].close().unwrap_err().kind(), Kind::NoCover);
        assert!(levels[0].write(BlockAddr(0), &[0; BLOCK_SIZE]).is_err(), "it is closed");
        drop((levels, disk));
        models[0].record_flush();
        let again = open_alone(&medium, &params, 2, session).unwrap();
        for (level, model) in again.levels().iter().zip(&mut models) {
            model.check_after_cut(&**level).unwrap();
        }
    }
}

/// However far the ring is ahead of the cells, a disk opens and works with the state of the medium
/// at any moment.
#[test]
fn a_disk_opens_from_any_snapshot() {
    let params = params(HidingMode::Opportunistic, 0);
    let memory = Arc::new(MemoryMedium::new(params.end()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, &params, 2, 1).unwrap();
    let (_disk, mut levels) = open(&medium, &params, 1);
    let (level, done) = (levels.remove(0), AtomicBool::new(false));
    let moments = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(3);
            while !done.load(Ordering::Relaxed) {
                let mut block = vec![0; BLOCK_SIZE];
                let addr = rng.below(level.blocks());
                fill(addr, 1 + addr % 7, &mut block);
                level.write(BlockAddr(addr), &block).unwrap();
            }
        });
        let _stop = StopAtEnd(&done);
        (0..40).map(|_| memory.snapshot()).collect::<Vec<Vec<u8>>>()
    });
    for moment in moments {
        let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(moment));
        for session in 0..2 {
            let level = &open(&medium, &params, session).1[0];
            for addr in 0..level.blocks() {
                let mut block = vec![0; BLOCK_SIZE];
                level.read(BlockAddr(addr), &mut block).unwrap();
                let stamp = stamp_of(addr, &block);
                assert!(stamp == Some(0) || stamp == Some(1 + addr % 7), "block {addr} reads {stamp:?}");
                if addr % 8 == 0 {
                    level.write(BlockAddr(addr), &block).unwrap();
                }
            }
        }
    }
}

/// With threads the trace of batches does not depend on speed.
#[test]
fn the_order_of_batches_does_not_depend_on_speed() {
    let params = params(HidingMode::Opportunistic, 0);
    let cells = Regions::of(&params).cells_start as u64;
    // The writes to journal and ring.
    let places = |busy| -> Vec<(u64, u64)> {
        let writes = threaded(&params).record_writes(3000, busy);
        let before = writes.iter().filter(|write| write.offset < cells);
        before.map(|write| (write.offset, write.len)).collect()
    };
    let idle = places(false);
    assert!(idle.len() > 3 * 500, "{} writes", idle.len());
    for _ in 0..3 {
        assert!(places(true) == idle);
    }
}

#[test]
fn a_failed_medium_stops_the_disk_without_hanging() {
    for op in [OpKind::Write, OpKind::Sync, OpKind::Read] {
        for nth in [3, 20] {
            threaded(&params(HidingMode::Opportunistic, 3)).assert_stops_at(op, nth);
        }
    }
}

/// A level that is being closed stops waiting for a sync that no operation causes any more.
#[test]
fn a_closing_level_ends_a_flush_that_waits_for_a_sync() {
    threaded(&params(HidingMode::Opportunistic, 0)).assert_flush_ends_when_level_is_given_up();
}

#[test]
fn no_sync_follows_a_failed_sync() {
    for nth in 1..8 {
        let params = params(HidingMode::Opportunistic, 3);
        assert_eq!(threaded(&params).count_syncs_after_failed_sync(nth), 0, "sync {nth} failed");
    }
}
