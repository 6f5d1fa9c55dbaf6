//! The threads of an open disk: one syncs the parts of the ring and writes them in place, one is the paced clock.

use crate::core::Core;
use lacuna_core::{Error, Result};
use lacuna_levels::{PacedClock, defect};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Parts that may wait to be synced: more than the ring has.
const MOST_PARTS: usize = 8;

/// Dropping it ends them, after the parts that were handed over are in place.
pub(crate) struct Threads {
    core: Arc<Core>,
    clock: Option<PacedClock>,
    homeward: Option<JoinHandle<()>>,
}

/// Fails the disk when its thread panics: nobody shall wait for a thread that is gone.
struct FailOnPanic<'a>(&'a Core);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(defect());
        }
    }
}

impl Core {
    /// A part of the ring ends with batch `seq`: everything is synced, and what is durable then is written in place.
    pub(crate) fn end_part(&self, seq: u64) -> Result<()> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        match &*parts {
            Some(parts) => parts.send(seq).map_err(|_| self.health.refusal()),
            None => self.bring_home(seq),
        }
    }

    /// The sync makes durable as well what was written in place before.
    fn bring_home(&self, seq: u64) -> Result<()> {
        self.store.sync()?;
        self.store.apply_to(seq)
    }

    fn bring_parts_home(&self, parts: &Receiver<u64>) {
        let _guard = FailOnPanic(self);
        let mut next = parts.recv().ok();
        while let Some(seq) = next {
            let mut done = self.bring_home(seq);
            next = parts.try_recv().ok();
            if next.is_none() {
                // Whoever writes may wait for just this.
                done = done.and_then(|()| self.store.sync());
            }
            if let Err(e) = done {
                self.fail(e);
                return;
            }
            next = next.or_else(|| parts.recv().ok());
        }
    }
}

impl Threads {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Threads> {
        let (to_bring, parts) = sync_channel(MOST_PARTS);
        let bringing = Arc::clone(core);
        let spawned = std::thread::Builder::new()
            .name("lacuna-cells".into())
            .spawn(move || bringing.bring_parts_home(&parts));
        let homeward = spawned.map_err(|e| Error::io("cannot start a thread of the disk", &e))?;
        *core.parts.lock().unwrap_or_else(PoisonError::into_inner) = Some(to_bring);
        let mut threads = Threads { core: Arc::clone(core), clock: None, homeward: Some(homeward) };
        let interval = Duration::from_millis(u64::from(core.store.params.plan.cover_millis));
        if !interval.is_zero() {
            let covering = Arc::clone(core);
            threads.clock = Some(PacedClock::start(interval, move || {
                let _guard = FailOnPanic(&covering);
                covering.counters.refreshes.fetch_add(1, Ordering::Relaxed);
                covering.refresh().map(drop)
            })?);
        }
        Ok(threads)
    }

    /// Stops the paced clock.
    pub(crate) fn end_clock(&mut self) {
        drop(self.clock.take());
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end_clock();
        drop(self.core.parts.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(homeward) = self.homeward.take() {
            let _panicked = homeward.join();
        }
    }
}
