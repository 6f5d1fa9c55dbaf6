//! The order of segments and their threads: the queue between writers that fill the cache and
//! threads that write it out.
//!
//! Segments are written in the order of their first unwritten block, so that neighbours of that
//! block have the longest time to join its transaction.

use crate::segment::Segment;
use lacuna_contracts::{Clock, Error, SystemClock};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Background threads; each writes one object at a time.
pub(crate) const THREADS: usize = 48;
/// The longest time that a block stays in the cache before a thread begins to write its segment.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The pause before the background threads try a full store again.
const FULL_STORE_RETRY: Duration = Duration::from_secs(1);

/// The queue of segments to write, with the threads that wait at either end.
#[derive(Default)]
pub(crate) struct WriteQueue {
    state: Mutex<WriteQueueState>,
    /// Signalled when there may be work for a thread.
    segments_ready: Condvar,
    /// Signalled when there may be space in the cache.
    space: Condvar,
    /// Threads that wait for work.
    idle: AtomicUsize,
    clock: SystemClock,
}

#[derive(Default)]
struct WriteQueueState {
    /// Segments with pending work, each with the time at which it was queued.
    queue: VecDeque<(Segment, Duration)>,
    /// Flushes in progress.
    drains: usize,
    /// Writers that wait for space.
    waiting_writers: usize,
    /// Whether a thread already waits for the first segment's deadline.
    is_deadline_watched: bool,
    stopping: bool,
    /// Set if the store had no space for the last transaction: its error, and the time of the next
    /// attempt.
    store_refusal: Option<(Error, Duration)>,
}

impl WriteQueueState {
    fn is_urgent(&self) -> bool {
        self.drains > 0 || self.waiting_writers > 0
    }

    /// The time until the oldest segment is due. `None`: the queue is empty.
    fn time_until_due(&self, now: Duration, filling: impl Fn() -> bool) -> Option<Duration> {
        let (_, since) = self.queue.front()?;
        if let Some((_, again)) = &self.store_refusal {
            return Some(again.saturating_sub(now));
        }
        let left = MAX_AGE.saturating_sub(now.saturating_sub(*since));
        Some(if self.is_urgent() || filling() { Duration::ZERO } else { left })
    }
}

impl WriteQueue {
    /// Queues a segment, which the cache has marked as listed.
    pub(crate) fn push(&self, segment: Segment) {
        let mut state = self.state.lock();
        state.queue.push_back((segment, self.clock.now()));
        if state.is_urgent() || state.queue.len() == 1 {
            self.segments_ready.notify_one();
        }
    }

    /// Wakes a thread, if one is idle, because the cache is filling.
    pub(crate) fn wake_idle(&self) {
        if self.idle.load(Ordering::Acquire) > 0 {
            let _state = self.state.lock();
            self.segments_ready.notify_one();
        }
    }

    /// Takes the oldest segment from the queue.
    pub(crate) fn pop(&self) -> Option<Segment> {
        self.state.lock().queue.pop_front().map(|(segment, _)| segment)
    }

    /// Takes the oldest segment as soon as there is a reason to write: a flush, writers that wait,
    /// a cache that is `filling`, or its age. While the store is full, it takes one per
    /// `FULL_STORE_RETRY`. `None`: the thread must stop.
    pub(crate) fn next(&self, filling: impl Fn() -> bool) -> Option<Segment> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            let now = self.clock.now();
            let wait = state.time_until_due(now, &filling);
            if wait == Some(Duration::ZERO) {
                let next = state.queue.pop_front().map(|(segment, _)| segment);
                if let Some((_, again)) = &mut state.store_refusal {
                    *again = now + FULL_STORE_RETRY;
                }
                if !state.queue.is_empty() {
                    // Another thread continues with the queue, or waits for its deadline.
                    self.segments_ready.notify_one();
                }
                return next;
            }
            self.idle.fetch_add(1, Ordering::AcqRel);
            match wait {
                Some(wait) if !state.is_deadline_watched => {
                    state.is_deadline_watched = true;
                    self.segments_ready.wait_for(&mut state, wait);
                    state.is_deadline_watched = false;
                }
                _ => self.segments_ready.wait(&mut state),
            }
            self.idle.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Until [`WriteQueue::end_drain`], the whole queue is written without delay: about `segments`
    /// segments; the caller takes one of them itself.
    pub(crate) fn begin_drain(&self, segments: usize) {
        self.state.lock().drains += 1;
        for _ in 1..segments.min(THREADS + 1) {
            self.segments_ready.notify_one();
        }
    }

    pub(crate) fn end_drain(&self) {
        self.state.lock().drains -= 1;
    }

    /// Notes whether the store had space for a transaction.
    pub(crate) fn record_store_space(&self, refused: Option<&Error>) {
        let mut state = self.state.lock();
        if state.store_refusal.is_none() && refused.is_none() {
            return;
        }
        state.store_refusal = refused.map(|e| (e.clone(), self.clock.now() + FULL_STORE_RETRY));
        drop(state);
        // Wakes writers that wait for space (there is none) and threads that wait for work (there
        // is space again).
        self.segments_ready.notify_all();
        self.space.notify_all();
    }

    /// The store's last error, if it refused the last transaction for lack of space or because
    /// something could not be read.
    pub(crate) fn store_refusal(&self) -> Option<Error> {
        self.state.lock().store_refusal.as_ref().map(|(e, _)| e.clone())
    }

    /// Waits until `try_enter` succeeds, `stop` returns true, or the store is full. A thread that
    /// frees space calls [`WriteQueue::notify_space`].
    pub(crate) fn wait_for_space(&self, try_enter: impl Fn() -> bool, stop: impl Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        loop {
            if try_enter() {
                return true;
            }
            if stop() || state.stopping || state.store_refusal.is_some() {
                return false;
            }
            state.waiting_writers += 1;
            self.segments_ready.notify_one();
            self.space.wait(&mut state);
            state.waiting_writers -= 1;
        }
    }

    /// Wakes waiting writers: there is more space in the cache.
    pub(crate) fn notify_space(&self) {
        if self.state.lock().waiting_writers > 0 {
            self.space.notify_all();
        }
    }

    /// Tells the threads to stop.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.wake_all();
    }

    /// Wakes all threads so that they check the state again.
    pub(crate) fn wake_all(&self) {
        drop(self.state.lock());
        self.segments_ready.notify_all();
        self.space.notify_all();
    }
}
