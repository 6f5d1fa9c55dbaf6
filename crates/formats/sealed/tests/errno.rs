//! Every system error at every call of the medium, between the opening of a disk and its close. A
//! refused call or a failed read fails at most one request, and everything else goes on. After any
//! other error, or an error of a sync, the disk takes no more writes. Flushed data is intact when
//! the disk is opened again, even if the power fails after the failed request or at the end. The
//! caller gets the error of the call.
//!
//! With each cipher a fifth of all pairs of a call and an error is tried. Of the calls that open a
//! disk a thirty-fifth is tried, since most of them search for later batches. With `LACUNA_SWEEP`
//! all pairs are tried.

mod fixture;
#[path = "faults/model.rs"]
#[allow(dead_code)]
mod model;

use fixture::*;
use lacuna_contracts::{Disk, Error, Kind, SEGMENT_BLOCKS};
use lacuna_sealed::Params;
use lacuna_sim::{
    CrashMedium, Fault, FaultMedium, MediumImage, OpKind, Rng, is_refusal_errno, reports_failure, sweep_cases,
};
use model::*;
use std::sync::Arc;

/// All paths to the medium: small writes, streams to new and to mapped segments, discards of blocks
/// and of segments.
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
/// One in this many pairs is tried: of the calls that open a disk, and of other calls.
const SHARES: (u64, u64) = (35, 5);

type Faulty = FaultMedium<CrashMedium>;

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunEnd {
    /// No request failed.
    Unnoticed,
    /// One request failed.
    Failed,
    /// The disk took no more writes.
    Stopped,
}

/// Runs the script with an error at call `nth`. Returns the outcome, the number of calls that
/// opened the disk, and the number of all calls.
fn run(params: &Params, start: &(MediumImage, FaultModel), nth: u64, errno: i32) -> (RunEnd, u64, u64) {
    let medium = Arc::new(Faulty::new(Arc::new(CrashMedium::from_image(start.0.clone()))));
    let mut model = start.1.clone();
    medium.add(Fault::Errno { nth, errno });
    let error_text = std::io::Error::from_raw_os_error(errno);
    let what = |hit| format!("{}, call {nth}, {hit:?}: {error_text}", params.cipher.name());
    let mut failed: Vec<Error> = Vec::new();
    let disk = open_with(medium.clone(), params, options(3)).or_else(|e| {
        failed.push(e);
        open_with(medium.clone(), params, options(4))
    });
    let disk = disk.unwrap_or_else(|e| panic!("{}, opened again: {e}", what(medium.last_fired())));
    let opening = medium.operations();
    let (mut stopped, mut left) = (false, vec![]);
    for (op, stamp) in WORK.into_iter().chain([Op::Flush]).zip(100..) {
        let Err(e) = perform(&disk, op, stamp, &mut model) else { continue };
        failed.push(e);
        left.push((medium.inner().after_cut(&mut Rng::new(nth)), model.clone()));
        // Repeat the failed operation.
        if let Err(e) = perform(&disk, op, stamp, &mut model) {
            let hit = medium.last_fired();
            assert!(may_stop(hit, errno), "{}: after one failed call every request fails: {e}", what(hit));
            stopped = true;
            break;
        }
    }
    let hit = medium.last_fired();
    judge(&failed, stopped, hit, errno, &what(hit));
    // The reads of this test do not count as calls of the script.
    let before = medium.operations();
    medium.heal();
    model.assert_allows(&disk, &what(hit));
    let looked = medium.operations() - before;
    if nth > before {
        medium.add(Fault::Errno { nth: nth - before, errno });
    }
    match disk.close() {
        Ok(()) => {
            assert!(!stopped, "{}: the close succeeded although the disk had stopped", what(hit));
            model.flushed();
        }
        Err(e) => {
            let hit = medium.last_fired();
            assert!(stopped || may_stop(hit, errno), "{}: closing failed: {e}", what(hit));
            assert!(
                reports_failure(&e, errno, hit.is_some_and(OpKind::makes_durable)),
                "{}: closing says {e}",
                what(hit)
            );
            stopped = true;
        }
    }
    drop(disk);
    let (hit, calls) = (medium.last_fired(), medium.operations() - looked);
    left.push((medium.inner().after_cut(&mut Rng::new(nth)), model.clone()));
    left.push((medium.inner().image(), model));
    left.into_iter().for_each(|(image, model)| reopen(image, params, &model, &what(hit)));
    let end = match (stopped, failed.is_empty()) {
        (true, _) => RunEnd::Stopped,
        (false, true) => RunEnd::Unnoticed,
        (false, false) => RunEnd::Failed,
    };
    (end, opening, calls)
}

/// Checks the errors of failed requests against the failed call.
fn judge(failed: &[Error], stopped: bool, hit: Option<OpKind>, errno: i32, what: &str) {
    if !may_stop(hit, errno) {
        assert!(failed.len() <= 1, "{what}: more than one request failed: {failed:?}");
    }
    if let Some(e) = failed.first() {
        // If the disk stopped without a waiting caller, it refuses the next request.
        let is_expected = reports_failure(e, errno, hit.is_some_and(OpKind::makes_durable))
            || (stopped && e.kind() == Kind::FailStop);
        assert!(is_expected, "{what}: the caller gets {:?}: {e}", e.kind());
    }
}

/// Whether the disk may take no more writes after this call: true unless the call was refused or
/// was a read.
fn may_stop(hit: Option<OpKind>, errno: i32) -> bool {
    hit.is_some_and(|hit| hit.makes_durable() || (hit != OpKind::Read && !is_refusal_errno(errno)))
}

/// Opens a medium, with or without a power cut, and compares it with the model.
fn reopen(image: MediumImage, params: &Params, model: &FaultModel, what: &str) {
    let disk = open_with(Arc::new(CrashMedium::from_image(image)), params, options(5));
    let disk = disk.unwrap_or_else(|e| panic!("{what}, afterwards: {e}"));
    model.assert_allows(&disk, what);
    disk.close().unwrap();
}

#[test]
fn any_error_fails_one_request_or_stops_and_loses_nothing_flushed() {
    let all = std::env::var_os("LACUNA_SWEEP").is_some();
    for cipher in CIPHERS {
        // Opening searches each block of the journal for later batches, so a short journal needs
        // few calls.
        let params = Params { journal_len: 1 << 20, ..params(cipher, BLOCKS) };
        let start = used_disk(&params);
        let (_, opening, calls) = run(&params, &start, 0, 0);
        assert!((40..1000).contains(&calls), "{calls} calls");
        let of_opening = sweep_cases(opening, (!all).then_some(SHARES.0));
        let of_work = sweep_cases(calls, (!all).then_some(SHARES.1)).filter(|(nth, _)| *nth > opening);
        let mut ends = [0u64; 3];
        for (nth, errno) in of_opening.chain(of_work) {
            ends[run(&params, &start, nth, errno).0 as usize] += 1;
        }
        let [unnoticed, failed, stopped] = ends;
        let name = cipher.name();
        println!("{name}: {calls} calls: {unnoticed} unnoticed, {failed} failed, {stopped} stopped");
        assert!(failed > 0 && stopped > 0, "{name}: {ends:?}");
    }
}
