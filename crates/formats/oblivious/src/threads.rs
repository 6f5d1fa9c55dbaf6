//! The threads of an open disk: one prepares batches, one loads the leaves of maps that they need,
//! one syncs the parts of the ring, one writes them in place, and one is the paced clock.
//!
//! Invariant: if a thread fails or panics, the disk fails. The work of a thread is a method of the
//! part that it serves.

use crate::batch::prepared_queue::PreparedQueue;
use crate::batch_store::BatchStore;
use crate::durability::Durability;
use crate::leaf_loader::LeafLoader;
use crate::public_level::PublicLevel;
use lacuna_contracts::{Error, OnPanic, Result, panic_error};
use lacuna_levels::PacedClock;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The running threads. Dropping this ends them, after the ended parts are in place, unless the
/// disk has failed.
pub(crate) struct Threads {
    public: Arc<PublicLevel>,
    prepared_queue: Arc<PreparedQueue>,
    durability: Arc<Durability>,
    clock: Option<PacedClock>,
    workers: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts all threads. The clock beats every `interval`, unless that is zero.
    pub(crate) fn start(
        public: &Arc<PublicLevel>,
        ahead: &Arc<PreparedQueue>,
        loader: LeafLoader,
        store: &Arc<BatchStore>,
        durability: &Arc<Durability>,
        interval: Duration,
    ) -> Result<Threads> {
        let mut threads = Threads {
            public: Arc::clone(public),
            prepared_queue: Arc::clone(ahead),
            durability: Arc::clone(durability),
            clock: None,
            workers: Vec::new(),
        };
        durability.set_threads(true);
        let (syncing, destaging, preparing) = (Arc::clone(store), Arc::clone(store), Arc::clone(ahead));
        threads.spawn("lacuna-sync", move || syncing.sync_parts())?;
        threads.spawn("lacuna-cells", move || destaging.apply_parts())?;
        ahead.set_running(true);
        threads.spawn("lacuna-ahead", move || {
            preparing.prepare_batches();
            Ok(())
        })?;
        threads.spawn("lacuna-maps", move || {
            loader.load_leaves();
            Ok(())
        })?;
        if !interval.is_zero() {
            let covering = Arc::clone(public);
            threads.clock = Some(PacedClock::start(interval, move || {
                let _guard = OnPanic::new(|| drop(covering.fail(panic_error())));
                match covering.refresh() {
                    // The next beat tries again.
                    Err(e) if e.kind().is_refusal() => Ok(()),
                    done => done,
                }
            })?);
        }
        Ok(threads)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let public = Arc::clone(&self.public);
        let run = move || {
            let _guard = OnPanic::new(|| drop(public.fail(panic_error())));
            if let Err(e) = work() {
                public.fail(e);
            }
        };
        let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
        // The threads that run already must not wait for this one.
        let failed = |e| self.public.fail(Error::io("cannot start a thread of the disk", &e));
        self.workers.push(spawned.map_err(failed)?);
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
        self.prepared_queue.set_running(false);
        self.durability.set_threads(false);
        for worker in self.workers.drain(..) {
            let _panicked = worker.join();
        }
    }
}
