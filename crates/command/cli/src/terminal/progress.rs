//! Shows progress on the terminal during work that takes longer than a second: the work, the time
//! and the remaining amount.
//!
//! Prints nothing with `--quiet`, nor if standard error is not a terminal. Deniability contract:
//! the work may concern hidden data, and a log persists.

use crate::terminal::console::Console;
use lacuna_daemon::Counters;
use lacuna_storage::{ByteDisk, Disk, human_size, printable};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shorter work is not shown.
const SHOW_AFTER: Duration = Duration::from_secs(1);
/// Interval between redraws of the line.
const REDRAW: Duration = Duration::from_millis(250);
/// Interval between queries of the remaining amount.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How to finish sooner if the disk writes cover by itself.
const SOONER: &str = "to finish sooner, write to level 0: hidden data is saved beside it";
/// How to finish if it writes none.
const ONLY: &str = "write to level 0: hidden data is saved only beside it";

/// The current work, which may change over time.
#[derive(Clone, Default)]
pub(crate) struct ProgressLine(Arc<Mutex<ProgressState>>);

#[derive(Default)]
struct ProgressState {
    step: ProgressStep,
    remaining: Option<RemainingWork>,
}

/// A part of the work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProgressStep {
    /// A description of the work.
    pub what: String,
    /// The remaining bytes, if known.
    pub remaining: Option<u64>,
    /// The object of the work, and a hint to the user; may be empty.
    pub detail: String,
}

impl ProgressStep {
    /// Work of unknown amount.
    pub(crate) fn of(what: impl Into<String>) -> Self {
        ProgressStep { what: what.into(), ..ProgressStep::default() }
    }

    /// Marks the stage as a part of the larger work `whole` on `object`. The name of the object
    /// comes last: it may be long, and the screen cuts off the line.
    pub(crate) fn within(self, whole: &str, object: &str) -> Self {
        let what = if self.what.is_empty() { whole.to_owned() } else { format!("{whole}: {}", self.what) };
        let aside =
            if self.detail.is_empty() { object.to_owned() } else { format!("{}; {object}", self.detail) };
        ProgressStep { what, detail: aside, ..self }
    }
}

/// The remaining amount, now and when it was first known.
struct RemainingWork {
    first: (Instant, u64),
    now: (Instant, u64),
}

impl ProgressLine {
    /// Sets the current stage.
    pub(crate) fn set_step(&self, stage: ProgressStep) {
        self.set_step_at(stage, Instant::now());
    }

    fn set_step_at(&self, stage: ProgressStep, now: Instant) {
        let mut work = self.0.lock();
        let before =
            work.remaining.take().filter(|_| work.step.what == stage.what).map(|before| before.first);
        work.remaining = stage.remaining.map(|left| {
            // The amount grew: the measured speed belongs to other work.
            let first = before.filter(|(_, first)| *first >= left).unwrap_or((now, left));
            RemainingWork { first, now: (now, left) }
        });
        work.step = stage;
    }

    fn to_text(&self) -> String {
        let work = self.0.lock();
        let mut words = work.step.what.clone();
        if let Some(left) = work.remaining.as_ref().filter(|left| left.now.1 > 0) {
            let _ = write!(words, ", {} left", human_size(left.now.1));
            if let Some(seconds) = left.seconds() {
                let _ = write!(words, ", about {}", duration(seconds));
            }
        }
        if !work.step.detail.is_empty() {
            let _ = write!(words, " ({})", work.step.detail);
        }
        // Names of files, and the words of servers of other users, are among them.
        printable(&words).into_owned()
    }
}

impl RemainingWork {
    /// Estimated remaining time at the average speed so far.
    fn seconds(&self) -> Option<u64> {
        let took = self.now.0.saturating_duration_since(self.first.0).as_secs_f64();
        let done = self.first.1.checked_sub(self.now.1).filter(|done| *done > 0)?;
        Some((took * self.now.1 as f64 / done as f64).ceil() as u64)
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..=99 => format!("{seconds} s"),
        100..=5999 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3600)),
    }
}

/// Runs `work`, and shows it on a terminal if it takes longer than [`SHOW_AFTER`].
pub(crate) fn show<R>(console: Console, what: &str, work: impl FnOnce(&ProgressLine) -> R) -> R {
    let working = ProgressLine::default();
    working.set_step(ProgressStep::of(what));
    if !console.can_draw() {
        return work(&working);
    }
    thread::scope(|scope| {
        let (done, waiting) = channel::<()>();
        let line = working.clone();
        // If no thread can be started, there is no progress line, which is optional.
        let _ = thread::Builder::new().spawn_scoped(scope, move || {
            if waiting.recv_timeout(SHOW_AFTER) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let spinner = console.spinner().with_elapsed(SHOW_AFTER);
            if spinner.is_hidden() {
                // A terminal without cursor control.
                return console.note(&format!("still working: {}", line.to_text()));
            }
            loop {
                spinner.set_message(line.to_text());
                spinner.tick();
                if waiting.recv_timeout(REDRAW) != Err(RecvTimeoutError::Timeout) {
                    return spinner.finish_and_clear();
                }
            }
        });
        let result = work(&working);
        drop(done);
        result
    })
}

/// Calls a function every second in a thread of its own, until this is dropped. Dropping it waits
/// for the call that is running.
pub(crate) struct Poller(Option<(Sender<()>, JoinHandle<()>)>);

impl Poller {
    /// Starts the thread, which calls `look` at once.
    pub(crate) fn start(mut look: impl FnMut() + Send + 'static) -> Self {
        let (end, ended) = channel();
        let looks = move || {
            loop {
                look();
                if ended.recv_timeout(POLL_INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let started = thread::Builder::new().name("lacuna-progress".into()).spawn(looks);
        Poller(started.ok().map(|thread| (end, thread)))
    }
}

impl Drop for Poller {
    /// Waits for the last call: it may hold an object that is about to be closed.
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            let _ended = thread.join();
        }
    }
}

/// The remaining work, according to these counters of a disk or its levels, until all data is on
/// the medium.
pub(crate) fn remaining_work<'a>(items: &(impl Iterator<Item = (&'a str, u64)> + Clone)) -> ProgressStep {
    let sum = |name: &str| {
        let found = items.clone().filter(|(item, _)| *item == name).map(|(_, value)| value);
        found.reduce(u64::saturating_add)
    };
    let paced = sum("cover_interval").is_some_and(|interval| interval > 0);
    match sum("waiting_for_cover").filter(|bytes| *bytes > 0) {
        Some(hidden) => ProgressStep {
            what: "waiting for cover".to_owned(),
            remaining: Some(hidden),
            detail: if paced { SOONER } else { ONLY }.to_owned(),
        },
        None => ProgressStep { remaining: sum("dirty"), ..ProgressStep::of("making written data durable") },
    }
}

/// Whether the disk with these levels writes no cover by itself.
pub(crate) fn writes_no_cover(levels: &[Arc<dyn Disk>]) -> bool {
    let items = levels.first().map(|level| level.status().items).unwrap_or_default();
    items.iter().any(|item| item.name == "cover_interval" && item.value == 0)
}

/// [`remaining_work`] for a disk that is open in this process, with these levels.
pub(crate) fn remaining_work_of_levels(levels: &[Arc<dyn Disk>]) -> ProgressStep {
    let items: Vec<_> = levels.iter().flat_map(|level| level.status().items).collect();
    remaining_work(&items.iter().map(|item| (item.name, item.value)))
}

/// Returns a query of the bytes that still have to be written to the medium of a disk; with
/// `secret` it reports none, so that the reader cannot learn of hidden data. It does not block on a
/// stuck disk.
pub(crate) fn remaining_bytes(levels: Vec<Arc<dyn Disk>>, secret: bool) -> impl FnMut() -> Option<u64> {
    let counters = Counters::of(levels.into_iter().map(ByteDisk::new).collect());
    move || {
        let items = if secret { Vec::new() } else { counters.now() };
        remaining_work(&items.iter().map(|item| (item.name, item.value))).remaining
    }
}

/// The counters in a server's answer.
pub(crate) fn counters(items: &Value) -> impl Iterator<Item = (&str, u64)> + Clone {
    let items = items.as_array().map_or(&[][..], Vec::as_slice);
    items.iter().filter_map(|item| Some((item["name"].as_str()?, item["value"].as_u64()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_is_estimated_from_the_done_work() {
        let (working, start) = (ProgressLine::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for (mib, seconds, words) in [
            (8, 0, "closing, 8 MiB left (hint)"),
            (6, 10, "closing, 6 MiB left, about 30 s (hint)"),
            (1, 700, "closing, 1 MiB left, about 2 min (hint)"),
            (9, 701, "closing, 9 MiB left (hint)"),
            (0, 702, "closing (hint)"),
        ] {
            let stage = ProgressStep {
                remaining: Some(mib << 20),
                detail: "hint".into(),
                ..ProgressStep::of("closing")
            };
            working.set_step_at(stage, at(seconds));
            assert_eq!(working.to_text(), words);
        }
        working.set_step_at(ProgressStep::of("making ext4").within("opening", "d\u{1b}.img"), at(703));
        assert_eq!(working.to_text(), "opening: making ext4 (d\\u{1b}.img)");
        assert_eq!(
            (duration(99), duration(101), duration(7201)),
            ("99 s".into(), "2 min".into(), "3 h".into())
        );
    }

    #[test]
    fn only_hidden_data_waits_for_cover() {
        let telling = ["hidden", "level", "cover"];
        let sealed = [("segments", 5), ("dirty", 4096)];
        // As on a disk with levels while only level 0 is open, or without pending hidden data.
        let public = [("level", 0), ("cover_interval", 1000), ("data", 7)];
        let idle = [("level", 1), ("cover_interval", 1000), ("waiting_for_cover", 0)];
        for items in [&sealed[..], &public, &idle, &[]] {
            let stage = remaining_work(&items.iter().copied());
            let words = format!("{} {}", stage.what, stage.detail);
            assert!(!telling.iter().any(|word| words.contains(word)), "{words}");
            assert_eq!(stage.remaining, (items == sealed).then_some(4096));
        }
        let hidden = |interval| [("cover_interval", interval), ("waiting_for_cover", 8192)];
        let paced = remaining_work(&hidden(1000).into_iter());
        assert!(paced.what.contains("cover") && paced.detail == SOONER && paced.remaining == Some(8192));
        assert_eq!(remaining_work(&hidden(0).into_iter()).detail, ONLY);
    }
}
