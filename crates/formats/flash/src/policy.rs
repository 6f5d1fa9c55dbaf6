//! The purge policy: purges after a period, or when enough was deleted (DNEFS, section 5).

use crate::key_storage::KeyStorage;
use crate::writer::DiskWriter;
use lacuna_contracts::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the thread checks, in real time. The clock of the disk decides whether a purge is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest pause after a refused purge, by the clock of the disk. The first pause is
/// [`CHECK_INTERVAL`].
const MAX_PAUSE: Duration = Duration::from_secs(3600);

/// When to purge without being asked. An interrupted purge is finished when the disk is opened,
/// whatever the policy. If the flash refuses a purge, or the log has no room for it, it is retried
/// as soon as the log takes anything. Otherwise it is retried after a second and then after pauses
/// that double, up to an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgePolicy {
    /// The longest time that deleted data stays recoverable while the disk is open, and that an
    /// acknowledged write stays in memory only. A purge is due this long after the oldest deletion
    /// that it covers, and begins within a second.
    pub period: Duration,
    /// The most deleted keys that are tolerated: with one more, a purge is due at once. It begins
    /// within a second.
    pub max_recoverable: u64,
}

impl Default for PurgePolicy {
    /// Every 15 minutes.
    fn default() -> PurgePolicy {
        PurgePolicy { period: Duration::from_secs(15 * 60), max_recoverable: u64::MAX }
    }
}

/// The thread that purges.
pub(crate) struct PurgeThread {
    stopping: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl PurgeThread {
    pub(crate) fn start(
        writer: Arc<DiskWriter>,
        keys: Arc<KeyStorage>,
        policy: PurgePolicy,
    ) -> Result<PurgeThread> {
        let stopping = Arc::new((Mutex::new(false), Condvar::new()));
        let signal = stopping.clone();
        let thread = std::thread::Builder::new()
            .name("lacuna-purge".into())
            .spawn(move || run(&writer, &keys, policy, &signal))
            .map_err(|e| Error::io("cannot start the thread that purges", &e))?;
        Ok(PurgeThread { stopping, thread })
    }

    pub(crate) fn stop(self) {
        *self.stopping.0.lock() = true;
        self.stopping.1.notify_all();
        // A panic there has ended the disk and printed its message.
        let _ = self.thread.join();
    }
}

/// The time after a refusal during which no purge is tried. On a full log every attempt writes
/// checkpoints, which wears the flash.
struct RetryPause {
    length: Duration,
    /// The end, by the clock of the disk.
    until: Duration,
    /// [`DiskWriter::progress`] at the start.
    progress: u64,
}

impl RetryPause {
    /// A pause that begins now, twice as long as the one before it, if there was one.
    fn after(before: Option<&RetryPause>, writer: &DiskWriter) -> RetryPause {
        let length = before.map_or(CHECK_INTERVAL, |before| (before.length * 2).min(MAX_PAUSE));
        RetryPause { length, until: writer.now().saturating_add(length), progress: writer.progress() }
    }

    fn is_active(&self, writer: &DiskWriter) -> bool {
        writer.now() < self.until && writer.progress() == self.progress
    }
}

fn run(writer: &DiskWriter, keys: &KeyStorage, policy: PurgePolicy, stopping: &(Mutex<bool>, Condvar)) {
    let mut pause: Option<RetryPause> = None;
    while !is_stopped(stopping, CHECK_INTERVAL.min(policy.period)) {
        let by_period = writer.oldest_deletion_age().is_some_and(|waiting| waiting >= policy.period);
        let by_threshold = keys.recoverable().max > policy.max_recoverable;
        let is_paused = pause.as_ref().is_some_and(|pause| pause.is_active(writer));
        if is_paused || !(by_period || by_threshold) {
            continue;
        }
        match writer.purge_if_needed() {
            Ok(()) => pause = None,
            // A failure ends all writing, and the next call reports it.
            Err(_) if !writer.health.is_alive() => return,
            Err(_) => pause = Some(RetryPause::after(pause.as_ref(), writer)),
        }
    }
}

/// Waits, and returns whether to stop.
fn is_stopped(stopping: &(Mutex<bool>, Condvar), look: Duration) -> bool {
    let mut stop = stopping.0.lock();
    if !*stop {
        stopping.1.wait_for(&mut stop, look);
    }
    *stop
}
