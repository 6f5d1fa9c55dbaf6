//! The threads of an open disk: one reads ahead what stripes carry on, one loads leaves of hidden maps, one encrypts closed
//! stripes and writes them, one syncs them, one is the paced clock. The same ones run whatever levels are open.

use crate::core::Core;
use crate::pipeline::MOST_DUE;
use lacuna_core::{Error, OnPanic, Result, defect};
use lacuna_levels::PacedClock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Stripes whose hidden blocks wait for their leaves to be loaded.
const MOST_TO_WARM: usize = 8;

/// Dropping it ends them, after what was closed is written.
pub(crate) struct Threads {
    core: Arc<Core>,
    workers: Vec<JoinHandle<()>>,
    clock: Option<PacedClock>,
}

impl Threads {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Threads> {
        let begin = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
            spawned.map_err(|e| Error::io("cannot start a thread of the disk", &e))
        };
        let mut threads = Threads { core: Arc::clone(core), workers: Vec::new(), clock: None };
        let (writing, syncing) = (Arc::clone(core), Arc::clone(core));
        let (to_encrypt, closed) = channel();
        let (to_sync, due) = sync_channel(MOST_DUE);
        core.attach(to_encrypt);
        let write = move || writing.write_stripes(closed, to_sync);
        threads.workers.push(begin("lacuna-stripes", Box::new(write))?);
        threads.workers.push(begin("lacuna-sync", Box::new(move || syncing.sync_stripes(due)))?);
        let (reading, warming) = (Arc::clone(core), Arc::clone(core));
        let (to_warm, found) = sync_channel(MOST_TO_WARM);
        let first = core.log.written() + 1;
        core.carrier.start();
        threads.workers.push(begin("lacuna-carry", Box::new(move || reading.read_ahead(first, to_warm)))?);
        threads.workers.push(begin("lacuna-maps", Box::new(move || warming.warm_hidden(found)))?);
        let interval = Duration::from_millis(u64::from(core.log.params.cover_millis));
        if !interval.is_zero() {
            let covering = Arc::clone(core);
            let beat = move || {
                let _guard = OnPanic::new(|| drop(covering.fail(defect())));
                covering.counters.refreshes.fetch_add(1, Ordering::Relaxed);
                covering.refresh().map(drop)
            };
            threads.clock = Some(PacedClock::start(interval, beat)?);
        }
        Ok(threads)
    }
}

impl Threads {
    /// Stops the paced clock.
    pub(crate) fn end_clock(&mut self) {
        self.clock.take().into_iter().for_each(PacedClock::end);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end_clock();
        self.core.end();
        self.core.carrier.end();
        for worker in self.workers.drain(..) {
            let _panicked = worker.join();
        }
    }
}
