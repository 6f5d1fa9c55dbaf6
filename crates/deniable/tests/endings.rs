//! How a session ends in which a hidden level lost something: as one whose medium fails at that moment.

mod fixture;

use fixture::{create, open, params};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_deniable::{Levels, Params};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{OpKind, Recorder};
use std::sync::Arc;

/// A session with a block on level 1, whose user closes that level before any cover comes or after it: the writes of the end, and whether
/// that failed.
fn end(params: &Params, too_early: bool) -> (usize, bool) {
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.medium_len()))));
    let medium: Arc<dyn Medium> = recorder.clone();
    create(&medium, params, 2, 1).unwrap();
    let disk = open(&medium, params, 2, 1).unwrap();
    let levels = disk.levels();
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

/// The user of the hidden level was told so, though stripes took everything along later.
#[test]
fn a_level_that_ended_badly_leaves_no_word_that_the_disk_was_closed() {
    let params = params();
    let [(well, failed_well), (badly, failed_badly)] = [false, true].map(|too_early| end(&params, too_early));
    assert!(!failed_well && failed_badly);
    assert!(badly > 0 && badly < well, "{badly} writes, and {well} with the word that it was closed");
}
