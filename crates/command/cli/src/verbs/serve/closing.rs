//! The cover of a closing. The server of a disk with levels writes it while this process closes the
//! disk's mounts and servers. An NBD server writes it when it ends, for the last requests of its
//! clients.
//!
//! Deniability contract: the cover is requested before anything is closed, regardless of the
//! mounted levels, and level 0 is closed after it. Data of hidden levels that is still pending then
//! is lost, unless the user chose to wait; this is shown only on a terminal.

use crate::terminal::console::{self, Console};
use crate::terminal::progress::{self, Poller};
use crate::verbs::open_instances::OpenMount;
use crate::verbs::serve::clients;
use crate::verbs::serve::disk_jobs::GIVE_UP;
use crate::verbs::serve::settling::{GRACE, SETTLE};
use lacuna_daemon::{Condition, Job, JobClient, JobReply, Peer, ServerStatus};
use lacuna_storage::{Error, Kind, OpenDisk, Pace, Result, human_size};
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The counter of a hidden level that is mounted while level 0 is not.
pub(crate) const MOUNTED_ALONE: &str = "mounted_alone";

/// Interval between checks of pending data, and of levels to give up.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time for requests in progress when a server stops, before the cover of the closing; the same for
/// any number of levels.
const REQUESTS_END: Duration = Duration::from_millis(250);

/// Whether closing waits for pending data of hidden levels.
#[derive(Clone, Copy)]
pub(crate) struct PendingPolicy {
    waits_for_pending: bool,
    console: Console,
}

impl PendingPolicy {
    /// As the options say; by default, closing waits on a terminal, where it prints a note.
    pub(crate) fn new(wait: bool, now: bool, console: Console) -> Self {
        PendingPolicy { waits_for_pending: wait || (!now && console::is_terminal()), console }
    }

    /// The same without bars and spinners.
    pub(crate) fn without_drawing(self) -> Self {
        PendingPolicy { console: self.console.without_drawing(), ..self }
    }

    /// Prints on a terminal that closing waits, and how to drop the data instead.
    fn note_pending(self, pending: u64) {
        if pending > 0 && console::is_terminal() {
            self.console.note(&format!(
                "{} of hidden levels are not on the medium, and closing waits for them; INT ends that, and `lacuna close --now` \
                 closes without them: they are lost then",
                human_size(pending)
            ));
        }
    }
}

/// Writes the cover of the closing for requests in progress when an NBD server stops; then requests
/// that wait for more cover are refused. If a signal stopped it (`signalled`), it first waits for
/// them on a terminal, until `ended_again`.
///
/// Deniability contract: otherwise a hidden request would wait for the disk's own cover, or for a
/// write of level 0 that does not come any more. The server would end later than with level 0
/// alone, and write more to the medium.
pub(crate) fn cover_last_requests(
    disk: &Arc<OpenDisk>,
    signalled: bool,
    ended_again: impl Fn() -> bool,
    console: Console,
) {
    if !disk.has_levels() {
        return;
    }
    // Requests that wait only for the medium finish first: closing writes no second cover, so their
    // data would be lost after this one.
    thread::sleep(REQUESTS_END);
    // Closing the disk reports the same failure.
    let _told = progress::show(console, "closing: writing cover", |_| disk.cover_closing(Pace::Immediate));
    if signalled {
        wait_on_terminal(disk, ended_again, console);
    }
    (1..disk.open_level_count() as u64).for_each(|level| disk.give_up(level, true));
}

/// After a signal on a terminal, waits for pending data of hidden levels; a second signal
/// (`ended_again`) drops it. On a disk that writes no cover by itself, the data is dropped in any
/// case, because no client writes any more.
fn wait_on_terminal(disk: &Arc<OpenDisk>, ended_again: impl Fn() -> bool, console: Console) {
    let levels = disk.levels();
    let left = || {
        let waiting = levels.iter().flat_map(|level| level.status().items);
        waiting.filter(|item| item.name == "waiting_for_cover").map(|item| item.value).sum::<u64>()
    };
    if !console::is_terminal() || progress::writes_no_cover(&levels) || left() == 0 {
        return;
    }
    console.note(&format!(
        "{} of hidden levels are not on the medium: this waits for them. INT once more closes without them: they are lost then",
        human_size(left())
    ));
    // Closing the disk reports a failed flush.
    while left() > 0 && !ended_again() && disk.levels()[0].flush().is_ok() {
        thread::sleep(POLL_INTERVAL);
    }
}

/// The hidden levels that are being closed, each with the time of its start.
type ClosingLevels = Arc<Mutex<Vec<(u64, Instant)>>>;

/// A job that covers a closing, until everything is closed. Dropping this ends the job.
pub(crate) struct CoverSession {
    begun: Instant,
    /// Receives the time when the cover was written; disconnected if it cannot be written, which
    /// closing reports. `None` after a wait.
    written: Option<Receiver<Instant>>,
    /// How long a mounted level 0 stays open after the cover, while other levels are given up.
    settle: Duration,
    closing: ClosingLevels,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CoverSession {
    /// The session of the disk with this lowest mounted level. `hidden`: its hidden levels.
    pub(crate) fn of_mounted(
        lowest: &OpenMount,
        hidden: Vec<OpenMount>,
        patience: PendingPolicy,
    ) -> Result<Self> {
        let talk = lowest.server()?.begin(&Job::Cover)?;
        let pending = move || {
            // A server that does not answer counts as closed.
            let statuses: Vec<Result<ServerStatus>> = hidden.iter().map(OpenMount::status).collect();
            patience.note_pending(pending_bytes(&statuses));
        };
        Self::begin(talk, patience, SETTLE, pending)
    }

    fn begin(
        mut talk: JobClient,
        patience: PendingPolicy,
        settle: Duration,
        tell: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let ((writing, written), (end, ended)) = (channel(), channel::<()>());
        let closing = ClosingLevels::default();
        let given_up = Arc::clone(&closing);
        let work = move || {
            let covered = matches!(talk.recv(), Ok(JobReply::Message(_)));
            if covered {
                // The receiver may be gone already.
                let _left = writing.send(Instant::now());
            }
            drop(writing);
            if covered && patience.waits_for_pending {
                tell();
            }
            while covered && ended.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if !patience.waits_for_pending {
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

    /// Registers a hidden level that is being closed. Its pending data is dropped after the cover
    /// is written, unless the user chose to wait.
    pub(crate) fn register_closing(&self, level: u64) -> ClosingLevel {
        let closing = (level, Instant::now());
        self.closing.lock().push(closing);
        ClosingLevel { closing, of: Arc::clone(&self.closing) }
    }

    /// Waits until the cover is written, and after that for a fixed time, the same on every disk,
    /// while deeper levels are given up (deniability contract). A second call returns at once.
    pub(crate) fn wait(&mut self, console: Console) {
        let Some(written) = self.written.take() else { return };
        progress::show(console, "closing: writing cover", |_| {
            // Without cover no level is given up.
            let left = written.recv().map_or(Duration::ZERO, |written| {
                let settled = written.max(self.begun + GRACE) + self.settle;
                settled.saturating_duration_since(Instant::now())
            });
            thread::sleep(left);
        });
    }
}

/// A hidden level that is being closed. Dropping this means that it is closed or stays open: it is
/// not given up any more.
pub(crate) struct ClosingLevel {
    closing: (u64, Instant),
    of: ClosingLevels,
}

impl Drop for ClosingLevel {
    fn drop(&mut self) {
        self.of.lock().retain(|other| *other != self.closing);
    }
}

/// Gives up the levels that have been closing for [`GRACE`].
fn give_up(talk: &mut JobClient, closing: &Mutex<Vec<(u64, Instant)>>) {
    closing.lock().retain(|(level, since)| {
        if since.elapsed() < GRACE {
            return true;
        }
        // A server that cannot receive this has ended, or is about to.
        let _gone = talk.send(&json!({ GIVE_UP: level }));
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

/// Closes a server without a mount point; with `force` also one with clients, which are cut off.
///
/// Errors: [`Kind::Busy`] if clients use the disk, and those of [`Peer::close_served`].
pub(crate) fn close_served(peer: &Peer, patience: PendingPolicy, force: bool) -> Result<()> {
    let cover = cover_served(peer, patience, force)?;
    progress::show(patience.console, "closing the served disk", |_| peer.close_served(force))?;
    drop(cover);
    Ok(())
}

/// Requests the cover of the served disk and waits until it is written, and if the user chose to
/// wait also until pending data is written. The result keeps its hidden levels registered until the
/// server has ended. `None` for a disk without levels, and if the server does not write cover:
/// closing reports that.
///
/// Errors: [`Kind::Busy`] if clients use the disk, unless `force`. Then nothing is written, and no
/// pending data of the clients is given up. The server checks again when it is closed.
fn cover_served(
    peer: &Peer,
    patience: PendingPolicy,
    force: bool,
) -> Result<Option<(CoverSession, Vec<ClosingLevel>)>> {
    let account = match peer.status() {
        Ok(account) if has_levels(&account) => account,
        _ => return Ok(None),
    };
    let users = account.clients.as_ref().filter(|clients| clients.count > 0);
    if let Some(users) = users.filter(|_| !force && account.condition == Condition::Serving) {
        return Err(clients::in_use(&account.record.location, users, true));
    }
    let talk = peer.begin(&Job::Cover);
    match talk.and_then(|talk| CoverSession::begin(talk, patience, 2 * POLL_INTERVAL, || ())) {
        Ok(mut cover) => {
            // Requests of clients may wait for cover until the server ends.
            let levels = account.counters().filter(|(name, level)| *name == "level" && *level > 0);
            let closing: Vec<ClosingLevel> = levels.map(|(_, level)| cover.register_closing(level)).collect();
            cover.wait(patience.console);
            if patience.waits_for_pending {
                wait_for_pending(peer, patience);
            }
            Ok(Some((cover, closing)))
        }
        Err(_) => Ok(None),
    }
}

fn wait_for_pending(peer: &Peer, patience: PendingPolicy) {
    // Closing a server that does not answer reports that.
    patience.note_pending(pending_bytes(&[peer.status()]));
    progress::show(patience.console, "closing the served disk", |working| {
        let (working, looked) = (working.clone(), peer.clone());
        let _looking = Poller::start(move || {
            if let Ok(account) = looked.status() {
                let stage = progress::remaining_work(&account.counters());
                working.set_step(stage.within("closing", "the served disk"));
            }
        });
        let flush = || peer.begin(&Job::Flush)?.recv().map(drop);
        wait_while(|| pending_bytes(&[peer.status()]), flush);
    });
}

/// Waits while data is `left` and the disk accepts flushes: on a failed disk the amount does not
/// decrease, and closing reports the failure.
fn wait_while(left: impl Fn() -> u64, flush: impl Fn() -> Result<()>) {
    while left() > 0 {
        match flush() {
            // A busy or stopped server did not report a failure of the disk.
            Err(e) if !matches!(e.kind(), Kind::Busy | Kind::TimedOut) => return,
            _ => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Whether it is the server of a hidden level that is mounted while level 0 is not.
pub(crate) fn is_mounted_alone(account: &ServerStatus) -> bool {
    account.counters().any(|(name, value)| name == MOUNTED_ALONE && value > 0)
}

/// Whether the disk has levels, regardless of the open ones.
pub(crate) fn has_levels(account: &ServerStatus) -> bool {
    account.counters().any(|(name, _)| name == "cover_interval")
}

/// Bytes that wait for cover; 0 for a server that does not answer.
fn pending_bytes(statuses: &[Result<ServerStatus>]) -> u64 {
    waiting_for_cover(statuses.iter().flatten().flat_map(ServerStatus::counters))
}

/// The server of another user may give any numbers.
fn waiting_for_cover<'a>(counters: impl Iterator<Item = (&'a str, u64)>) -> u64 {
    let waiting = counters.filter(|(name, _)| *name == "waiting_for_cover");
    waiting.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Flushes until `fails`. Returns the number of flushes.
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
    fn closing_does_not_wait_for_a_failed_disk() {
        // Nothing left; all written; a disk that failed before; a disk that fails while waiting.
        let forever = u64::MAX;
        for (left, busy, fails, asked) in
            [(0, 0, forever, 0), (3, 1, forever, 3), (forever, 0, 1, 1), (forever, 2, 4, 4)]
        {
            assert_eq!(flushes(left, busy, fails), asked, "{left} {busy} {fails}");
        }
    }

    #[test]
    fn concurrently_closed_levels_are_given_up_separately() {
        let levels = [(1, Instant::now()), (2, Instant::now())];
        let all = ClosingLevels::default();
        all.lock().extend(levels);
        let [one, two] = levels.map(|closing| ClosingLevel { closing, of: Arc::clone(&all) });
        // The level was closed, or refused to close, or its thread panicked.
        drop(two);
        assert_eq!(*all.lock(), levels[..1]);
        drop(one);
        assert!(all.lock().is_empty());
    }

    #[test]
    fn the_numbers_of_a_hostile_server_do_not_overflow() {
        let counters = [("waiting_for_cover", u64::MAX), ("dirty", 7), ("waiting_for_cover", 1)];
        assert_eq!(waiting_for_cover(counters.into_iter()), u64::MAX);
        assert_eq!(waiting_for_cover(counters[1..].iter().copied()), 1);
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
