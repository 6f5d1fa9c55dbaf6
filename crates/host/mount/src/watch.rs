//! What the serving threads know of the session, for the thread that governs it.

use lacuna_contracts::Error;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The log of a server: it takes what the server has to say while it runs, which is requests that
/// failed, and why it could not end when asked.
pub type ServerLog = Arc<dyn Fn(&Error) + Send + Sync>;

/// What the rest of a server needs to know of the kernel's side.
#[derive(Default)]
pub struct Watch {
    state: Mutex<WatchState>,
    changed: Condvar,
    /// Requests that show that somebody uses what is open.
    requests: AtomicU64,
}

#[derive(Default)]
struct WatchState {
    disk_handles: u64,
    ended: bool,
    closing: bool,
    failures: u64,
    first_failure: Option<Error>,
    last_failure: Option<Error>,
}

impl Watch {
    /// How often the file of the disk is open; an attached loop device has it open once.
    pub fn disk_handles(&self) -> u64 {
        self.lock().disk_handles
    }

    /// The file of the disk was opened once more.
    pub fn opened(&self) {
        self.change(|s| s.disk_handles += 1);
    }

    /// The file of the disk was closed once. Gives how often it is still open.
    pub fn released(&self) -> u64 {
        self.change(|s| {
            s.disk_handles = s.disk_handles.saturating_sub(1);
            s.disk_handles
        })
    }

    /// Somebody asked something of what is open.
    pub fn asked(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// How often somebody asked.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The session is over.
    pub fn end(&self) {
        self.change(|s| s.ended = true);
    }

    /// Whether the server was told to end and has not refused to.
    pub fn closing(&self) -> bool {
        self.lock().closing
    }

    /// The server was told to end, or goes on.
    pub fn set_closing(&self, closing: bool) {
        self.change(|s| s.closing = closing);
    }

    /// How many requests failed.
    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    /// The first request that failed, in words; the kernel and the programs above it only pass on a
    /// number.
    pub fn first_failure(&self) -> Option<Error> {
        self.lock().first_failure.clone()
    }

    /// The last request that failed.
    pub fn last_failure(&self) -> Option<Error> {
        self.lock().last_failure.clone()
    }

    /// Counts a failure, and gives how many there were before.
    pub fn fail(&self, error: &Error) -> u64 {
        let mut state = self.lock();
        state.first_failure.get_or_insert_with(|| error.clone());
        state.last_failure = Some(error.clone());
        state.failures += 1;
        state.failures - 1
    }

    /// Waits until nothing has the file of the disk open, or the session is over. Gives whether
    /// that came true in time.
    pub fn wait_released(&self, limit: Duration) -> bool {
        self.wait(limit, |s| s.disk_handles == 0 || s.ended)
    }

    /// Waits until the session is over. Gives whether that came true in time.
    pub fn wait_ended(&self, limit: Duration) -> bool {
        self.wait(limit, |s| s.ended)
    }

    fn wait(&self, limit: Duration, done: impl Fn(&WatchState) -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.lock();
        while !done(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut state, left);
        }
        true
    }

    fn change<T>(&self, change: impl FnOnce(&mut WatchState) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state);
        self.changed.notify_all();
        changed
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock()
    }
}
