//! The threads of an open disk: one prepares batches, one loads the leaves of maps that these need, one syncs the parts of the
//! ring, one writes them in place, one is the paced clock.
//!
//! Invariant: once a part has ended, nobody need do anything for it to become durable and to go in place; the next sync makes it
//! durable there, which a batch that is going to say so waits for.
//! The exceptions are a disk that has failed, and parts that were there when the disk was opened: those wait for the next.

use crate::core::Core;
use crate::progress::Progress;
use lacuna_core::{Error, OnPanic, Result, defect};
use lacuna_levels::PacedClock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// Dropping it ends them, after the parts that have ended are in place, unless the disk has failed.
pub(crate) struct Threads {
    core: Arc<Core>,
    clock: Option<PacedClock>,
    destagers: Vec<JoinHandle<()>>,
}

impl Core {
    /// A part of the ring ends with batch `seq`: everything is synced, and what is durable then is written in place. That
    /// becomes durable with the next sync.
    pub(crate) fn end_part(&self, seq: u64) -> Result<()> {
        if self.store.progress().has_threads() {
            self.store.wake_all();
            return Ok(());
        }
        self.store.sync()?;
        self.store.apply_to(seq)
    }

    /// What the thread that syncs does, while the next part is being written and the one before brought in place.
    fn sync_parts(&self) -> Result<()> {
        let part = self.store.params.part();
        loop {
            let at_end =
                |progress: &Progress| !progress.has_threads() && progress.due_in_place(part).is_none();
            self.store.wait(&self.health, None, |progress| progress.wants_sync(part) || at_end(progress))?;
            // A flush may have done it meanwhile.
            let progress = *self.store.progress();
            if progress.wants_sync(part) {
                self.store.sync()?;
            } else if at_end(&progress) {
                return Ok(());
            }
        }
    }

    /// What the thread that writes in place does.
    fn apply_parts(&self) -> Result<()> {
        let part = self.store.params.part();
        loop {
            let at_end = |progress: &Progress| !progress.has_threads() && !progress.has_ended(part);
            self.store.wait(&self.health, None, |progress| {
                progress.due_in_place(part).is_some() || at_end(progress)
            })?;
            let progress = *self.store.progress();
            if let Some(end) = progress.due_in_place(part) {
                self.store.apply_to(end)?;
            } else if at_end(&progress) {
                return Ok(());
            }
        }
    }

    /// Runs what a thread does; the disk fails with it.
    fn run(&self, work: impl Fn(&Core) -> Result<()>) {
        let _guard = OnPanic::new(|| drop(self.fail(defect())));
        if let Err(e) = work(self) {
            self.fail(e);
        }
    }
}

impl Threads {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Threads> {
        core.store.set_threads(true);
        let mut threads = Threads { core: Arc::clone(core), clock: None, destagers: Vec::new() };
        threads.spawn("lacuna-sync", Core::sync_parts)?;
        threads.spawn("lacuna-cells", Core::apply_parts)?;
        core.ahead.set_running(true);
        threads.spawn("lacuna-ahead", Core::prepare_ahead)?;
        threads.spawn("lacuna-maps", Core::warm_ahead)?;
        let interval = Duration::from_millis(u64::from(core.store.params.plan.cover_millis));
        if !interval.is_zero() {
            let covering = Arc::clone(core);
            threads.clock = Some(PacedClock::start(interval, move || {
                let _guard = OnPanic::new(|| drop(covering.fail(defect())));
                covering.counters.refreshes.fetch_add(1, Ordering::Relaxed);
                covering.refresh().map(drop)
            })?);
        }
        Ok(threads)
    }

    fn spawn(&mut self, name: &str, work: fn(&Core) -> Result<()>) -> Result<()> {
        let core = Arc::clone(&self.core);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || core.run(work));
        // The other one must not wait for this one.
        let failed = |e| self.core.fail(Error::io("cannot start a thread of the disk", &e));
        let thread = spawned.map_err(failed)?;
        self.destagers.push(thread);
        Ok(())
    }

    /// Stops the paced clock.
    pub(crate) fn end_clock(&mut self) {
        drop(self.clock.take());
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end_clock();
        self.core.ahead.set_running(false);
        self.core.store.set_threads(false);
        for thread in self.destagers.drain(..) {
            let _panicked = thread.join();
        }
    }
}
