//! Which segment is written next and by which thread: the queue between writers that fill the cache
//! and threads that write it out.
//!
//! Segments are written in the order in which they got their first unwritten block, so that
//! neighbours of that block have the longest time to join its transaction.

use crate::segment::Segment;
use lacuna_contracts::{Clock, Error, SystemClock};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Threads that write in the background, each one object at a time.
pub(crate) const THREADS: usize = 48;
/// How long a block waits in the cache at most before a thread begins to write its segment.
const OLDEST: Duration = Duration::from_secs(1);
/// How long the background waits before it tries a full store again.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// The queue of segments to write, and the threads that wait at its two ends.
#[derive(Default)]
pub(crate) struct Schedule {
    state: Mutex<State>,
    /// There may be work for a thread.
    work: Condvar,
    /// There may be room in the cache.
    room: Condvar,
    /// Threads that wait for work.
    idle: AtomicUsize,
    clock: SystemClock,
}

#[derive(Default)]
struct State {
    /// Segments with something to write, and since when.
    queue: VecDeque<(Segment, Duration)>,
    /// Flushes under way.
    drains: usize,
    /// Writers that wait for room.
    crowded: usize,
    /// A thread waits for the first segment to become old.
    watched: bool,
    stopping: bool,
    /// The store had no room for the last transaction: its answer, and when the background tries
    /// again.
    full: Option<(Error, Duration)>,
}

impl State {
    fn is_urgent(&self) -> bool {
        self.drains > 0 || self.crowded > 0
    }

    /// How long the segment that has waited longest is to wait still. `None`: there is none.
    fn wait(&self, now: Duration, filling: impl Fn() -> bool) -> Option<Duration> {
        let (_, since) = self.queue.front()?;
        if let Some((_, again)) = &self.full {
            return Some(again.saturating_sub(now));
        }
        let left = OLDEST.saturating_sub(now.saturating_sub(*since));
        Some(if self.is_urgent() || filling() { Duration::ZERO } else { left })
    }
}

impl Schedule {
    /// Puts a segment into the queue, which its cache counts as listed already.
    pub(crate) fn list(&self, segment: Segment) {
        let mut state = self.state.lock();
        state.queue.push_back((segment, self.clock.now()));
        if state.is_urgent() || state.queue.len() == 1 {
            self.work.notify_one();
        }
    }

    /// Tells a thread, if one is idle, that the cache is filling.
    pub(crate) fn nudge(&self) {
        if self.idle.load(Ordering::Acquire) > 0 {
            let _state = self.state.lock();
            self.work.notify_one();
        }
    }

    /// Takes the segment that has waited longest.
    pub(crate) fn pop(&self) -> Option<Segment> {
        self.state.lock().queue.pop_front().map(|(segment, _)| segment)
    }

    /// Takes the segment that has waited longest, as soon as there is a reason to write: a flush,
    /// writers that wait, a cache that is `filling`, or its age. While the store is full, one is
    /// taken now and then. `None`: it is time to stop.
    pub(crate) fn next(&self, filling: impl Fn() -> bool) -> Option<Segment> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            let now = self.clock.now();
            let wait = state.wait(now, &filling);
            if wait == Some(Duration::ZERO) {
                let next = state.queue.pop_front().map(|(segment, _)| segment);
                if let Some((_, again)) = &mut state.full {
                    *again = now + FULL_PAUSE;
                }
                if !state.queue.is_empty() {
                    // Another thread goes on with the queue, or watches it.
                    self.work.notify_one();
                }
                return next;
            }
            self.idle.fetch_add(1, Ordering::AcqRel);
            match wait {
                Some(wait) if !state.watched => {
                    state.watched = true;
                    self.work.wait_for(&mut state, wait);
                    state.watched = false;
                }
                _ => self.work.wait(&mut state),
            }
            self.idle.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// From now to [`Schedule::end_drain`] everything in the queue is written without delay: about
    /// so many segments, of which the caller takes one itself.
    pub(crate) fn begin_drain(&self, segments: usize) {
        self.state.lock().drains += 1;
        for _ in 1..segments.min(THREADS + 1) {
            self.work.notify_one();
        }
    }

    pub(crate) fn end_drain(&self) {
        self.state.lock().drains -= 1;
    }

    /// Notes whether the store had room for a transaction.
    pub(crate) fn note_room(&self, refused: Option<&Error>) {
        let mut state = self.state.lock();
        if state.full.is_none() && refused.is_none() {
            return;
        }
        state.full = refused.map(|e| (e.clone(), self.clock.now() + FULL_PAUSE));
        drop(state);
        // Writers that wait for room learn that there is none, and threads that wait for work that
        // there is room again.
        self.work.notify_all();
        self.room.notify_all();
    }

    /// What the store answered when it last took nothing, for lack of room or because it could not
    /// be read.
    pub(crate) fn full(&self) -> Option<Error> {
        self.state.lock().full.as_ref().map(|(e, _)| e.clone())
    }

    /// Waits until `try_enter` succeeds, or `stop` says so, or the store has no room; a thread that
    /// gives up room calls [`Schedule::freed`].
    pub(crate) fn wait_room(&self, try_enter: impl Fn() -> bool, stop: impl Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        loop {
            if try_enter() {
                return true;
            }
            if stop() || state.stopping || state.full.is_some() {
                return false;
            }
            state.crowded += 1;
            self.work.notify_one();
            self.room.wait(&mut state);
            state.crowded -= 1;
        }
    }

    /// There is more room in the cache.
    pub(crate) fn freed(&self) {
        if self.state.lock().crowded > 0 {
            self.room.notify_all();
        }
    }

    /// Tells the threads to stop.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.wake_all();
    }

    /// Wakes all threads, to see what has happened.
    pub(crate) fn wake_all(&self) {
        drop(self.state.lock());
        self.work.notify_all();
        self.room.notify_all();
    }
}
