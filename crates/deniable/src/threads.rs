//! The threads of an open disk: one writes closed stripes, one is the paced clock.
//!
//! Deniability contract: the clock beats at fixed times from the opening of the disk, whatever else happens; a beat that
//! comes late is not skipped.

use crate::core::Core;
use lacuna_core::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Dropping it ends them, after what was closed is written.
pub(crate) struct Threads {
    core: Arc<Core>,
    writer: Option<JoinHandle<()>>,
    clock: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Threads {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Threads> {
        let begin = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
            spawned.map_err(|e| Error::io("cannot start a thread of the disk", &e))
        };
        let writing = Arc::clone(core);
        let writer = begin("lacuna-stripes", Box::new(move || writing.write_stripes()))?;
        let mut threads = Threads { core: Arc::clone(core), writer: Some(writer), clock: None };
        let interval = Duration::from_millis(u64::from(core.log.params.cover_millis));
        if !interval.is_zero() {
            let (end, ended) = channel();
            let covering = Arc::clone(core);
            let beat = move || {
                let mut next = Instant::now() + interval;
                loop {
                    let left = next.saturating_duration_since(Instant::now());
                    if ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                    covering.counters.refreshes.fetch_add(1, Ordering::Relaxed);
                    if covering.refresh().is_err() {
                        return;
                    }
                    next += interval;
                }
            };
            threads.clock = Some((end, begin("lacuna-cover", Box::new(beat))?));
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some((end, clock)) = self.clock.take() {
            drop(end);
            let _panicked = clock.join();
        }
        self.core.end();
        if let Some(writer) = self.writer.take() {
            let _panicked = writer.join();
        }
    }
}
