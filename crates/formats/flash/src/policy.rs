//! When to purge unasked: after a time, or as soon as so much was deleted (DNEFS, section 5).

use crate::keys::Keys;
use crate::writer::Writer;
use lacuna_contracts::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the thread looks, by the machine's time. What is due is decided by the clock of the
/// disk.
const LOOK: Duration = Duration::from_secs(1);
/// The longest pause after a purge that was refused, by the clock of the disk. The first is as long
/// as [`LOOK`].
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// When to purge unasked. A purge that was cut is finished when the disk is opened, whatever stands
/// here. One that the flash refuses, or for which the log has no room, is tried again as soon as
/// the log takes something, and otherwise after a second, then after pauses of twice the length
/// each, an hour at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The longest that anything deleted stays recoverable while the disk is open, and how long an
    /// acknowledged write stays in memory alone: a purge is due so long after the oldest deletion
    /// that it is for. It begins within a second.
    pub period: Duration,
    /// Deleted keys that are not borne any longer: with one more, a purge is due at once. It begins
    /// within a second.
    pub most_recoverable: u64,
}

impl Default for Policy {
    /// Every 15 minutes.
    fn default() -> Policy {
        Policy { period: Duration::from_secs(15 * 60), most_recoverable: u64::MAX }
    }
}

/// The thread that purges.
pub(crate) struct PurgeThread {
    stopping: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl PurgeThread {
    pub(crate) fn start(writer: Arc<Writer>, keys: Arc<Keys>, policy: Policy) -> Result<PurgeThread> {
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
        // A panic there has ended the disk and printed itself.
        let _ = self.thread.join();
    }
}

/// The time after a refusal in which no purge is tried. On a full log every attempt writes
/// checkpoints, which wears the flash.
struct Pause {
    length: Duration,
    /// By the clock of the disk.
    until: Duration,
    /// [`Writer::progress`] when it began.
    progress: u64,
}

impl Pause {
    /// A pause that begins now, after the one before, if there was one.
    fn after(before: Option<&Pause>, writer: &Writer) -> Pause {
        let length = before.map_or(LOOK, |before| (before.length * 2).min(LONGEST_PAUSE));
        Pause { length, until: writer.now().saturating_add(length), progress: writer.progress() }
    }

    fn lasts(&self, writer: &Writer) -> bool {
        writer.now() < self.until && writer.progress() == self.progress
    }
}

fn run(writer: &Writer, keys: &Keys, policy: Policy, stopping: &(Mutex<bool>, Condvar)) {
    let mut pause: Option<Pause> = None;
    while !is_stopped(stopping, LOOK.min(policy.period)) {
        let by_period = writer.waiting().is_some_and(|waiting| waiting >= policy.period);
        let by_threshold = keys.recoverable().most > policy.most_recoverable;
        let is_paused = pause.as_ref().is_some_and(|pause| pause.lasts(writer));
        if is_paused || !(by_period || by_threshold) {
            continue;
        }
        match writer.forget() {
            Ok(()) => pause = None,
            // A failure ends all writing, and the next call says so.
            Err(_) if !writer.health.is_alive() => return,
            Err(_) => pause = Some(Pause::after(pause.as_ref(), writer)),
        }
    }
}

/// Waits, and says whether to stop.
fn is_stopped(stopping: &(Mutex<bool>, Condvar), look: Duration) -> bool {
    let mut stop = stopping.0.lock();
    if !*stop {
        stopping.1.wait_for(&mut stop, look);
    }
    *stop
}
