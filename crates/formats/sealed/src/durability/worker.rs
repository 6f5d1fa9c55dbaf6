//! Keeps pending writes within their limits: a background thread commits before writers have to
//! wait, and another makes checkpoints beside it. Without these threads the writers do both.

use crate::caches::cache::WriteCache;
use crate::durability::commit::CommitScope;
use crate::durability::flush::Flusher;
use crate::health::Health;
use crate::limits::Limits;
use crate::medium_full::MediumFull;
use crate::segments::Segments;
use lacuna_contracts::{Error, OnPanic, Result, panic_error};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The length of a quiet interval. After two in a row, blocks in the journal are destaged.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// How long something may be only in memory before it is committed without a flush: as long as a
/// dirty page of the system's cache by default.
const MAX_DIRTY_AGE: Duration = Duration::from_secs(30);
/// The number of pending discards at which they are committed.
const MAX_PENDING_DISCARDS: usize = 64;

/// Commits when that is due.
pub(crate) struct CommitWorker {
    flusher: Arc<Flusher>,
    cache: Arc<WriteCache>,
    segments: Arc<Segments>,
    health: Arc<Health>,
    medium_full: Arc<MediumFull>,
    limits: Limits,
    /// The threads; none if writers commit themselves, or after they ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
    background: bool,
}

impl CommitWorker {
    /// A worker without threads, until [`CommitWorker::start`].
    pub(crate) fn new(
        flusher: Arc<Flusher>,
        cache: Arc<WriteCache>,
        segments: Arc<Segments>,
        health: Arc<Health>,
        medium_full: Arc<MediumFull>,
        limits: Limits,
        background: bool,
    ) -> Self {
        CommitWorker {
            flusher,
            cache,
            segments,
            health,
            medium_full,
            limits,
            threads: Mutex::default(),
            background,
        }
    }

    /// Starts the threads, if the disk commits in the background.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        if self.background {
            let started = self
                .spawn("lacuna-commit", Self::commit_when_due)
                .and_then(|()| self.spawn("lacuna-retire", Self::make_checkpoints));
            started.inspect_err(|_| self.stop())?;
            if self.flusher.committer().is_recovering() {
                self.health.signals().wake_worker();
            }
        }
        Ok(())
    }

    fn spawn(self: &Arc<Self>, name: &str, work: fn(&CommitWorker)) -> Result<()> {
        let worker = self.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            let _guard = OnPanic::new(|| {
                worker.health.fail(panic_error());
                worker.health.signals().stop();
            });
            work(&worker);
        });
        let thread = thread.map_err(|e| Error::io("cannot start a background thread of the disk", &e))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        if !threads.is_empty() {
            self.health.signals().stop();
        }
        for thread in threads {
            // A panic there has already printed itself, and the owner closes the disk in any case.
            let _ = thread.join();
        }
    }

    /// Called after a write: starts or awaits a commit if too much is only in memory.
    pub(crate) fn keep_within_limits(&self) -> Result<()> {
        self.health.check()?;
        if self.is_work_due() {
            if !self.background {
                let mut committer = self.flusher.committer();
                committer.commit(CommitScope::Ready)?;
                return committer.maintain();
            }
            self.health.signals().wake_worker();
        }
        while self.background
            && self.cache.dirty_bytes() > self.limits.max_dirty
            && !self.health.signals().is_stopping()
        {
            self.health.check()?;
            if self.medium_full.is_full() {
                // Perhaps no commit finds room: the flush reports that to the writer.
                return self.flusher.flush();
            }
            self.health.signals().wait_for_commit(false);
        }
        self.health.check()
    }

    /// Waits for a commit that ends copy-on-write segments.
    pub(crate) fn wait_for_spare(&self) -> Result<()> {
        if self.background {
            self.health.check()?;
            self.health.signals().wait_for_commit(true);
        } else {
            self.flusher.committer().commit(CommitScope::All)?;
        }
        self.health.check()
    }

    fn is_work_due(&self) -> bool {
        if self.cache.dirty_bytes() > self.limits.commit_at {
            return true;
        }
        if self.segments.count_cow_segments() <= self.limits.cow_segments {
            return false;
        }
        let (whole, discards) = self.segments.ready();
        whole > self.limits.cow_segments || discards > MAX_PENDING_DISCARDS
    }

    /// The work of the thread that commits.
    fn commit_when_due(&self) {
        let (mut quiet_before, mut dirty_age) = (false, DirtyAge::default());
        while let Some(wish) = self.health.signals().next_request(IDLE_INTERVAL) {
            // Idle means two quiet intervals in a row, so that a pausing stream is not split.
            let idle = !wish.commit && quiet_before;
            quiet_before = !wish.commit;
            let is_dirty = self.cache.dirty_bytes() > 0 || self.segments.count_cow_segments() > 0;
            let is_old = dirty_age.note(is_dirty, Instant::now());
            if wish.commit || idle || is_old {
                // The health keeps the error; writers and `close` report it.
                let _ = self.flusher.committer().background_step(idle, is_old, wish.spare);
            }
            self.health.signals().wake_writers();
        }
        self.health.signals().wake_writers();
    }

    /// The work of the thread that makes checkpoints.
    fn make_checkpoints(&self) {
        while self.health.signals().wait_for_checkpoint() {
            // The health keeps the error; writers and `close` report it.
            let _kept = self.flusher.checkpoint();
        }
    }
}

/// Since when a disk has had anything that is only in memory, as its thread saw it.
#[derive(Default)]
struct DirtyAge(Option<Instant>);

impl DirtyAge {
    /// Notes whether there is anything now. Returns whether all of it is to be committed because of
    /// its age, which is then counted anew.
    fn note(&mut self, is_dirty: bool, now: Instant) -> bool {
        let since = self.0.take().filter(|_| is_dirty);
        let is_old = since.is_some_and(|since| now.duration_since(since) >= MAX_DIRTY_AGE);
        self.0 = (is_dirty && !is_old).then(|| since.unwrap_or(now));
        is_old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_counts_from_the_first_dirty_version_and_from_each_commit_of_all() {
        let begin = Instant::now();
        let seconds = |seconds| begin + Duration::from_secs(seconds);
        let mut age = DirtyAge::default();
        assert!(!age.note(false, begin) && !age.note(true, seconds(50)) && !age.note(true, seconds(79)));
        assert!(age.note(true, seconds(80)));
        assert!(!age.note(true, seconds(81)) && !age.note(true, seconds(110)));
        // A flush came between.
        assert!(!age.note(false, seconds(111)) && !age.note(true, seconds(112)));
        assert!(!age.note(true, seconds(141)) && age.note(true, seconds(142)));
    }
}
