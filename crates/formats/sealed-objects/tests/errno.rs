//! Every system error at every call of a disk's two stores, between opening and closing. A refused
//! call did not happen, and a failed read changes nothing: one request fails, and all later ones
//! succeed. A transaction that fails otherwise may have happened or not, and both cases are tested:
//! the disk accepts no more writes then. Flushed data is present after the next opening, also if
//! the client dies after the failed request or before it closes the disk. The caller gets the error
//! of the failed call.
//!
//! `LACUNA_SWEEP` runs every error at every call.

mod scripted_stores;

use lacuna_contracts::{BlockAddr, Disk, Error, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{ObjectStore, ObjectTransaction, Query, QueryAnswer, SnapshotId};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, ObjectParams, Stores};
use lacuna_sim::versions::DiskModel;
use lacuna_sim::{MemoryObjects, NthCall, RunDigest, is_refusal_errno, reports_failure, sweep_cases};
use parking_lot::Mutex;
use scripted_stores::{CipherAndLayout, UUID, master, options, plan, write};
use std::ops::Range;
use std::sync::Arc;

/// One whole segment, and a part of one.
const BLOCKS: u64 = SEGMENT_BLOCKS + 60;
/// Blocks touched by the script.
const TOUCHED: [Range<u64>; 3] = [0..60, 300..560, SEGMENT_BLOCKS..BLOCKS];
/// One in this many pairs of a call and an error is tested, unless all are requested.
const SHARE: u64 = 37;

/// Each placement of metadata, with and without a version table.
const CIPHERS_AND_LAYOUTS: [CipherAndLayout; 5] = [
    (Cipher::Xts, ObjectLayout::SegmentEnd),
    (Cipher::XtsRandom, ObjectLayout::Interleaved),
    (Cipher::Gcm, ObjectLayout::Adaptive),
    (Cipher::Gcm, ObjectLayout::Kv),
    (Cipher::Gcm, ObjectLayout::SegmentEnd),
];

#[derive(Clone, Copy)]
enum Op {
    /// First block, number of blocks.
    Write(u64, u64),
    Discard(u64, u64),
    Flush,
    /// Makes a snapshot.
    Snapshot(&'static str),
    Remove(&'static str),
}

/// Small writes, writes past the cache, more blocks than the cache holds, discards of blocks and of
/// segments, snapshots.
const WORK: [Op; 22] = [
    Op::Write(3, 2),
    Op::Write(SEGMENT_BLOCKS + 7, 3),
    Op::Flush,
    Op::Write(10, 30),
    Op::Flush,
    Op::Write(300, 256),
    Op::Write(12, 2),
    Op::Flush,
    Op::Discard(5, 3),
    Op::Discard(310, 4),
    Op::Write(SEGMENT_BLOCKS, 60),
    Op::Snapshot("one"),
    Op::Write(SEGMENT_BLOCKS + 16, 4),
    Op::Discard(SEGMENT_BLOCKS, 60),
    Op::Write(SEGMENT_BLOCKS + 2, 20),
    Op::Flush,
    Op::Remove("zero"),
    Op::Write(300, 100),
    Op::Write(0, 60),
    Op::Remove("one"),
    Op::Write(4, 1),
    Op::Flush,
];

/// A call of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Apply,
    Query,
    List,
    CreateSnapshot,
    RemoveSnapshot,
    SetSnapshots,
    RollBack,
    AtSnapshot,
}

impl Call {
    fn reads(self) -> bool {
        matches!(self, Call::Query | Call::List | Call::AtSnapshot)
    }
}

/// A store with one failing call.
struct Failing {
    inner: MemoryObjects,
    calls: Arc<Mutex<NthCall<Call>>>,
    /// Whether a transaction that fails without a refusal has happened.
    happens: bool,
}

impl Failing {
    fn begin(&self, call: Call) -> Result<()> {
        self.calls.lock().begin(call, false)
    }
}

impl ObjectStore for Failing {
    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        let one = |transaction: &ObjectTransaction<'_>| match self.begin(Call::Apply) {
            Err(e) if self.happens && !e.kind().is_refusal() => {
                self.inner.apply_one(transaction.clone()).and(Err(e))
            }
            begun => begun.and_then(|()| self.inner.apply_one(transaction.clone())),
        };
        batch.iter().map(one).collect()
    }
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        let one = |query: &mut Query<'_>| {
            self.begin(Call::Query)?;
            self.inner.query(std::slice::from_mut(query)).remove(0)
        };
        batch.iter_mut().map(one).collect()
    }
    fn object_limit(&self) -> u64 {
        self.inner.object_limit()
    }
    fn has_keys(&self) -> bool {
        self.inner.has_keys()
    }
    fn list(&self) -> Result<Vec<u64>> {
        self.begin(Call::List)?;
        self.inner.list()
    }
    fn create_snapshot(&self) -> Result<SnapshotId> {
        self.begin(Call::CreateSnapshot)?;
        self.inner.create_snapshot()
    }
    fn remove_snapshot(&self, id: SnapshotId) -> Result<()> {
        self.begin(Call::RemoveSnapshot)?;
        self.inner.remove_snapshot(id)
    }
    fn set_snapshots(&self, ids: &[SnapshotId]) -> Result<()> {
        self.begin(Call::SetSnapshots)?;
        self.inner.set_snapshots(ids)
    }
    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.begin(Call::RollBack)?;
        self.inner.roll_back(object, id)
    }
    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        self.begin(Call::AtSnapshot)?;
        self.inner.at_snapshot(id)
    }
}

/// The stores of a disk, with its expected content.
struct Start {
    params: ObjectParams,
    data: MemoryObjects,
    book: MemoryObjects,
    model: DiskModel,
}

impl Start {
    /// A disk with a snapshot, in use when its client died.
    fn new(params: ObjectParams) -> Start {
        let (data, book) = (MemoryObjects::new(true), MemoryObjects::new(true));
        let mut start = Start { params, data, book, model: DiskModel::new("the disk", BLOCKS) };
        let stores = start.stores();
        ObjectDisk::create(&stores, &params, &master(), &UUID).unwrap();
        let first = [Op::Write(0, 20), Op::Snapshot("zero"), Op::Write(SEGMENT_BLOCKS, 5), Op::Flush];
        let second = [Op::Write(2, 4), Op::Discard(9, 1), Op::Flush];
        for (session, work) in (1..).zip([&first[..], &second[..]]) {
            let disk = start.open(session);
            for (op, stamp) in work.iter().zip(10 * session..) {
                perform(&disk, *op, stamp, &mut start.model).unwrap();
            }
            if session == 1 {
                disk.close().unwrap();
            }
        }
        start
    }

    fn stores(&self) -> Stores {
        Stores { data: Arc::new(self.data.reopened()), book: Arc::new(self.book.reopened()) }
    }

    fn open(&self, seed: u64) -> ObjectDisk {
        ObjectDisk::open(self.stores(), &self.params, &master(), &UUID, options(seed)).unwrap()
    }

    /// The present stores, with the versions in `model`.
    fn left(&self, model: &DiskModel) -> Start {
        let (data, book) = (self.data.copied(), self.book.copied());
        Start { params: self.params, data, book, model: model.clone() }
    }
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// No request failed.
    Unnoticed,
    /// One request failed.
    Failed,
    /// The disk accepted no more writes.
    Stopped,
}

fn perform(disk: &ObjectDisk, op: Op, stamp: u64, model: &mut DiskModel) -> Result<()> {
    match op {
        Op::Write(first, count) => {
            model.add_version(first, count, stamp);
            write(disk, first, count, stamp)
        }
        Op::Discard(first, count) => {
            model.add_version(first, count, 0);
            disk.discard(BlockAddr(first), count)
        }
        Op::Flush => disk.flush().map(|()| model.record_flush()),
        // Both write everything that was acknowledged.
        Op::Snapshot(name) => disk.create_snapshot(name).map(|()| model.record_flush()),
        Op::Remove(name) => disk.remove_snapshot(name),
    }
}

fn assert_allowed(disk: &ObjectDisk, model: &DiskModel, what: &str) {
    for range in TOUCHED {
        model.check_allowed(disk, range).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// Whether the disk may accept no more writes after this call: not if the call was refused, and not
/// if it reads.
fn may_stop(hit: Option<Call>, errno: i32) -> bool {
    hit.is_some_and(|hit| !hit.reads() && !is_refusal_errno(errno))
}

/// The error of one call.
#[derive(Clone, Copy)]
struct Failure {
    nth: u64,
    errno: i32,
    /// Whether a transaction that fails without a refusal has happened.
    happens: bool,
}

/// Opens a disk with one failing call.
fn open_failing(
    run: &Start,
    calls: &Arc<Mutex<NthCall<Call>>>,
    happens: bool,
    seed: u64,
) -> Result<ObjectDisk> {
    let failing = |objects: &MemoryObjects| -> Arc<dyn ObjectStore> {
        Arc::new(Failing { inner: objects.reopened(), calls: calls.clone(), happens })
    };
    let stores = Stores { data: failing(&run.data), book: failing(&run.book) };
    ObjectDisk::open(stores, &run.params, &master(), &UUID, options(seed))
}

/// Runs the script with one error. Returns the outcome, the number of calls, and the failed call.
fn play(start: &Start, failure: Failure) -> (End, u64, Option<Call>) {
    let Failure { nth, errno, happens } = failure;
    let (run, mut model) = (start.left(&start.model), start.model.clone());
    let calls = Arc::new(Mutex::new(NthCall::default()));
    calls.lock().fail(nth, errno);
    let said = std::io::Error::from_raw_os_error(errno);
    let (cipher, layout) = (run.params.cipher, run.params.layout);
    let hit = || calls.lock().failed_call();
    let what = || format!("{cipher:?} {layout:?}, call {nth}, {:?}: {said}, happened: {happens}", hit());
    let mut failed: Vec<Error> = Vec::new();
    let opened = open_failing(&run, &calls, happens, 21).or_else(|e| {
        failed.push(e);
        open_failing(&run, &calls, happens, 22)
    });
    let disk = opened.unwrap_or_else(|e| panic!("{}, opened again: {e}", what()));
    let (mut stopped, mut left) = (false, vec![]);
    for (op, stamp) in WORK.into_iter().zip(1000..) {
        let Err(e) = perform(&disk, op, stamp, &mut model) else { continue };
        failed.push(e);
        left.push(run.left(&model));
        // Repeat the failed operation once.
        if let Err(e) = perform(&disk, op, stamp, &mut model) {
            assert!(may_stop(hit(), errno), "{}: after one failed call every request fails: {e}", what());
            stopped = true;
            break;
        }
    }
    left.push(run.left(&model));
    match disk.close() {
        Ok(()) => {
            assert!(
                !stopped || may_stop(hit(), errno),
                "{}: the close succeeded although the disk had stopped",
                what()
            );
            model.record_flush();
        }
        Err(e) => {
            failed.push(e);
            stopped |= may_stop(hit(), errno);
        }
    }
    assert!(stopped || failed.len() <= 1, "{}: more than one request failed: {failed:?}", what());
    let is_reported = failed.first().is_none_or(|e| reports_failure(e, errno, false));
    assert!(is_reported, "{}: the caller learns {:?}", what(), failed[0]);
    drop(disk);
    let count = calls.lock().calls();
    left.push(run.left(&model));
    for left in left {
        let disk = left.open(31);
        assert_allowed(&disk, &left.model, &what());
        disk.close().unwrap_or_else(|e| panic!("{}, closed again: {e}", what()));
    }
    let end = match (stopped, failed.is_empty()) {
        (true, _) => End::Stopped,
        (false, true) => End::Unnoticed,
        (false, false) => End::Failed,
    };
    (end, count, hit())
}

/// Whether a failing transaction has happened, for the cases of a sweep. A refused one has not.
fn outcomes(all: bool, nth: u64, errno: i32) -> Vec<bool> {
    match (is_refusal_errno(errno), all) {
        (true, _) => vec![false],
        (false, true) => vec![false, true],
        (false, false) => vec![nth.is_multiple_of(2)],
    }
}

#[test]
fn an_error_of_any_call_fails_a_request_or_stops_and_loses_nothing_that_was_flushed() {
    let all = std::env::var_os("LACUNA_SWEEP").is_some();
    for sort in CIPHERS_AND_LAYOUTS {
        let start = Start::new(plan(sort, BLOCKS));
        let (end, calls, hit) = play(&start, Failure { nth: 0, errno: 0, happens: false });
        assert_eq!((end, hit), (End::Unnoticed, None), "{sort:?}: nothing was to fail");
        assert!((40..1000).contains(&calls), "{sort:?}: {calls} calls");
        let (mut ends, mut runs, mut digest) = ([0u64; 3], 0, RunDigest::new());
        for (nth, errno) in sweep_cases(calls, (!all).then_some(SHARE)) {
            for happens in outcomes(all, nth, errno) {
                let (end, _, hit) = play(&start, Failure { nth, errno, happens });
                assert!(hit.is_some(), "{sort:?}: call {nth} was never made");
                ends[end as usize] += 1;
                runs += 1;
                [nth, errno as u64, end as u64].into_iter().for_each(|word| digest.add_word(word));
            }
        }
        let [unnoticed, failed, stopped] = ends;
        println!(
            "{sort:?}: {calls} calls, {runs} runs: {unnoticed} unnoticed, {failed} failed, {stopped} stopped, digest {:016x}",
            digest.0
        );
        assert!(failed > 0 && stopped > 0, "{sort:?}: {ends:?}");
    }
}
