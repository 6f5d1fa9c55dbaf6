//! The threads of an open disk: one reads ahead the blocks to carry, one loads leaves of hidden
//! maps, one encrypts closed stripes, one writes them, one syncs them, and one is the paced clock.
//! The same threads run whatever levels are open.

use crate::hidden::OpenHiddenLevels;
use crate::place::StripeSeq;
use crate::public_level::PublicLevel;
use crate::stripe::carrier::Carrier;
use crate::stripe::pipeline::{MAX_QUEUED_STRIPES, MAX_QUEUED_SYNCS, Pipeline};
use lacuna_contracts::{Error, Result};
use lacuna_levels::PacedClock;
use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most queued lists of hidden blocks that wait for their leaves to be loaded.
const MAX_WARM_QUEUE: usize = 8;

/// The running threads. Dropping this ends them, after the closed stripes are written.
pub(crate) struct Threads {
    pipeline: Arc<Pipeline>,
    carrier: Arc<Carrier>,
    workers: Vec<JoinHandle<()>>,
    clock: Option<PacedClock>,
}

impl Threads {
    /// Starts the threads of a log with `next` as its next stripe. The clock beats every `cover`;
    /// there is none if that is zero.
    pub(crate) fn start(
        pipeline: &Arc<Pipeline>,
        carrier: &Arc<Carrier>,
        hidden: &Arc<OpenHiddenLevels>,
        public: &Arc<PublicLevel>,
        next: StripeSeq,
        cover: Duration,
    ) -> Result<Threads> {
        let (pipeline, carrier) = (Arc::clone(pipeline), Arc::clone(carrier));
        let (hidden, public) = (Arc::clone(hidden), Arc::clone(public));
        let (to_encrypt, closed) = channel();
        let (to_write, encrypted) = sync_channel(MAX_QUEUED_STRIPES);
        let (to_sync, due) = sync_channel(MAX_QUEUED_SYNCS);
        let (to_warm, found) = sync_channel(MAX_WARM_QUEUE);
        let [encrypting, writing, syncing] = std::array::from_fn(|_| Arc::clone(&pipeline));
        let reading = Arc::clone(&carrier);
        let mut threads = Threads { pipeline, carrier, workers: Vec::new(), clock: None };
        threads.pipeline.send_to_threads(to_encrypt);
        threads.spawn("lacuna-encrypt", move || encrypting.encrypt_stripes(&closed, &to_write))?;
        threads.spawn("lacuna-stripes", move || writing.write_stripes(&encrypted, &to_sync))?;
        threads.spawn("lacuna-sync", move || syncing.sync_stripes(&due))?;
        threads.carrier.start();
        threads.spawn("lacuna-carry", move || reading.read_ahead(next, &to_warm))?;
        threads.spawn("lacuna-maps", move || hidden.warm_carried(&found))?;
        if !cover.is_zero() {
            let beat = move || match public.refresh() {
                // The next beat tries again.
                Err(e) if e.kind().is_refusal() => Ok(()),
                done => done,
            };
            threads.clock = Some(PacedClock::start(cover, beat)?);
        }
        Ok(threads)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
        self.workers.push(spawned.map_err(|e| Error::io("cannot start a thread of the disk", &e))?);
        Ok(())
    }

    /// Stops the paced clock.
    pub(crate) fn end_clock(&mut self) {
        self.clock.take().into_iter().for_each(PacedClock::stop);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end_clock();
        self.pipeline.end();
        self.carrier.end();
        for worker in self.workers.drain(..) {
            let _panicked = worker.join();
        }
    }
}
