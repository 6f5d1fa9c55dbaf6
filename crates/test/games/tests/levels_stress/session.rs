//! One session of a disk: runs its clients, concurrently or in turns, and judges the results.

use crate::faults::{FailureExcuse, SessionMedium};
use crate::level_model::{CheckedResult, LevelModel};
use crate::script::{BlockParts, ClientOp, LevelClient};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Kind, Result};
use lacuna_levels::{LevelDisk, Levels};
use lacuna_sim::versions::run_content;
use lacuna_sim::{Rng, RunDigest};
use lacuna_testkit::StopAtEnd;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The time between two beats of cover while clients run concurrently.
const BEAT_INTERVAL: Duration = Duration::from_micros(300);
/// The most beats of a session with threads. After them, requests that wait for cover fail for want
/// of it.
const MOST_BEATS: u64 = 100_000;
/// The same for a lying medium: a level may then have no room for pending blocks.
const MAX_LYING_BEATS: u64 = 300;
/// The number of beats after which a client gives up on a lying medium.
const LYING_RETRY_BEATS: u64 = 3;
/// The most refusals of one request after one refused call of the medium. With threads, several
/// requests may depend on that call, and a hidden request is refused again until a public one
/// causes another try.
const MOST_REFUSED: u64 = 20;
/// The most blocks of one read on a lying medium: if one block fails, the whole read fails.
const MAX_LYING_READ: u64 = 6;

/// The deliberate fault of the disk in a control game.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weakness {
    /// Flushes do nothing, and are acknowledged.
    IgnoresFlushes,
    /// Syncs of its medium do nothing.
    IgnoresSyncs,
    /// After one refused call it takes no more requests.
    StopsAfterRefusal,
    /// It returns data that does not verify.
    ReturnsUnverified,
}

impl Weakness {
    pub(crate) const ALL: [Weakness; 4] = [
        Weakness::IgnoresFlushes,
        Weakness::IgnoresSyncs,
        Weakness::StopsAfterRefusal,
        Weakness::ReturnsUnverified,
    ];
}

/// The counts of a game. With threads they depend on timing.
#[derive(Debug, Default)]
pub(crate) struct GameCounts {
    /// Sessions with a power cut during work.
    pub(crate) cuts: AtomicU64,
    /// Calls of the medium that were made to fail, and requests that failed because of a refused
    /// call.
    pub(crate) failed_calls: AtomicU64,
    pub(crate) refused_requests: AtomicU64,
    /// Sessions with a lying medium, and requests and openings that failed in them.
    pub(crate) lies: AtomicU64,
    pub(crate) detected_lies: AtomicU64,
    /// Requests that waited for a beat of cover.
    pub(crate) waits: AtomicU64,
    /// Disks that were closed in use, and failures to close one of their levels.
    pub(crate) closed_in_use: AtomicU64,
    pub(crate) failed_closings: AtomicU64,
}

/// Increments a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The number of retries of a request.
#[derive(Default)]
pub(crate) struct Retries {
    beats: u64,
    refusals: u64,
}

/// The consequence of a failed request.
enum FailureOutcome {
    /// It is repeated, after a beat of cover.
    Retry,
    /// It failed, and its client goes on with the next request.
    Failed,
    /// The disk has stopped, and its client ends.
    Stopped,
}

/// An open disk and its clients.
pub(crate) struct DiskSession<'a, D> {
    pub(crate) disk: Arc<D>,
    pub(crate) levels: Vec<Arc<LevelDisk>>,
    /// One for each level.
    pub(crate) models: &'a [Mutex<LevelModel>],
    pub(crate) media: &'a SessionMedium,
    /// The most beats that a flush of a hidden level takes.
    pub(crate) beats: u64,
    pub(crate) weakness: Option<Weakness>,
    pub(crate) counts: &'a GameCounts,
    /// A digest of all answers to clients if they take turns; only then it depends on the seed
    /// alone.
    pub(crate) answer_digest: Option<Mutex<RunDigest>>,
    /// Whether a client got the error that the disk takes no more requests.
    pub(crate) stopped: AtomicBool,
    /// Whether a close of level 0 has begun: from then on beats may fail.
    pub(crate) is_closing: AtomicBool,
}

impl<D: Levels> DiskSession<'_, D> {
    fn parts(&self, level: usize) -> BlockParts {
        BlockParts::of_level(self.levels[level].blocks())
    }

    /// Reads all used blocks of all levels after the opening. Returns whether the session goes on.
    pub(crate) fn read_after_open(&self) -> CheckedResult<bool> {
        for level in 0..self.levels.len() {
            let all = self.parts(level).all();
            let is_open = if self.media.is_lying() {
                self.read_lying(level, &all)?
            } else {
                self.read_and_adopt(level, &all)?
            };
            if !is_open {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read_lying(&self, level: usize, all: &Range<u64>) -> CheckedResult<bool> {
        for first in all.clone().step_by(MAX_LYING_READ as usize) {
            let count = MAX_LYING_READ.min(all.end - first);
            if !self.perform(level, all, ClientOp::Read { first, count })? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads blocks after an opening. The model then expects the versions that were read.
    fn read_and_adopt(&self, level: usize, all: &Range<u64>) -> CheckedResult<bool> {
        let (read, mut tries) =
            (ClientOp::Read { first: all.start, count: all.end - all.start }, Retries::default());
        loop {
            let e = match self.perform_once(level, read) {
                Ok(given) => {
                    self.add_to_digest(&given);
                    let kept = self.models[level].lock().adopt(all.start, &given);
                    return kept.map(|()| true).map_err(|wrong| format!("after the opening: {wrong}"));
                }
                Err(e) => e,
            };
            match self.classify_failure(&e, &mut tries)? {
                FailureOutcome::Retry => {}
                FailureOutcome::Failed | FailureOutcome::Stopped => return Ok(false),
            }
        }
    }

    /// Runs the clients, each in a thread of its own, with beats of cover.
    pub(crate) fn run_concurrently(&self, clients: Vec<LevelClient>) -> CheckedResult<()> {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let beating = scope.spawn(|| self.beat_until(&done));
            let worked: Vec<CheckedResult<()>> = {
                let _stop = StopAtEnd(&done);
                let working: Vec<_> =
                    clients.into_iter().map(|client| scope.spawn(move || self.run_client(client))).collect();
                working.into_iter().map(|client| client.join().expect("no client panics")).collect()
            };
            let beaten = beating.join().expect("the cover does not panic");
            worked.into_iter().collect::<CheckedResult<()>>().and(beaten)
        })
    }

    pub(crate) fn run_client(&self, mut client: LevelClient) -> CheckedResult<()> {
        while self.step(&mut client)? {}
        Ok(())
    }

    pub(crate) fn beat_until(&self, done: &AtomicBool) -> CheckedResult<()> {
        let most = if self.media.is_lying() { MAX_LYING_BEATS } else { MOST_BEATS };
        for _ in 0..most {
            if done.load(Ordering::Relaxed) || !self.beat(&mut Retries::default())? {
                break;
            }
            std::thread::sleep(BEAT_INTERVAL);
        }
        Ok(())
    }

    /// Runs the clients and the cover in turns, in an order that depends on the seed.
    pub(crate) fn run_in_turns(&self, mut clients: Vec<LevelClient>, turns: &mut Rng) -> CheckedResult<()> {
        while !clients.is_empty() {
            let turn = turns.below(clients.len() as u64 + 1) as usize;
            let Some(client) = clients.get_mut(turn) else {
                self.beat(&mut Retries::default())?;
                continue;
            };
            if !self.step(client)? {
                clients.swap_remove(turn);
            }
        }
        Ok(())
    }

    /// Performs the next request of a client. Returns whether it goes on.
    pub(crate) fn step(&self, client: &mut LevelClient) -> CheckedResult<bool> {
        match client.script.next() {
            Some(op) => self.perform(client.level, &client.flushes, op),
            None => Ok(false),
        }
    }

    /// Flushes all levels, and closes the disk.
    pub(crate) fn close(&self) -> CheckedResult<()> {
        let flush = |level: usize| LevelClient {
            level,
            flushes: 0..self.levels[level].blocks(),
            script: vec![ClientOp::Flush].into_iter(),
        };
        let clients: Vec<LevelClient> = (0..self.levels.len()).map(flush).collect();
        if self.answer_digest.is_some() {
            clients.into_iter().try_for_each(|client| self.run_client(client))?;
        } else {
            self.run_concurrently(clients)?;
        }
        let failed = self.media.failed();
        match self.disk.close() {
            Ok(()) if self.stopped.load(Ordering::Relaxed) && !self.media.is_lying() => {
                Err("the close succeeded although the disk had stopped".into())
            }
            Ok(()) => {
                for (level, model) in self.levels.iter().zip(self.models) {
                    model.lock().record_flush(0..level.blocks());
                }
                Ok(())
            }
            Err(e) => match self.media.excuse() {
                FailureExcuse::Failure | FailureExcuse::Lies => Ok(()),
                // The close needed the refused call.
                FailureExcuse::Refusal if self.media.failed() > failed => Ok(()),
                FailureExcuse::Refusal | FailureExcuse::Nothing => {
                    Err(format!("the close failed without a fault of the medium: {e}"))
                }
            },
        }
    }

    /// Repeats a request until it succeeds. Returns whether the client goes on. A flush makes the
    /// last changes of the blocks `flushes` durable.
    pub(crate) fn perform(&self, level: usize, flushes: &Range<u64>, op: ClientOp) -> CheckedResult<bool> {
        if let Some((blocks, stamp)) = op.changed_blocks() {
            self.models[level].lock().begin(blocks, stamp);
        }
        let mut tries = Retries::default();
        loop {
            let e = match self.perform_once(level, op) {
                Ok(given) => return self.record_acknowledged(level, flushes, op, &given).map(|()| true),
                Err(e) => e,
            };
            let verdict = self.classify_failure(&e, &mut tries);
            match verdict.map_err(|wrong| format!("level {level}, {op:?}: {wrong}"))? {
                FailureOutcome::Retry => {}
                FailureOutcome::Failed => return Ok(true),
                FailureOutcome::Stopped => return Ok(false),
            }
            if !self.beat(&mut tries)? {
                return Ok(false);
            }
        }
    }

    /// Performs a request once. Returns the data that was read.
    fn perform_once(&self, level: usize, op: ClientOp) -> Result<Vec<u8>> {
        let disk = &self.levels[level];
        if self.weakness == Some(Weakness::StopsAfterRefusal) && self.media.excuse() == FailureExcuse::Refusal
        {
            return Err(Error::new(Kind::FailStop, "the disk takes no more requests"));
        }
        match op {
            ClientOp::Write { first, count, stamp } => {
                disk.write(BlockAddr(first), &run_content(first, count, stamp))?;
            }
            ClientOp::Discard { first, count } => disk.discard(BlockAddr(first), count)?,
            ClientOp::Read { first, count } => return self.read(disk, first, count),
            ClientOp::Flush if self.weakness == Some(Weakness::IgnoresFlushes) => {}
            ClientOp::Flush => disk.flush()?,
        }
        Ok(Vec::new())
    }

    fn read(&self, disk: &LevelDisk, first: u64, count: u64) -> Result<Vec<u8>> {
        let mut data = vec![0; count as usize * BLOCK_SIZE];
        let read = disk.read(BlockAddr(first), &mut data);
        if read.is_err() && self.weakness == Some(Weakness::ReturnsUnverified) && self.media.is_lying() {
            return Ok(run_content(first + 1, count, 1));
        }
        read.map(|()| data)
    }

    /// Records an acknowledged request.
    fn record_acknowledged(
        &self,
        level: usize,
        flushes: &Range<u64>,
        op: ClientOp,
        given: &[u8],
    ) -> CheckedResult<()> {
        self.add_to_digest(given);
        let mut model = self.models[level].lock();
        match op {
            ClientOp::Read { first, .. } if self.media.is_lying() => model.check_own(first, given)?,
            ClientOp::Read { first, .. } => model.check(first, given)?,
            ClientOp::Flush => model.record_flush(flushes.clone()),
            ClientOp::Write { .. } | ClientOp::Discard { .. } => {
                let changed = op.changed_blocks().map(|(blocks, _)| blocks);
                model.acknowledge(&changed.unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Decides about a request that failed with this error. Errors: the request should not have
    /// failed.
    fn classify_failure(&self, e: &Error, tries: &mut Retries) -> CheckedResult<FailureOutcome> {
        self.add_to_digest(format!("{:?}", e.kind()).as_bytes());
        let patience = if self.media.is_lying() { LYING_RETRY_BEATS } else { self.beats };
        if e.kind() == Kind::NoCover && tries.beats < patience {
            tries.beats += 1;
            count(&self.counts.waits);
            return Ok(FailureOutcome::Retry);
        }
        let stopped = e.kind() == Kind::FailStop;
        self.stopped.fetch_or(stopped, Ordering::Relaxed);
        match self.media.excuse() {
            FailureExcuse::Lies => {
                count(&self.counts.detected_lies);
                Ok(FailureOutcome::Failed)
            }
            FailureExcuse::Failure => Ok(FailureOutcome::Stopped),
            FailureExcuse::Refusal if !stopped && tries.refusals < MOST_REFUSED => {
                tries.refusals += 1;
                count(&self.counts.refused_requests);
                Ok(FailureOutcome::Retry)
            }
            FailureExcuse::Refusal => Err(format!("after one refused call every request fails: {e}")),
            FailureExcuse::Nothing => Err(format!("it failed without a fault of the medium: {e}")),
        }
    }

    /// A beat of cover, for a request that may wait for it. Returns whether the disk still works.
    pub(crate) fn beat(&self, tries: &mut Retries) -> CheckedResult<bool> {
        loop {
            let Err(e) = self.disk.refresh() else { return Ok(true) };
            if e.kind() == Kind::FailStop && self.is_closing.load(Ordering::Acquire) {
                return Ok(false);
            }
            match self.classify_failure(&e, tries).map_err(|wrong| format!("a beat of cover: {wrong}"))? {
                FailureOutcome::Retry => {}
                FailureOutcome::Failed => return Ok(true),
                FailureOutcome::Stopped => return Ok(false),
            }
        }
    }

    /// Adds an answer to the digest.
    pub(crate) fn add_to_digest(&self, what: &[u8]) {
        if let Some(digest) = &self.answer_digest {
            digest.lock().add_bytes(what);
        }
    }
}
