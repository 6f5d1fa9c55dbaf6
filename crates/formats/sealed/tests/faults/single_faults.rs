//! Every write, sync and discard of a workload fails in turn.

use crate::fixture::*;
use crate::model::*;
use lacuna_contracts::{BlockAddr, Disk, Kind, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_sealed::{Params, SealedDisk};
use lacuna_sim::{CrashMedium, Fault, FaultMedium, MediumImage, OpKind, Rng};
use std::ops::Range;
use std::sync::Arc;

type Faulty = FaultMedium<CrashMedium>;

/// All paths to the medium: small writes, streams to new and to mapped segments (completed and
/// journaled), discards of blocks and of segments, and then the close. The journal already holds
/// batches at the start.
const WORK: [Op; 20] = [
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
    Op::Flush,
    Op::Write(4, 100),
    Op::Write(200, 70),
    Op::Discard(SEGMENT_BLOCKS * 2, SEGMENT_BLOCKS),
    Op::Write(SEGMENT_BLOCKS * 3, 100),
    Op::Flush,
    Op::Write(SEGMENT_BLOCKS * 2 + 1, 2),
    Op::Write(6, 1),
    Op::Discard(SEGMENT_BLOCKS * 3, 2),
];

/// Runs the workload until an operation fails, and asserts how the disk behaves afterwards. Returns
/// whether nothing failed.
fn run_until_failure(medium: &Arc<Faulty>, params: &Params, model: &mut FaultModel, what: &str) -> bool {
    let Ok(disk) = open_with(medium.clone(), params, options(3)) else { return false };
    for (op, stamp) in WORK.into_iter().zip(100..) {
        if let Err(e) = perform(&disk, op, stamp, model) {
            // A write refused once is accepted the next time, unless all are refused.
            if e.kind().is_refusal() && perform(&disk, op, stamp, model).is_ok() {
                continue;
            }
            assert!(matches!(e.kind(), Kind::Io | Kind::NoSpace), "{what}: {e}");
            let attempted = match op {
                Op::Write(first, count) | Op::Discard(first, count) => first..first + count,
                Op::Flush => 0..0,
            };
            assert_fail_stop(&disk, model, attempted, what);
            return false;
        }
    }
    if disk.close().is_err() {
        assert_eq!(write(&disk, 0, 1, 1).unwrap_err().kind(), Kind::FailStop, "{what}");
        return false;
    }
    model.flushed();
    // Failures that are not reported: space that could not be given back does not matter, and if
    // the medium is full while destaging, the blocks stay in the journal.
    let hint = what.contains("op: Discard") || what.contains("error: NoSpace");
    assert!(hint || medium.fired() == 0, "{what}: every failure is reported");
    medium.fired() == 0
}

fn assert_fail_stop(disk: &SealedDisk, model: &FaultModel, attempted: Range<u64>, what: &str) {
    let before = model.clone();
    for stamp in [9000, 9001] {
        assert_eq!(write(disk, 50, 1, stamp).unwrap_err().kind(), Kind::FailStop, "{what}");
        assert_eq!(write(disk, 1024, 64, stamp).unwrap_err().kind(), Kind::FailStop, "{what}");
        assert_eq!(disk.discard(BlockAddr(0), 1024).unwrap_err().kind(), Kind::FailStop, "{what}");
        assert_eq!(disk.flush().unwrap_err().kind(), Kind::FailStop, "{what}");
    }
    // Acknowledged blocks read as written, except those of the failed request itself.
    for (&block, versions) in before.0.iter().filter(|(b, _)| !attempted.contains(b)) {
        let data = read(disk, block).unwrap_or_else(|e| panic!("{what}: block {block} while failed: {e}"));
        assert_eq!(stamp_of(block, &data), versions.last().copied(), "{what}: block {block} while failed");
    }
    let cause = disk.close().unwrap_err();
    assert!(matches!(cause.kind(), Kind::Io | Kind::NoSpace), "{what}: {cause}");
    assert_eq!(write(disk, 50, 1, 1).unwrap_err().kind(), Kind::FailStop, "{what}");
}

/// Injects one fault, then repairs the medium, with and without a power cut in addition.
fn fault_and_mend(params: &Params, start: &(MediumImage, FaultModel), fault: Fault) -> bool {
    let what = format!("{} {fault:?}", params.cipher.name());
    let medium = Arc::new(FaultMedium::new(Arc::new(CrashMedium::from_image(start.0.clone()))));
    let mut model = start.1.clone();
    medium.add(fault);
    let well = run_until_failure(&medium, params, &mut model, &what);
    let fired = medium.fired() > 0;
    assert!(well || fired, "{what}: nothing is reported but faults");
    medium.heal();
    let cut = medium.inner().after_cut(&mut Rng::new(medium.inner().ops()));
    for image in [medium.inner().image(), cut] {
        let medium = Arc::new(CrashMedium::from_image(image));
        let disk = open_with(medium.clone(), params, options(4)).unwrap_or_else(|e| panic!("{what}: {e}"));
        model.assert_allows(&disk, &what);
        write(&disk, 77, 1, 7777).unwrap();
        disk.close().unwrap();
        let disk = open_with(medium, params, options(5)).unwrap();
        assert!(read(&disk, 77).unwrap() == content(77, 7777));
        model.0.remove(&77);
        model.assert_allows(&disk, &what);
    }
    fired
}

/// Lets each operation of a kind fail in turn, until there are no more.
fn every_operation_fails_once(ciphers: &[Cipher], least: u64, fault: impl Fn(u64) -> Fault) {
    for &cipher in ciphers {
        let params = params(cipher, BLOCKS);
        let start = used_disk(&params);
        let failed = (1..1000).take_while(|n| fault_and_mend(&params, &start, fault(*n))).count() as u64;
        println!("{}: {failed} operations", cipher.name());
        assert!((least..999).contains(&failed), "{failed}");
    }
}

#[test]
fn a_write_error_stops_the_disk_and_loses_nothing_flushed() {
    every_operation_fails_once(&CIPHERS, 30, |nth| Fault::FailNth {
        op: OpKind::Write,
        nth,
        error: Kind::Io,
    });
}

#[test]
fn lasting_write_errors_stop_the_disk_and_lose_nothing_flushed() {
    every_operation_fails_once(&CIPHERS[..1], 30, |nth| Fault::FailFrom {
        op: OpKind::Write,
        nth,
        error: Kind::Io,
    });
}

#[test]
fn a_sync_error_stops_the_disk_and_loses_nothing_flushed() {
    every_operation_fails_once(&CIPHERS, 4, |nth| Fault::FailNth { op: OpKind::Sync, nth, error: Kind::Io });
}

#[test]
fn a_discard_error_loses_nothing_flushed() {
    every_operation_fails_once(&CIPHERS, 2, |nth| Fault::FailNth {
        op: OpKind::Discard,
        nth,
        error: Kind::Io,
    });
}

#[test]
fn a_short_write_loses_nothing_flushed() {
    for bytes in [512, 5120] {
        every_operation_fails_once(&CIPHERS[1..], 30, |nth| Fault::Short { op: OpKind::Write, nth, bytes });
    }
}

#[test]
fn a_full_medium_at_any_write_loses_nothing() {
    let (op, error) = (OpKind::Write, Kind::NoSpace);
    every_operation_fails_once(&CIPHERS[..2], 30, |nth| Fault::FailNth { op, nth, error });
    every_operation_fails_once(&CIPHERS[2..], 30, |nth| Fault::FailFrom { op, nth, error });
}
