//! Tests that the fault medium injects exactly the faults that were added.

use lacuna_contracts::Kind;
use lacuna_medium::{Medium, MemoryMedium, ReadExtent, WriteExtent};
use lacuna_sim::{CrashMedium, Fault, FaultMedium, OpKind, Recorder};
use std::sync::Arc;

fn medium() -> FaultMedium<MemoryMedium> {
    FaultMedium::new(Arc::new(MemoryMedium::new(64 * 1024)))
}

fn byte(medium: &impl Medium, at: u64) -> u8 {
    let mut buf = [0];
    medium.read_at(at, &mut buf).unwrap();
    buf[0]
}

#[test]
fn the_nth_operation_fails_and_no_other() {
    for op in [OpKind::Read, OpKind::Write, OpKind::Sync, OpKind::Discard, OpKind::SetLen] {
        let m = medium();
        m.sync().unwrap();
        m.add(Fault::FailNth { op, nth: 2, error: Kind::Io });
        let act = || match op {
            OpKind::Read => m.read_at(0, &mut [0]),
            OpKind::Write | OpKind::WriteDurable => m.write_at(0, &[1]),
            OpKind::Sync => m.sync(),
            OpKind::Discard => m.discard(0, 1),
            OpKind::SetLen => m.set_len(100),
        };
        let outcomes: Vec<_> = (0..4).map(|_| act().map_err(|e| e.kind()).err()).collect();
        assert_eq!(outcomes, [None, Some(Kind::Io), None, None], "{op:?}");
        assert_eq!(m.fired(), 1);
    }
}

#[test]
fn the_nth_write_fails_with_an_errno_and_reads_are_not_counted() {
    let m = medium();
    m.add(Fault::ErrnoOf { op: OpKind::Write, nth: 2, errno: libc::EDQUOT });
    m.read_at(0, &mut [0; 10]).unwrap();
    let batch: Vec<_> = (0..3).map(|i| WriteExtent { offset: i * 10, data: &[1; 10] }).collect();
    let refused = m.write(&batch).unwrap_err();
    assert_eq!((refused.kind(), refused.errno()), (Kind::NoSpace, libc::EDQUOT));
    assert_eq!((byte(&m, 9), byte(&m, 10), byte(&m, 20)), (1, 0, 0));
    assert_eq!((m.fired(), m.last_fired()), (1, Some(OpKind::Write)));
    m.write(&batch).unwrap();
    assert_eq!(byte(&m, 29), 1);
    m.add(Fault::ErrnoOf { op: OpKind::Sync, nth: 1, errno: libc::EDQUOT });
    assert_eq!(m.sync().unwrap_err().kind(), Kind::Io);
}

#[test]
fn no_space_from_the_nth_write_until_healed() {
    let m = medium();
    m.add(Fault::FailFrom { op: OpKind::Write, nth: 3, error: Kind::NoSpace });
    let batch: Vec<_> = (0..5).map(|i| WriteExtent { offset: i * 10, data: &[1; 10] }).collect();
    assert_eq!(m.write_durable(&batch).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!((byte(&m, 19), byte(&m, 20), byte(&m, 40)), (1, 0, 0));
    assert_eq!(m.write_at(0, &[1]).unwrap_err().kind(), Kind::NoSpace);
    m.sync().unwrap();
    m.heal();
    m.write(&batch).unwrap();
    assert_eq!(byte(&m, 49), 1);
}

#[test]
fn a_quota_counts_pages_newly_touched() {
    let m = medium();
    m.add(Fault::Quota { bytes: 8192 });
    m.write_at(100, &[1; 10]).unwrap();
    m.write_at(200, &[1; 10]).unwrap();
    m.write_at(4096, &[1; 4096]).unwrap();
    assert_eq!(m.write_at(8192, &[1]).unwrap_err().kind(), Kind::NoSpace);
    m.write_at(0, &[2; 8192]).unwrap();
    m.discard(4096, 4096).unwrap();
    m.write_at(8192, &[1]).unwrap();
    assert!(m.write_at(4096, &[1]).is_err());
    assert_eq!(m.fired(), 2);
}

#[test]
fn a_quota_counts_pages_that_were_touched_before() {
    let m = medium();
    m.add_quota(8192, [1]);
    m.write_at(4096, &[1; 4096]).unwrap();
    m.write_at(0, &[1]).unwrap();
    assert_eq!(m.write_at(8192, &[1]).unwrap_err().kind(), Kind::NoSpace);
}

#[test]
fn a_short_operation_transfers_a_part() {
    let m = medium();
    m.add(Fault::Short { op: OpKind::Write, nth: 1, bytes: 600 });
    assert_eq!(m.write_at(0, &[1; 1024]).unwrap_err().kind(), Kind::Io);
    assert_eq!((byte(&m, 599), byte(&m, 600)), (1, 0));
    m.write_at(0, &[2; 1024]).unwrap();
    m.add(Fault::Short { op: OpKind::Read, nth: 2, bytes: 3 });
    let (mut a, mut b, mut c) = ([0; 4], [0; 4], [0; 4]);
    let mut batch = [
        ReadExtent { offset: 0, buf: &mut a },
        ReadExtent { offset: 4, buf: &mut b },
        ReadExtent { offset: 8, buf: &mut c },
    ];
    assert_eq!(m.read(&mut batch).unwrap_err().kind(), Kind::Io);
    assert_eq!((a, b, c), ([2; 4], [2, 2, 2, 0], [0; 4]));
}

#[test]
fn misdirected_and_lost_writes_report_success() {
    let m = medium();
    m.add(Fault::Misdirect { nth: 1, to: 4096 });
    m.add(Fault::Lose { op: OpKind::Write, nth: 2 });
    m.write_at(0, &[1; 10]).unwrap();
    m.write_at(0, &[2; 10]).unwrap();
    m.write_at(10, &[3; 10]).unwrap();
    assert_eq!((byte(&m, 0), byte(&m, 4096), byte(&m, 10)), (0, 1, 3));

    let crash = Arc::new(CrashMedium::new(4096));
    let m = FaultMedium::new(crash.clone());
    m.add(Fault::Lose { op: OpKind::Sync, nth: 1 });
    m.write_at(0, &[1]).unwrap();
    m.sync().unwrap();
    assert_eq!(crash.unsynced(), 1);
    m.sync().unwrap();
    assert_eq!(crash.unsynced(), 0);
}

#[test]
fn operations_that_touch_bad_sectors_fail() {
    let m = medium();
    m.add(Fault::FailRange { op: OpKind::Read, range: 512..1024, error: Kind::Io });
    m.read_at(0, &mut [0; 512]).unwrap();
    m.read_at(1024, &mut [0; 512]).unwrap();
    m.read_at(511, &mut [0; 2]).unwrap_err();
    m.read_at(1023, &mut [0; 1]).unwrap_err();
    m.write_at(512, &[1; 512]).unwrap();
}

#[test]
fn batches_and_durable_writes_pass_unchanged() {
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(4096))));
    let m = FaultMedium::new(recorder.clone() as Arc<dyn Medium>);
    let batch: Vec<_> = (0..3).map(|i| WriteExtent { offset: i * 10, data: &[1; 10] }).collect();
    m.write_durable(&batch).unwrap();
    m.write(&batch).unwrap();
    m.add(Fault::FailNth { op: OpKind::Write, nth: 2, error: Kind::Io });
    m.write_durable(&batch).unwrap_err();
    let seen: Vec<_> = recorder.take().iter().map(|r| (r.kind, r.call)).collect();
    let (w, d) = (OpKind::Write, OpKind::WriteDurable);
    assert_eq!(seen, [(d, 0), (d, 0), (d, 0), (w, 1), (w, 1), (w, 1), (w, 2)]);
}
