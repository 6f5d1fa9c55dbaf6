//! The close of a disk in use: the levels are closed one after another, the deepest first, each
//! when its clients have finished. The cover of the closing, beats, and clients of other levels go
//! on meanwhile; cover and beats also while level 0 is closed, which closes the disk.

use crate::faults::FailureExcuse;
use crate::level_model::CheckedResult;
use crate::script::{ClientOp, LevelClient};
use crate::session::{DiskSession, Retries, count};
use lacuna_contracts::{Disk, Error, Kind, Result};
use lacuna_levels::{Levels, Pace};
use lacuna_sim::Rng;
use lacuna_testkit::StopAtEnd;
use std::sync::atomic::{AtomicBool, Ordering};

/// The progress of a close in use.
struct CloseInUse<'s, D> {
    session: &'s DiskSession<'s, D>,
    /// The number of levels that are still open.
    open: usize,
    is_covered: bool,
    /// Whether a hidden level could not be closed. Its user was told, and the disk remembers that.
    has_lost: bool,
    /// The number of failed calls of the medium at the time after which further ones excuse a
    /// failure.
    failed_calls: u64,
}

impl<D: Levels> DiskSession<'_, D> {
    /// Runs the clients, each in a thread of its own, and closes the levels meanwhile. The cover of
    /// the closing, beats and clients all begin at once.
    pub(crate) fn close_concurrently(&self, clients: Vec<LevelClient>, turns: &mut Rng) -> CheckedResult<()> {
        let mut closing = CloseInUse::new(self);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let beating = scope.spawn(|| self.beat_until(&done));
            let covering = scope.spawn(|| self.disk.cover_closing(Pace::Immediate));
            let closed = {
                let _stop = StopAtEnd(&done);
                let start =
                    |client: LevelClient| (client.level, scope.spawn(move || self.run_client(client)));
                let mut working: Vec<_> = clients.into_iter().map(start).collect();
                let mut outcome = Ok(());
                while closing.open > 0 {
                    let deepest = closing.open - 1;
                    let (ending, others): (Vec<_>, Vec<_>) =
                        working.into_iter().partition(|(level, _)| *level == deepest);
                    working = others;
                    for (_, client) in ending {
                        outcome = outcome.and(client.join().expect("no client panics"));
                    }
                    outcome = outcome.and(closing.close_deepest(turns.chance(1, 2)));
                }
                outcome
            };
            let covered = covering.join().expect("the cover does not panic");
            closed.and(closing.check_cover(&covered)).and(beating.join().expect("no beat panics"))
        })
    }

    /// Runs the clients, the cover and the steps of the close in turns, in an order that depends on
    /// the seed.
    pub(crate) fn close_in_turns(&self, mut clients: Vec<LevelClient>, turns: &mut Rng) -> CheckedResult<()> {
        let mut closing = CloseInUse::new(self);
        while closing.open > 0 {
            let turn = turns.below(clients.len() as u64 + 2) as usize;
            if let Some(client) = clients.get_mut(turn) {
                if !self.step(client)? {
                    clients.swap_remove(turn);
                }
            } else if turn == clients.len() {
                self.beat(&mut Retries::default())?;
            } else {
                closing.step(&clients, turns)?;
            }
        }
        Ok(())
    }
}

impl<'s, D: Levels> CloseInUse<'s, D> {
    fn new(session: &'s DiskSession<'s, D>) -> Self {
        count(&session.counts.closed_in_use);
        let (open, failed_calls) = (session.levels.len(), session.media.failed());
        CloseInUse { session, open, is_covered: false, has_lost: false, failed_calls }
    }

    /// A turn of the close: the cover, or the close of the deepest open level if its clients have
    /// finished. Only calls of the medium within this turn excuse a failure.
    fn step(&mut self, clients: &[LevelClient], turns: &mut Rng) -> CheckedResult<()> {
        self.failed_calls = self.session.media.failed();
        if !self.is_covered {
            return self.write_cover();
        }
        if clients.iter().any(|client| client.level + 1 == self.open) {
            return Ok(());
        }
        self.close_deepest(turns.chance(1, 2))
    }

    /// Writes the cover of the closing.
    fn write_cover(&mut self) -> CheckedResult<()> {
        self.is_covered = true;
        self.check_cover(&self.session.disk.cover_closing(Pace::Immediate))
    }

    /// Checks the cover of the closing. If the disk was closed first, it takes none.
    fn check_cover(&self, covered: &Result<()>) -> CheckedResult<()> {
        let is_closed = self.session.is_closing.load(Ordering::Acquire);
        if is_closed && covered.as_ref().is_err_and(|e| e.kind() == Kind::FailStop) {
            return Ok(());
        }
        self.check("the cover of the closing", covered, false)
    }

    /// Closes the deepest open level. A hidden level that `gives_up` waits for no more cover, and
    /// loses its pending data; otherwise it is flushed before.
    fn close_deepest(&mut self, gives_up: bool) -> CheckedResult<()> {
        self.open -= 1;
        let (session, number) = (self.session, self.open);
        let all = 0..session.levels[number].blocks();
        if number == 0 {
            return self.close_disk();
        }
        if gives_up {
            session.disk.set_no_wait(number as u8, true);
        } else {
            session.perform(number, &all, ClientOp::Flush)?;
        }
        let closed = session.levels[number].close();
        self.has_lost |= closed.is_err();
        if closed.is_ok() {
            session.models[number].lock().record_flush(all);
        }
        self.check(&format!("the close of level {number}"), &closed, gives_up)
    }

    /// Closes level 0, and so the disk.
    fn close_disk(&mut self) -> CheckedResult<()> {
        let session = self.session;
        session.is_closing.store(true, Ordering::Release);
        let closed = session.levels[0].close();
        if session.disk.refresh().is_ok() {
            return Err("a beat of cover succeeded after the close".into());
        }
        if closed.is_ok() {
            if self.has_lost {
                return Err("the close succeeded although a level lost data".into());
            }
            if session.stopped.load(Ordering::Relaxed) && !session.media.is_lying() {
                return Err("the close succeeded although the disk had stopped".into());
            }
            session.models[0].lock().record_flush(0..session.levels[0].blocks());
        }
        self.check("the close of the disk", &closed, self.has_lost)
    }

    /// Checks a step of the close. `may_lack_cover`: it may fail without a fault of the medium.
    fn check(&self, what: &str, ended: &Result<()>, may_lack_cover: bool) -> CheckedResult<()> {
        let session = self.session;
        session.add_to_digest(format!("{:?}", ended.as_ref().map_err(Error::kind)).as_bytes());
        let Err(e) = ended else { return Ok(()) };
        count(&session.counts.failed_closings);
        let is_excused = match session.media.excuse() {
            FailureExcuse::Failure | FailureExcuse::Lies => true,
            FailureExcuse::Refusal => session.media.failed() > self.failed_calls,
            FailureExcuse::Nothing => false,
        };
        if is_excused || (may_lack_cover && e.kind() == Kind::NoCover) {
            return Ok(());
        }
        Err(format!("{what} failed without a fault of the medium: {e}"))
    }
}
