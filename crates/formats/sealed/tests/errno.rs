//! Each error of the system at each call of the medium, between the opening of a disk and its close. A call that is refused fails one
//! request, or nothing that a caller could notice, and everything goes on. After an error of the medium, or of a sync, the disk takes no
//! more writes, and what was flushed is there when it is opened again, also if the power goes.
//!
//! Two errors are tried at each call with each cipher, but of the calls that open a disk, most of which look for later batches, at each eighth;
//! with `LACUNA_SWEEP` all are tried at each.

mod fixture;
#[path = "faults/model.rs"]
#[allow(dead_code)]
mod model;

use fixture::*;
use lacuna_contracts::{Disk, SEGMENT_BLOCKS};
use lacuna_sealed::Params;
use lacuna_sim::{CrashMedium, Fault, FaultMedium, Image, OpKind, Rng, SWEPT, refuses};
use model::*;
use std::sync::Arc;

/// Every way to the medium: small writes, streams to new and to mapped segments, discards of blocks and of segments.
const WORK: [Op; 18] = [
    Op::Write(3, 2),
    Op::Write(SEGMENT_BLOCKS + 7, 3),
    Op::Flush,
    Op::Write(SEGMENT_BLOCKS * 2, 40),
    Op::Flush,
    Op::Write(0, 1024),
    Op::Write(10, 2),
    Op::Flush,
    Op::Discard(5, 3),
    Op::Discard(SEGMENT_BLOCKS * 2 + 8, 4),
    Op::Write(SEGMENT_BLOCKS * 2, 8),
    Op::Write(4, 100),
    Op::Discard(SEGMENT_BLOCKS * 2, SEGMENT_BLOCKS),
    Op::Write(SEGMENT_BLOCKS * 3, 100),
    Op::Flush,
    Op::Write(SEGMENT_BLOCKS * 2 + 1, 2),
    Op::Write(6, 1),
    Op::Discard(SEGMENT_BLOCKS * 3, 2),
];
/// Calls of the script at most.
const MOST_CALLS: u64 = 400;

type Faulty = FaultMedium<CrashMedium>;

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Nothing was noticed.
    Unnoticed,
    /// One request failed.
    Failed,
    /// The disk took no more writes.
    Stopped,
}

/// Plays the script with an error at call `nth`. Gives what became of it, the calls that opened the disk, and all calls.
fn run(params: &Params, start: &(Image, Model), nth: u64, errno: i32) -> (End, u64, u64) {
    let medium = Arc::new(Faulty::new(Arc::new(CrashMedium::from_image(start.0.clone()))));
    let mut model = start.1.clone();
    medium.add(Fault::Errno { nth, errno });
    let said = std::io::Error::from_raw_os_error(errno);
    let what = |hit| format!("{}, call {nth}, {hit:?}: {said}", params.cipher.name());
    let mut failed: Vec<String> = Vec::new();
    let disk = open_with(medium.clone(), params, options(3)).or_else(|e| {
        failed.push(e.to_string());
        open_with(medium.clone(), params, options(4))
    });
    let disk = disk.unwrap_or_else(|e| panic!("{}, opened again: {e}", what(medium.last_fired())));
    let opening = medium.operations();
    let mut stopped = false;
    for (op, stamp) in WORK.into_iter().chain([Op::Flush]).zip(100..) {
        let Err(e) = perform(&disk, op, stamp, &mut model) else { continue };
        failed.push(e.to_string());
        // What failed is asked for once more.
        if let Err(e) = perform(&disk, op, stamp, &mut model) {
            let hit = medium.last_fired();
            assert!(may_stop(hit, errno), "{}: one call was refused, and then everything: {e}", what(hit));
            stopped = true;
            break;
        }
    }
    let hit = medium.last_fired();
    if !may_stop(hit, errno) {
        assert!(failed.len() <= 1, "{}: more than one request failed: {failed:?}", what(hit));
    }
    // The reads of this test are no calls of the script.
    let before = medium.operations();
    medium.heal();
    model.assert_allows(&disk, &what(hit));
    let looked = medium.operations() - before;
    if nth > before {
        medium.add(Fault::Errno { nth: nth - before, errno });
    }
    match disk.close() {
        Ok(()) => {
            assert!(!stopped, "{}: closed as if nothing had been", what(hit));
            model.flushed();
        }
        Err(e) => {
            let hit = medium.last_fired();
            assert!(stopped || may_stop(hit, errno), "{}: closing failed: {e}", what(hit));
            stopped = true;
        }
    }
    drop(disk);
    let (hit, calls) = (medium.last_fired(), medium.operations() - looked);
    reopen(medium.inner(), params, &model, &what(hit));
    let end = match (stopped, failed.is_empty()) {
        (true, _) => End::Stopped,
        (false, true) => End::Unnoticed,
        (false, false) => End::Failed,
    };
    (end, opening, calls)
}

fn may_stop(hit: Option<OpKind>, errno: i32) -> bool {
    !refuses(errno) || matches!(hit, Some(OpKind::Sync | OpKind::WriteDurable))
}

/// The disk is opened as it is, and as a power cut leaves it.
fn reopen(medium: &Arc<CrashMedium>, params: &Params, model: &Model, what: &str) {
    let cut = medium.after_cut(&mut Rng::new(medium.ops()));
    for image in [medium.image(), cut] {
        let disk = open_with(Arc::new(CrashMedium::from_image(image)), params, options(5));
        let disk = disk.unwrap_or_else(|e| panic!("{what}, afterwards: {e}"));
        model.assert_allows(&disk, what);
        disk.close().unwrap();
    }
}

#[test]
fn an_error_of_any_call_fails_a_request_or_stops_and_loses_nothing_that_was_flushed() {
    let all = std::env::var_os("LACUNA_SWEEP").is_some();
    for cipher in CIPHERS {
        // Opening looks at each block of the journal for later batches: a short one needs few calls.
        let params = Params { journal_len: 1 << 20, ..params(cipher, BLOCKS) };
        let start = used_disk(&params);
        let (_, opening, calls) = run(&params, &start, 0, 0);
        assert!((40..=MOST_CALLS).contains(&calls), "{calls} calls");
        let mut ends = [0u64; 3];
        for nth in (1..=calls).filter(|nth| all || *nth > opening || nth % 8 == 0) {
            for (at, errno) in (0..).zip(SWEPT) {
                if all || matches!((nth + at) % 9, 0 | 4) {
                    ends[run(&params, &start, nth, errno).0 as usize] += 1;
                }
            }
        }
        let [unnoticed, failed, stopped] = ends;
        let name = cipher.name();
        println!("{name}: {calls} calls: {unnoticed} unnoticed, {failed} failed, {stopped} stopped");
        assert!(failed > 0 && stopped > 0, "{name}: {ends:?}");
    }
}
