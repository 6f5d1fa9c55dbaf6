//! Every system error at every call of the flash, between the opening of a disk and its close. A
//! refused call or a failed read fails one request, possibly a purge, and everything else goes on.
//! After any other error of the flash, or an error of a sync, the disk takes no more writes.
//! Flushed data is intact when the disk is opened again, even if the power fails before it is
//! closed, and the key state map is correct. The caller gets the error of the call.
//!
//! A read of the chip inside another call of the flash is a part of that call. `LACUNA_SWEEP` asks
//! for every error at every call.

mod fixture;

use fixture::{TestDisk, master, random};
use lacuna_contracts::{BlockAddr, Disk, Error, Result};
use lacuna_flash::{FlashDisk, OpenOptions};
use lacuna_nand::{Flash, FlashGeometry, Leb, Mapping, SimulatedChip, Unerased};
use lacuna_sim::versions::{DiskModel, run_content};
use lacuna_sim::{NthCall, RunDigest, is_refusal_errno, reports_failure, sweep_cases};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Calls after which the script ends.
const ENOUGH: u64 = 240;
/// One in this many pairs of a call and an error is tried, unless all are asked for.
const SHARE: u64 = 37;

#[derive(Clone, Copy)]
enum Op {
    /// First block and number of blocks.
    Write(u64, u64),
    Discard(u64, u64),
    Flush,
    Purge,
}

/// The operations of the script, which repeats them.
const WORK: [Op; 14] = [
    Op::Write(3, 2),
    Op::Flush,
    Op::Write(40, 20),
    Op::Flush,
    Op::Discard(5, 3),
    Op::Write(60, 30),
    Op::Purge,
    Op::Write(7, 9),
    Op::Write(75, 20),
    Op::Flush,
    Op::Discard(40, 20),
    Op::Write(0, 40),
    Op::Flush,
    Op::Write(10, 4),
];

/// A call of the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlashCall {
    Read,
    Program,
    Change,
    Unmap,
    IsMapped,
    Drain,
    Sync,
}

impl FlashCall {
    fn reads(self) -> bool {
        matches!(self, FlashCall::Read | FlashCall::IsMapped)
    }
}

/// Flash with one failing call, which does nothing.
struct FailingFlash {
    inner: Mapping,
    calls: Mutex<NthCall<FlashCall>>,
    /// While set, no call is counted, and none fails.
    paused: AtomicBool,
}

impl FailingFlash {
    fn begin(&self, call: FlashCall) -> Result<()> {
        let paused = self.paused.load(Ordering::Relaxed);
        if paused { Ok(()) } else { self.calls.lock().begin(call, call == FlashCall::Sync) }
    }

    fn calls(&self) -> u64 {
        self.calls.lock().calls()
    }

    fn hit(&self) -> Option<FlashCall> {
        self.calls.lock().failed_call()
    }
}

impl Flash for FailingFlash {
    fn geometry(&self) -> FlashGeometry {
        self.inner.geometry()
    }
    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.begin(FlashCall::Read)?;
        self.inner.read(block, offset, buf)
    }
    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.begin(FlashCall::Program)?;
        self.inner.program(block, offset, data)
    }
    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        self.begin(FlashCall::Change)?;
        self.inner.change(block, data)
    }
    fn unmap(&self, block: Leb) -> Result<()> {
        self.begin(FlashCall::Unmap)?;
        self.inner.unmap(block)
    }
    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.begin(FlashCall::IsMapped)?;
        self.inner.is_mapped(block)
    }
    fn drain_of(&self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        self.begin(FlashCall::Drain)?;
        self.inner.drain_of(wanted)
    }
    fn sync(&self) -> Result<()> {
        self.begin(FlashCall::Sync)?;
        self.inner.sync()
    }
}

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

fn perform(disk: &FlashDisk, op: Op, stamp: u64, model: &mut DiskModel) -> Result<()> {
    match op {
        Op::Write(first, count) => {
            model.add_version(first, count, stamp);
            disk.write(BlockAddr(first), &run_content(first, count, stamp))
        }
        Op::Discard(first, count) => {
            model.add_version(first, count, 0);
            disk.discard(BlockAddr(first), count)
        }
        Op::Flush => disk.flush().map(|()| model.record_flush()),
        Op::Purge => {
            disk.purge()?;
            assert_eq!(disk.recoverable(), 0);
            model.record_flush();
            Ok(())
        }
    }
}

/// A disk that was used, closed, used again, and cut.
fn start() -> (TestDisk, DiskModel) {
    let mut test_disk = TestDisk::small(21);
    let disk = test_disk.open();
    let mut model = DiskModel::new("the disk", disk.blocks());
    perform(&disk, Op::Write(0, disk.blocks() * 3 / 5), 1, &mut model).unwrap();
    perform(&disk, Op::Purge, 2, &mut model).unwrap();
    disk.close().unwrap();
    drop(disk);
    let disk = test_disk.open();
    for (op, stamp) in [Op::Write(20, 30), Op::Flush, Op::Discard(45, 3), Op::Flush].into_iter().zip(10..) {
        perform(&disk, op, stamp, &mut model).unwrap();
    }
    (test_disk, model)
}

/// Checks that the disk opens, its blocks have allowed versions, and its key state map is correct.
fn reopen(mut test_disk: TestDisk, model: &DiskModel, what: &str) {
    let disk = test_disk.open_after(|_, _| {}).disk.unwrap_or_else(|e| panic!("{what}, afterwards: {e}"));
    model.check_allowed(&disk, 0..model.blocks()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new(), "{what}");
}

/// Whether the disk may take no more writes after this error: true for every error of a sync, and
/// for any other error unless the call was refused or was a read.
fn may_stop(hit: Option<FlashCall>, errno: i32) -> bool {
    hit.is_some_and(|hit| hit == FlashCall::Sync || !(hit.reads() || is_refusal_errno(errno)))
}

/// Runs the script with an error at call `nth`. Returns the outcome, the number of calls, and the
/// call that failed.
fn play(
    (test_disk, model): &(TestDisk, DiskModel),
    nth: u64,
    errno: i32,
) -> (RunEnd, u64, Option<FlashCall>) {
    let (test_disk, mut model) = (test_disk.copied(), model.clone());
    let chip = Arc::new(SimulatedChip::open(test_disk.faults.clone(), 31).unwrap());
    let inner = Mapping::open(chip).unwrap();
    let flash = Arc::new(FailingFlash { inner, calls: Mutex::default(), paused: AtomicBool::new(false) });
    flash.calls.lock().fail(nth, errno);
    let error_text = std::io::Error::from_raw_os_error(errno);
    let what = || format!("call {nth}, {:?}: {error_text}", flash.hit());
    let may_stop = || may_stop(flash.hit(), errno);
    let open = |seed: u64| {
        let options = OpenOptions { random: random(seed), ..test_disk.options() };
        FlashDisk::open(flash.clone(), &test_disk.params, &master(), &options)
    };
    let mut failed: Vec<Error> = Vec::new();
    let opened = open(41).or_else(|e| {
        failed.push(e);
        open(42)
    });
    let disk = opened.unwrap_or_else(|e| panic!("{}, opened again: {e}", what()));
    let next_op = |op: Op| (flash.calls() <= ENOUGH).then_some(op);
    let script = WORK.into_iter().cycle().map_while(next_op).chain([Op::Flush]);
    let mut stopped = false;
    for (op, stamp) in script.zip(1000..) {
        let Err(e) = perform(&disk, op, stamp, &mut model) else { continue };
        failed.push(e);
        // Repeat the failed operation.
        if let Err(e) = perform(&disk, op, stamp, &mut model) {
            assert!(may_stop(), "{}: after one failed call every request fails: {e}", what());
            stopped = true;
            break;
        }
    }
    flash.paused.store(true, Ordering::Relaxed);
    model.check_allowed(&disk, 0..model.blocks()).unwrap_or_else(|e| panic!("{}: {e}", what()));
    flash.paused.store(false, Ordering::Relaxed);
    // The effects of completed flash calls survive a power cut.
    reopen(test_disk.copied(), &model, &what());
    match disk.close() {
        Ok(()) => {
            assert!(!stopped, "{}: the close succeeded although the disk had stopped", what());
            model.record_flush();
        }
        Err(e) => {
            failed.push(e);
            stopped |= may_stop();
        }
    }
    assert!(stopped || failed.len() <= 1, "{}: more than one request failed: {failed:?}", what());
    let is_expected =
        failed.first().is_none_or(|e| reports_failure(e, errno, flash.hit() == Some(FlashCall::Sync)));
    assert!(is_expected, "{}: the caller learns {:?}", what(), failed[0]);
    let (hit, calls) = (flash.hit(), flash.calls());
    drop(disk);
    reopen(test_disk.copied(), &model, &what());
    let end = match (stopped, failed.is_empty()) {
        (true, _) => RunEnd::Stopped,
        (false, true) => RunEnd::Unnoticed,
        (false, false) => RunEnd::Failed,
    };
    (end, calls, hit)
}

#[test]
fn any_error_fails_one_request_or_stops_and_loses_nothing_flushed() {
    let all = std::env::var_os("LACUNA_SWEEP").is_some();
    let start = start();
    let (end, calls, hit) = play(&start, 0, 0);
    assert_eq!((end, hit), (RunEnd::Unnoticed, None), "nothing was to fail");
    assert!(calls >= 40, "{calls} calls");
    let (mut ends, mut runs, mut digest) = ([0u64; 3], 0, RunDigest::new());
    for (nth, errno) in sweep_cases(calls, (!all).then_some(SHARE)) {
        let (end, _, hit) = play(&start, nth, errno);
        assert!(hit.is_some(), "call {nth} was never made");
        ends[end as usize] += 1;
        runs += 1;
        [nth, errno as u64, end as u64].into_iter().for_each(|word| digest.add_word(word));
    }
    let [unnoticed, failed, stopped] = ends;
    println!(
        "flash: {calls} calls, {runs} runs: {unnoticed} unnoticed, {failed} failed, {stopped} stopped, digest {:016x}",
        digest.0
    );
    assert!(failed > 0 && stopped > 0, "{ends:?}");
}
