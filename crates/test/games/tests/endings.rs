//! How a session ends in which a hidden level lost something: as one whose medium fails at that moment.

#[path = "../../../formats/deniable/tests/fixture/mod.rs"]
mod deniable;

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_levels::{LevelFormat, Levels, level_disks};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Params, Plan};
use lacuna_sim::{OpKind, Recorder};
use lacuna_testkit::levels::{create, open};
use std::sync::Arc;

/// A session with a block on level 1, whose user closes that level before any cover comes or after it: the writes of the end, and whether
/// that failed.
fn end<F: LevelFormat>(params: &F, too_early: bool) -> (usize, bool) {
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

/// The user of the hidden level was told so, though stripes or batches took everything along later.
fn a_level_that_ended_badly_leaves_no_word_that_the_disk_was_closed<F: LevelFormat>(params: &F) {
    let [(well, failed_well), (badly, failed_badly)] = [false, true].map(|too_early| end(params, too_early));
    assert!(!failed_well && failed_badly);
    assert!(badly > 0 && badly < well, "{badly} writes, and {well} with the word that it was closed");
}

#[test]
fn an_ending_of_deniable_says_no_more_than_a_failed_medium() {
    a_level_that_ended_badly_leaves_no_word_that_the_disk_was_closed(&deniable::params());
}

#[test]
fn an_ending_of_oblivious_says_no_more_than_a_failed_medium() {
    let params = Params::plan(32 << 20, Plan::DEFAULT).unwrap();
    a_level_that_ended_badly_leaves_no_word_that_the_disk_was_closed(&params);
}
