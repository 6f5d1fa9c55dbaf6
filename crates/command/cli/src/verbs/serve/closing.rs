//! The cover of a closing: the server of a disk with levels writes it while this process closes
//! what is open of the disk. A server of NBD writes it when it ends, for the last requests of its
//! clients.
//!
//! Deniability contract: it is asked for before anything is closed, whatever is mounted, and level
//! 0 is closed after it. What hidden levels have pending then is lost, unless the user chose to
//! wait; a terminal alone hears of that.

use crate::terminal::console::{self, Console};
use crate::terminal::working::{self, Looking};
use crate::verbs::serve::disk_jobs::GIVE_UP;
use crate::verbs::status;
use lacuna_daemon::{Conversation, Heard, Job, Peer, Registry, ServerStatus};
use lacuna_storage::{Error, Kind, OpenDisk, Pace, Result, human};
use parking_lot::Mutex;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often it is looked how much is pending, and what is to be given up.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the closing of a level goes on at least before it is given up. One that is in use is
/// refused sooner, and stays as it is.
const GRACE: Duration = Duration::from_secs(1);
/// How long requests that are in progress when a server stops have before the cover of the closing,
/// whatever levels there are.
const REQUESTS_END: Duration = Duration::from_millis(250);
/// How long level 0 is kept open when the cover is written, however many deeper levels are mounted:
/// all of them are given up at once, and are unmounted meanwhile. One in whose file system another
/// is mounted is closed after that; there is time for three in a row.
const SETTLE: Duration = Duration::from_secs(3);

/// Whether closing waits for what hidden levels have pending.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    waits: bool,
    console: Console,
}

impl Patience {
    /// As the options say; without any, closing waits on a terminal, where a person sees for what.
    pub(crate) fn new(wait: bool, now: bool, console: Console) -> Self {
        Patience { waits: wait || (!now && console::is_watched()), console }
    }

    /// Says on a terminal what closing waits for, and how to lose it instead.
    fn tell(self, pending: u64) {
        if pending > 0 && console::is_watched() {
            self.console.note(&format!(
                "{} of hidden levels are not on the medium, and closing waits for them; INT ends that, and `lacuna close --now` \
                 closes without them: they are lost then",
                human(pending)
            ));
        }
    }
}

/// Writes the cover of the closing for the requests that are in progress when a server of NBD
/// stops; those that wait for more cover are refused. If a signal stopped it (`signalled`), a
/// terminal has them waited for first, until `ended_again`.
///
/// Deniability contract: otherwise a hidden request would wait for beats, or for a write of level 0
/// that does not come any more. The server would end later than with level 0 alone, and leave more
/// on the medium.
pub(crate) fn cover_last_requests(
    disk: &Arc<OpenDisk>,
    signalled: bool,
    ended_again: impl Fn() -> bool,
    console: Console,
) {
    if !disk.has_levels() {
        return;
    }
    // What waits for nothing but the medium is done first: closing writes no second cover, so what
    // came after this one would be lost.
    thread::sleep(REQUESTS_END);
    // What is wrong with the disk, closing it says.
    let _told = working::show(console, "closing: writing cover", |_| disk.cover_closing(Pace::AtOnce));
    if signalled {
        wait_on_terminal(disk, ended_again, console);
    }
    (1..disk.open_levels() as u64).for_each(|level| disk.give_up(level, true));
}

/// Waits on a terminal, when a signal ends a server there, for what hidden levels have pending;
/// another signal (`ended_again`) loses it. Without cover of its own, which nobody gives any more,
/// that is lost in any case.
fn wait_on_terminal(disk: &Arc<OpenDisk>, ended_again: impl Fn() -> bool, console: Console) {
    let levels = disk.levels();
    let left = || {
        let waiting = levels.iter().flat_map(|level| level.status().items);
        waiting.filter(|item| item.name == "waiting_for_cover").map(|item| item.value).sum::<u64>()
    };
    if !console::is_watched() || working::is_uncovered(&levels) || left() == 0 {
        return;
    }
    console.note(&format!(
        "{} of hidden levels are not on the medium: this waits for them. INT once more closes without them: they are lost then",
        human(left())
    ));
    // Closing the disk says what is wrong with it.
    while left() > 0 && !ended_again() && disk.levels()[0].flush().is_ok() {
        thread::sleep(LOOK_EVERY);
    }
}

/// The hidden levels that are being closed, each since when.
type ClosingLevels = Arc<Mutex<Vec<(u64, Instant)>>>;

/// The work of a server that covers a closing, until everything is closed. Dropping it lets the
/// server go.
pub(crate) struct CoverSession {
    begun: Instant,
    /// Tells when the cover was written; ends when it cannot be: closing says why. None once it was
    /// waited for.
    written: Option<Receiver<Instant>>,
    /// How long what is closed with it takes to be given up then.
    settle: Duration,
    closing: ClosingLevels,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CoverSession {
    /// Of the disk whose level 0 is mounted there. `hidden` are the mount points of its other
    /// levels.
    pub(crate) fn of_mounted(level_0: &Path, hidden: Vec<PathBuf>, patience: Patience) -> Result<Self> {
        let talk = Registry::open(None)?.by_mountpoint(level_0)?.begin(&Job::Cover)?;
        let pending = move || {
            // What does not answer is closed.
            patience.tell(hidden.iter().map(|at| pending(&status::at_mountpoint(at))).sum());
        };
        Self::begin(talk, patience, SETTLE, pending)
    }

    fn begin(
        mut talk: Conversation,
        patience: Patience,
        settle: Duration,
        tell: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let ((writing, written), (end, ended)) = (channel(), channel::<()>());
        let closing = ClosingLevels::default();
        let given_up = Arc::clone(&closing);
        let work = move || {
            let covered = matches!(talk.hear(), Ok(Heard::Message(_)));
            if covered {
                // Who closes without it has left.
                let _left = writing.send(Instant::now());
            }
            drop(writing);
            if covered && patience.waits {
                tell();
            }
            while covered && ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                if !patience.waits {
                    give_up(&mut talk, &given_up);
                }
            }
        };
        let thread = thread::Builder::new().name("lacuna-closing".into()).spawn(work);
        let thread = thread.map_err(|e| Error::io("cannot cover the closing", &e))?;
        let begun = Instant::now();
        Ok(CoverSession {
            begun,
            written: Some(written),
            settle,
            closing,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// A hidden level is being closed. What waits for cover when that is written is given up,
    /// unless it is waited for.
    pub(crate) fn closing(&self, level: u64) -> Closing {
        let closing = (level, Instant::now());
        self.closing.lock().push(closing);
        Closing { closing, of: Arc::clone(&self.closing) }
    }

    /// Waits until the cover is written, and for as long on every disk as deeper levels take to be
    /// given up then (deniability contract). A second call has nothing left to wait for.
    pub(crate) fn wait(&mut self, console: Console) {
        let Some(written) = self.written.take() else { return };
        working::show(console, "closing: writing cover", |_| {
            // Without cover nothing is given up.
            let left = written.recv().map_or(Duration::ZERO, |written| {
                let settled = written.max(self.begun + GRACE) + self.settle;
                settled.saturating_duration_since(Instant::now())
            });
            thread::sleep(left);
        });
    }
}

/// A hidden level that is being closed. Dropping it says that it is closed, or stays open: it is
/// not given up any more.
pub(crate) struct Closing {
    closing: (u64, Instant),
    of: ClosingLevels,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.of.lock().retain(|other| *other != self.closing);
    }
}

/// Says of the levels that have been closing for a while that nothing is to wait any more.
fn give_up(talk: &mut Conversation, closing: &Mutex<Vec<(u64, Instant)>>) {
    closing.lock().retain(|(level, since)| {
        if since.elapsed() < GRACE {
            return true;
        }
        // A server that hears nothing any more has ended, or is about to.
        let _gone = talk.say(&json!({ GIVE_UP: level }));
        false
    });
}

impl Drop for CoverSession {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Closes what is served without a mount point.
pub(crate) fn close_served(peer: &Peer, patience: Patience) -> Result<()> {
    let cover = cover_served(peer, patience);
    working::show(patience.console, "closing what is served", |_| peer.close())?;
    drop(cover);
    Ok(())
}

/// The cover of the disk that is served, written, and what is pending with it if that is waited
/// for; with the hidden levels, which are being closed until the server is. None of a disk without
/// levels, nor where the server does not write it: closing it says why.
fn cover_served(peer: &Peer, patience: Patience) -> Option<(CoverSession, Vec<Closing>)> {
    let account = match peer.status() {
        Ok(account) if has_levels(&account) => account,
        _ => return None,
    };
    let talk = peer.begin(&Job::Cover);
    match talk.and_then(|talk| CoverSession::begin(talk, patience, 2 * LOOK_EVERY, || ())) {
        Ok(mut cover) => {
            // Requests of clients may wait for cover, until the server ends.
            let levels = account.counters().filter(|(name, level)| *name == "level" && *level > 0);
            let closing: Vec<Closing> = levels.map(|(_, level)| cover.closing(level)).collect();
            cover.wait(patience.console);
            if patience.waits {
                wait_for_pending(peer, patience);
            }
            Some((cover, closing))
        }
        Err(_) => None,
    }
}

fn wait_for_pending(peer: &Peer, patience: Patience) {
    // Closing one that does not answer says what is wrong.
    patience.tell(pending(&peer.status()));
    working::show(patience.console, "closing what is served", |working| {
        let (working, looked) = (working.clone(), peer.clone());
        let _looking = Looking::start(move || {
            if let Ok(account) = looked.status() {
                let stage = working::unfinished(&account.counters());
                working.tell(stage.within("closing", "what is served"));
            }
        });
        let flush = || peer.begin(&Job::Flush)?.hear().map(drop);
        wait_while(|| pending(&peer.status()), flush);
    });
}

/// Waits while something is `left`, for as long as the disk takes what is written: of one that
/// failed nothing gets any less, and closing it says why.
fn wait_while(left: impl Fn() -> u64, flush: impl Fn() -> Result<()>) {
    while left() > 0 {
        match flush() {
            // One that is busy with others, or was stopped, did not say that it failed.
            Err(e) if !matches!(e.kind(), Kind::Busy | Kind::TimedOut) => return,
            _ => thread::sleep(LOOK_EVERY),
        }
    }
}

/// Whether it is a disk with levels, however many are open.
pub(crate) fn has_levels(account: &ServerStatus) -> bool {
    account.counters().any(|(name, _)| name == "cover_interval")
}

/// Bytes that wait for cover; none where the server does not answer.
fn pending(account: &Result<ServerStatus>) -> u64 {
    let counters = account.iter().flat_map(ServerStatus::counters);
    counters.filter(|(name, _)| *name == "waiting_for_cover").map(|(_, bytes)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Flushes until `fails`. Gives how often it was asked.
    fn flushes(left: u64, busy: u64, fails: u64) -> u64 {
        let asked = Cell::new(0);
        let flush = || {
            asked.set(asked.get() + 1);
            match asked.get() {
                at if at <= busy => Err(Error::new(Kind::Busy, "the server cannot take more work")),
                at if at >= fails => Err(Error::new(Kind::FailStop, "the disk has failed")),
                _ => Ok(()),
            }
        };
        wait_while(|| left.saturating_sub(asked.get()), flush);
        asked.get()
    }

    #[test]
    fn nothing_is_waited_for_on_a_disk_that_failed() {
        // Nothing left, all of it written, a disk that had failed before, and one that fails
        // meanwhile.
        let forever = u64::MAX;
        for (left, busy, fails, asked) in
            [(0, 0, forever, 0), (3, 1, forever, 3), (forever, 0, 1, 1), (forever, 2, 4, 4)]
        {
            assert_eq!(flushes(left, busy, fails), asked, "{left} {busy} {fails}");
        }
    }

    #[test]
    fn levels_that_are_closed_at_once_are_given_up_each_for_itself() {
        let levels = [(1, Instant::now()), (2, Instant::now())];
        let all = ClosingLevels::default();
        all.lock().extend(levels);
        let [one, two] = levels.map(|closing| Closing { closing, of: Arc::clone(&all) });
        // It was closed, or refused to be, or its thread panicked.
        drop(two);
        assert_eq!(*all.lock(), levels[..1]);
        drop(one);
        assert!(all.lock().is_empty());
    }

    #[test]
    fn cover_is_waited_for_once() {
        let (writing, written) = channel();
        writing.send(Instant::now()).unwrap();
        let settle = Duration::from_millis(200);
        let (closing, end, thread) = (ClosingLevels::default(), None, None);
        let begun = Instant::now().checked_sub(GRACE).unwrap();
        let mut cover = CoverSession { begun, written: Some(written), settle, closing, end, thread };
        let start = Instant::now();
        cover.wait(Console::new(true, false));
        assert!(start.elapsed() >= settle / 2);
        let start = Instant::now();
        cover.wait(Console::new(true, false));
        assert!(start.elapsed() < settle / 2);
    }
}
