//! The state of a session that its serving threads report to the thread that controls it.

use lacuna_contracts::Error;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The log of a running server: failed requests, and the reasons why it could not end when asked.
pub type ServerLog = Arc<dyn Fn(&Error) + Send + Sync>;

/// Session events and counts from the kernel's side.
#[derive(Default)]
pub struct SessionMonitor {
    state: Mutex<SessionState>,
    changed: Condvar,
    /// Requests that show that the disk or vault is in use.
    requests: AtomicU64,
}

#[derive(Default)]
struct SessionState {
    disk_handles: u64,
    ended: bool,
    closing: bool,
    failures: u64,
    first_failure: Option<Error>,
    last_failure: Option<Error>,
}

impl SessionMonitor {
    /// How many times the file of the disk is open; an attached loop device counts once.
    pub fn disk_handles(&self) -> u64 {
        self.lock().disk_handles
    }

    /// Records that the file of the disk was opened once more.
    pub fn handle_opened(&self) {
        self.update(|s| s.disk_handles += 1);
    }

    /// Records that the file of the disk was closed once. Returns the number of remaining opens.
    pub fn handle_released(&self) -> u64 {
        self.update(|s| {
            s.disk_handles = s.disk_handles.saturating_sub(1);
            s.disk_handles
        })
    }

    /// Counts a request.
    pub fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of requests.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Records that the session has ended.
    pub fn mark_ended(&self) {
        self.update(|s| s.ended = true);
    }

    /// Whether the server was told to end and has not refused.
    pub fn is_closing(&self) -> bool {
        self.lock().closing
    }

    /// Records that the server was told to end, or that it goes on.
    pub fn set_closing(&self, closing: bool) {
        self.update(|s| s.closing = closing);
    }

    /// The number of failed requests.
    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    /// The first request that failed, with its text; the kernel and programs above it pass on only
    /// a number.
    pub fn first_failure(&self) -> Option<Error> {
        self.lock().first_failure.clone()
    }

    /// The last request that failed.
    pub fn last_failure(&self) -> Option<Error> {
        self.lock().last_failure.clone()
    }

    /// Records a failure. Returns the number of failures before it.
    pub fn record_failure(&self, error: &Error) -> u64 {
        let mut state = self.lock();
        state.first_failure.get_or_insert_with(|| error.clone());
        state.last_failure = Some(error.clone());
        state.failures += 1;
        state.failures - 1
    }

    /// Waits until the file of the disk is not open any more, or the session has ended. Returns
    /// whether that happened within `limit`.
    pub fn wait_released(&self, limit: Duration) -> bool {
        self.wait(limit, |s| s.disk_handles == 0 || s.ended)
    }

    /// Waits until the session has ended. Returns whether that happened within `limit`.
    pub fn wait_ended(&self, limit: Duration) -> bool {
        self.wait(limit, |s| s.ended)
    }

    fn wait(&self, limit: Duration, done: impl Fn(&SessionState) -> bool) -> bool {
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

    fn update<T>(&self, change: impl FnOnce(&mut SessionState) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state);
        self.changed.notify_all();
        changed
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }
}
