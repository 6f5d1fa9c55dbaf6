//! The end of a session after a hidden level lost data looks like that of a session with a failed
//! medium. The calls and the time of a close do not depend on the existing levels. The time comes
//! from a latency model of the medium, so it does not include computation.

#[path = "../../../formats/deniable/tests/fixture/mod.rs"]
mod deniable;

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_levels::{LevelFormat, Levels, Pace, level_disks};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Params, Plan};
use lacuna_sim::{LatencyMedium, LatencyModel, OpKind, Recorder};
use lacuna_testkit::levels::{create, open};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A session with a block on level 1. The user closes that level before any cover comes
/// (`too_early`) or after it. Returns the number of writes of the final close, and whether it
/// failed.
fn end_session<F: LevelFormat>(params: &F, too_early: bool) -> (usize, bool) {
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.end()))));
    let medium: Arc<dyn Medium> = recorder.clone();
    create(&medium, params, 2, 1).unwrap();
    let disk = open(&medium, params, 2, 1).unwrap();
    let levels = level_disks(&disk);
    levels[1].write(BlockAddr(0), &[7; BLOCK_SIZE]).unwrap();
    let refresh = || (0..8).for_each(|_| disk.refresh().unwrap());
    if !too_early {
        refresh();
    }
    let closed = levels[1].close();
    assert_eq!(closed.is_err(), too_early, "{closed:?}");
    if too_early {
        refresh();
    }
    recorder.take();
    let ended = levels[0].close();
    assert!(ended.as_ref().err().is_none_or(|e| e.kind() == Kind::NoCover), "{ended:?}");
    let writes = recorder.take().iter().filter(|record| record.kind == OpKind::Write).count();
    (writes, ended.is_err())
}

/// The user of the hidden level got an error, although stripes or batches took all pending data
/// later.
fn a_failed_level_leaves_no_record_of_a_clean_close<F: LevelFormat>(params: &F) {
    let [(writes_of_clean, failed_well), (writes_of_failed, failed_badly)] =
        [false, true].map(|too_early| end_session(params, too_early));
    assert!(!failed_well && failed_badly);
    assert!(
        writes_of_failed > 0 && writes_of_failed < writes_of_clean,
        "{writes_of_failed} writes, and {writes_of_clean} with the record of a clean close"
    );
}

#[test]
fn a_failed_level_of_deniable_looks_like_a_failed_medium() {
    a_failed_level_leaves_no_record_of_a_clean_close(&deniable::params());
}

#[test]
fn a_failed_level_of_oblivious_looks_like_a_failed_medium() {
    let params = Params::plan(32 << 20, Plan::DEFAULT).unwrap();
    a_failed_level_leaves_no_record_of_a_clean_close(&params);
}

/// The state of level 1 in a session.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HiddenLevelState {
    Absent,
    /// It exists, and the disk is opened with the key of level 0 alone.
    Unopened,
    /// It is open, and all of its data is durable.
    Idle,
    /// It is open, and some of its blocks are pending.
    Pending,
    /// The same, and after the cover it waits for no more: as a level that is mounted alone.
    GivenUp,
}

/// The calls and the time of a close.
struct CloseTrace {
    /// The kind and length of each operation, and the number of its call.
    calls: Vec<(OpKind, u64, u64)>,
    /// The time on a solid-state disk.
    time: Duration,
}

/// The close of a session with a fixed public workload, with this many beats after its cover.
fn trace_close<F: LevelFormat>(params: &F, deeper: HiddenLevelState, pace: Pace, beats: u64) -> CloseTrace {
    let memory = Arc::new(MemoryMedium::new(params.end()));
    let timed = Arc::new(LatencyMedium::new(memory, LatencyModel::ssd(), Arc::default()));
    let recorder = Arc::new(Recorder::new(Arc::clone(&timed)));
    let medium: Arc<dyn Medium> = recorder.clone();
    create(&medium, params, if deeper == HiddenLevelState::Absent { 1 } else { 2 }, 1).unwrap();
    let opened = if matches!(deeper, HiddenLevelState::Absent | HiddenLevelState::Unopened) { 1 } else { 2 };
    let disk = open(&medium, params, opened, 1).unwrap();
    let levels = level_disks(&disk);
    let put = |blocks: Range<u64>| {
        for level in &levels[1..] {
            blocks.clone().for_each(|block| level.write(BlockAddr(block), &[7; BLOCK_SIZE]).unwrap());
        }
    };
    put(0..3);
    // Wraps around the log of `deniable`, so that its stripes carry blocks.
    let public = &levels[0];
    (0..600).for_each(|n| public.write(BlockAddr(n % public.blocks()), &[5; BLOCK_SIZE]).unwrap());
    public.flush().unwrap();
    if matches!(deeper, HiddenLevelState::Pending | HiddenLevelState::GivenUp) {
        put(8..10);
    }
    recorder.take();
    let begun = timed.elapsed();
    disk.cover_closing(pace).unwrap();
    (0..beats).for_each(|_| disk.refresh().unwrap());
    if deeper == HiddenLevelState::GivenUp {
        disk.cover_closing(Pace::Immediate).unwrap();
        disk.set_no_wait(1, true);
    }
    levels.iter().rev().for_each(|level| level.close().unwrap());
    let time = timed.elapsed().saturating_sub(begun);
    let records = recorder.take();
    let first = records[0].call;
    let asked = records.iter().map(|record| (record.kind, record.len, record.call - first)).collect();
    CloseTrace { calls: asked, time }
}

fn a_close_takes_the_same_time_with_any_levels<F: LevelFormat>(params: &F) {
    for pace in [Pace::Immediate, Pace::Even] {
        let absent = trace_close(params, HiddenLevelState::Absent, pace, 0);
        for deeper in [
            HiddenLevelState::Unopened,
            HiddenLevelState::Idle,
            HiddenLevelState::Pending,
            HiddenLevelState::GivenUp,
        ] {
            let other = trace_close(params, deeper, pace, 0);
            assert_eq!(other.time, absent.time, "{deeper:?}, {pace:?}");
            assert!(other.calls == absent.calls, "{deeper:?}, {pace:?}: other calls");
        }
    }
    let [none, one] =
        [0, 1].map(|beats| trace_close(params, HiddenLevelState::Absent, Pace::Immediate, beats));
    assert!(
        none.time < one.time && none.calls != one.calls,
        "the comparison detects one stripe or batch more"
    );
}

#[test]
fn a_close_of_deniable_takes_the_same_time_with_any_levels() {
    a_close_takes_the_same_time_with_any_levels(&deniable::params());
}

#[test]
fn a_close_of_oblivious_takes_the_same_time_with_any_levels() {
    let params = Params::plan(32 << 20, Plan::DEFAULT).unwrap();
    a_close_takes_the_same_time_with_any_levels(&params);
}
