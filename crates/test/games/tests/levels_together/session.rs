//! One session of a disk: runs its clients, concurrently or in turns, and judges the results.

use crate::hardship::{Excuse, Media};
use crate::ledger::{Judged, Ledger};
use crate::script::{Client, Op, Parts};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Kind, Result};
use lacuna_levels::{LevelDisk, Levels};
use lacuna_sim::versions::run;
use lacuna_sim::{Digest, Rng};
use lacuna_testkit::StopAtEnd;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The time between two beats of cover while clients run concurrently.
const PAUSE: Duration = Duration::from_micros(300);
/// The most beats of a session with threads. After them, requests that wait for cover fail for want
/// of it.
const MOST_BEATS: u64 = 100_000;
/// The same for a lying medium: a level may then have no room for pending blocks.
const BEATS_OF_LIES: u64 = 300;
/// The number of beats after which a client gives up on a lying medium.
const PATIENCE_WITH_LIES: u64 = 3;
/// The most refusals of one request after one refused call of the medium. With threads, several
/// requests may depend on that call, and a hidden request is refused again until a public one
/// causes another try.
const MOST_REFUSED: u64 = 20;
/// The most blocks of one read on a lying medium: if one block fails, the whole read fails.
const AT_ONCE: u64 = 6;

/// The deliberate fault of the disk in a control game.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weakness {
    /// Flushes do nothing, and are acknowledged.
    FlushesNothing,
    /// Syncs of its medium do nothing.
    SyncsNothing,
    /// After one refused call it takes no more requests.
    StopsForGood,
    /// It returns data that does not verify.
    GivesWhatFails,
}

impl Weakness {
    pub(crate) const ALL: [Weakness; 4] =
        [Weakness::FlushesNothing, Weakness::SyncsNothing, Weakness::StopsForGood, Weakness::GivesWhatFails];
}

/// The counts of a game. With threads they depend on timing.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Sessions with a power cut during work.
    pub(crate) cuts: AtomicU64,
    /// Calls of the medium that were made to fail, and requests that failed because of a refused
    /// call.
    pub(crate) failed_calls: AtomicU64,
    pub(crate) refused_requests: AtomicU64,
    /// Sessions with a lying medium, and requests and openings that failed in them.
    pub(crate) lies: AtomicU64,
    pub(crate) noticed_lies: AtomicU64,
    /// Requests that waited for a beat of cover.
    pub(crate) waits: AtomicU64,
}

/// Increments a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The number of retries of a request.
#[derive(Default)]
struct Tries {
    beats: u64,
    refusals: u64,
}

/// The consequence of a failed request.
enum Verdict {
    /// It is repeated, after a beat of cover.
    Again,
    /// It failed, and its client goes on with the next request.
    Failed,
    /// The disk has stopped, and its client ends.
    Ended,
}

/// An open disk and its clients.
pub(crate) struct Session<'a, D> {
    pub(crate) disk: Arc<D>,
    pub(crate) levels: Vec<Arc<LevelDisk>>,
    /// One for each level.
    pub(crate) ledgers: &'a [Mutex<Ledger>],
    pub(crate) media: &'a Media,
    /// The most beats that a flush of a hidden level takes.
    pub(crate) beats: u64,
    pub(crate) weakness: Option<Weakness>,
    pub(crate) counts: &'a Counts,
    /// A digest of all answers to clients if they take turns; only then it depends on the seed
    /// alone.
    pub(crate) told: Option<Mutex<Digest>>,
    /// Whether a client got the error that the disk takes no more requests.
    pub(crate) stopped: AtomicBool,
}

impl<D: Levels> Session<'_, D> {
    fn parts(&self, level: usize) -> Parts {
        Parts::of(self.levels[level].blocks())
    }

    /// Reads all used blocks of all levels after the opening. Returns whether the session goes on.
    pub(crate) fn look(&self) -> Judged<bool> {
        for level in 0..self.levels.len() {
            let all = self.parts(level).all();
            let goes_on =
                if self.media.lies() { self.look_at_lies(level, &all)? } else { self.keep(level, &all)? };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn look_at_lies(&self, level: usize, all: &Range<u64>) -> Judged<bool> {
        for first in all.clone().step_by(AT_ONCE as usize) {
            let count = AT_ONCE.min(all.end - first);
            if !self.perform(level, all, Op::Read { first, count })? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads blocks after an opening. The ledger then expects the versions that were read.
    fn keep(&self, level: usize, all: &Range<u64>) -> Judged<bool> {
        let (read, mut tries) = (Op::Read { first: all.start, count: all.end - all.start }, Tries::default());
        loop {
            let e = match self.ask(level, read) {
                Ok(given) => {
                    self.note(&given);
                    let kept = self.ledgers[level].lock().keep(all.start, &given);
                    return kept.map(|()| true).map_err(|wrong| format!("after the opening: {wrong}"));
                }
                Err(e) => e,
            };
            match self.judge(&e, &mut tries)? {
                Verdict::Again => {}
                Verdict::Failed | Verdict::Ended => return Ok(false),
            }
        }
    }

    /// Runs the clients, each in a thread of its own, with beats of cover.
    pub(crate) fn at_once(&self, clients: Vec<Client>) -> Judged<()> {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let beating = scope.spawn(|| self.beat_until(&done));
            let worked: Vec<Judged<()>> = {
                let _stop = StopAtEnd(&done);
                let working: Vec<_> =
                    clients.into_iter().map(|client| scope.spawn(move || self.work(client))).collect();
                working.into_iter().map(|client| client.join().expect("no client panics")).collect()
            };
            let beaten = beating.join().expect("the cover does not panic");
            worked.into_iter().collect::<Judged<()>>().and(beaten)
        })
    }

    fn work(&self, mut client: Client) -> Judged<()> {
        while self.step(&mut client)? {}
        Ok(())
    }

    fn beat_until(&self, done: &AtomicBool) -> Judged<()> {
        let most = if self.media.lies() { BEATS_OF_LIES } else { MOST_BEATS };
        for _ in 0..most {
            if done.load(Ordering::Relaxed) || !self.beat(&mut Tries::default())? {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Runs the clients and the cover in turns, in an order that depends on the seed.
    pub(crate) fn in_turns(&self, mut clients: Vec<Client>, turns: &mut Rng) -> Judged<()> {
        while !clients.is_empty() {
            let turn = turns.below(clients.len() as u64 + 1) as usize;
            let Some(client) = clients.get_mut(turn) else {
                self.beat(&mut Tries::default())?;
                continue;
            };
            if !self.step(client)? {
                clients.swap_remove(turn);
            }
        }
        Ok(())
    }

    /// Performs the next request of a client. Returns whether it goes on.
    fn step(&self, client: &mut Client) -> Judged<bool> {
        match client.script.next() {
            Some(op) => self.perform(client.level, &client.flushes, op),
            None => Ok(false),
        }
    }

    /// Flushes all levels, and closes the disk.
    pub(crate) fn close(&self) -> Judged<()> {
        let flush = |level: usize| Client {
            level,
            flushes: 0..self.levels[level].blocks(),
            script: vec![Op::Flush].into_iter(),
        };
        let clients: Vec<Client> = (0..self.levels.len()).map(flush).collect();
        if self.told.is_some() {
            clients.into_iter().try_for_each(|client| self.work(client))?;
        } else {
            self.at_once(clients)?;
        }
        let failed = self.media.failed();
        match self.disk.close() {
            Ok(()) if self.stopped.load(Ordering::Relaxed) && !self.media.lies() => {
                Err("it was closed as if nothing had been".into())
            }
            Ok(()) => {
                for (level, ledger) in self.levels.iter().zip(self.ledgers) {
                    ledger.lock().flushed(0..level.blocks());
                }
                Ok(())
            }
            Err(e) => match self.media.excuse() {
                Excuse::Failure | Excuse::Lies => Ok(()),
                // The close needed the refused call.
                Excuse::Refusal if self.media.failed() > failed => Ok(()),
                Excuse::Refusal | Excuse::Nothing => Err(format!("it cannot be closed: {e}")),
            },
        }
    }

    /// Repeats a request until it succeeds. Returns whether the client goes on. A flush makes the
    /// last changes of the blocks `flushes` durable.
    pub(crate) fn perform(&self, level: usize, flushes: &Range<u64>, op: Op) -> Judged<bool> {
        if let Some((blocks, stamp)) = op.change() {
            self.ledgers[level].lock().begin(blocks, stamp);
        }
        let mut tries = Tries::default();
        loop {
            let e = match self.ask(level, op) {
                Ok(given) => return self.done(level, flushes, op, &given).map(|()| true),
                Err(e) => e,
            };
            let verdict = self.judge(&e, &mut tries);
            match verdict.map_err(|wrong| format!("level {level}, {op:?}: {wrong}"))? {
                Verdict::Again => {}
                Verdict::Failed => return Ok(true),
                Verdict::Ended => return Ok(false),
            }
            if !self.beat(&mut tries)? {
                return Ok(false);
            }
        }
    }

    /// Performs a request once. Returns the data that was read.
    fn ask(&self, level: usize, op: Op) -> Result<Vec<u8>> {
        let disk = &self.levels[level];
        if self.weakness == Some(Weakness::StopsForGood) && self.media.excuse() == Excuse::Refusal {
            return Err(Error::new(Kind::FailStop, "the disk takes no more requests"));
        }
        match op {
            Op::Write { first, count, stamp } => disk.write(BlockAddr(first), &run(first, count, stamp))?,
            Op::Discard { first, count } => disk.discard(BlockAddr(first), count)?,
            Op::Read { first, count } => return self.read(disk, first, count),
            Op::Flush if self.weakness == Some(Weakness::FlushesNothing) => {}
            Op::Flush => disk.flush()?,
        }
        Ok(Vec::new())
    }

    fn read(&self, disk: &LevelDisk, first: u64, count: u64) -> Result<Vec<u8>> {
        let mut data = vec![0; count as usize * BLOCK_SIZE];
        let read = disk.read(BlockAddr(first), &mut data);
        if read.is_err() && self.weakness == Some(Weakness::GivesWhatFails) && self.media.lies() {
            return Ok(run(first + 1, count, 1));
        }
        read.map(|()| data)
    }

    /// Records an acknowledged request.
    fn done(&self, level: usize, flushes: &Range<u64>, op: Op, given: &[u8]) -> Judged<()> {
        self.note(given);
        let mut ledger = self.ledgers[level].lock();
        match op {
            Op::Read { first, .. } if self.media.lies() => ledger.check_own(first, given)?,
            Op::Read { first, .. } => ledger.check(first, given)?,
            Op::Flush => ledger.flushed(flushes.clone()),
            Op::Write { .. } | Op::Discard { .. } => {
                let changed = op.change().map(|(blocks, _)| blocks);
                ledger.acknowledge(&changed.unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Decides about a request that failed with this error. Errors: the request should not have
    /// failed.
    fn judge(&self, e: &Error, tries: &mut Tries) -> Judged<Verdict> {
        self.note(format!("{:?}", e.kind()).as_bytes());
        let patience = if self.media.lies() { PATIENCE_WITH_LIES } else { self.beats };
        if e.kind() == Kind::NoCover && tries.beats < patience {
            tries.beats += 1;
            count(&self.counts.waits);
            return Ok(Verdict::Again);
        }
        let stopped = e.kind() == Kind::FailStop;
        self.stopped.fetch_or(stopped, Ordering::Relaxed);
        match self.media.excuse() {
            Excuse::Lies => {
                count(&self.counts.noticed_lies);
                Ok(Verdict::Failed)
            }
            Excuse::Failure => Ok(Verdict::Ended),
            Excuse::Refusal if !stopped && tries.refusals < MOST_REFUSED => {
                tries.refusals += 1;
                count(&self.counts.refused_requests);
                Ok(Verdict::Again)
            }
            Excuse::Refusal => Err(format!("one call was refused, and then everything: {e}")),
            Excuse::Nothing => Err(format!("it failed though nothing did before: {e}")),
        }
    }

    /// A beat of cover, for a request that may wait for it. Returns whether the disk still works.
    fn beat(&self, tries: &mut Tries) -> Judged<bool> {
        loop {
            let Err(e) = self.disk.refresh() else { return Ok(true) };
            match self.judge(&e, tries).map_err(|wrong| format!("a beat of cover: {wrong}"))? {
                Verdict::Again => {}
                Verdict::Failed => return Ok(true),
                Verdict::Ended => return Ok(false),
            }
        }
    }

    /// Adds an answer to the digest.
    fn note(&self, what: &[u8]) {
        if let Some(told) = &self.told {
            told.lock().bytes(what);
        }
    }
}
