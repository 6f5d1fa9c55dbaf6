//! The files that have something to be done a piece at a time.

use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;

/// Files that wait, at most.
const MOST: usize = 4096;

#[derive(Default)]
struct Waiting {
    inodes: Vec<u64>,
    known: HashSet<u64>,
    /// A thread takes them.
    is_open: bool,
    is_closed: bool,
}

/// The files that have something to be done.
#[derive(Default)]
pub(crate) struct TaskQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl TaskQueue {
    /// Notes that a file has something to be done. `false`: no thread will do it.
    pub(crate) fn push(&self, ino: u64) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.is_open || waiting.is_closed || waiting.inodes.len() >= MOST {
            return waiting.known.contains(&ino);
        }
        if waiting.known.insert(ino) {
            waiting.inodes.push(ino);
            self.changed.notify_one();
        }
        true
    }

    /// A thread takes files from now on.
    pub(crate) fn open(&self) {
        self.waiting.lock().is_open = true;
    }

    /// No thread takes files any more.
    pub(crate) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Whether the thread is to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.waiting.lock().is_closed
    }

    /// The next file. Waits for one; none once the queue is closed.
    pub(crate) fn pop(&self) -> Option<u64> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.is_closed {
                return None;
            }
            if let Some(ino) = waiting.inodes.pop() {
                // From now on it may be noted again.
                waiting.known.remove(&ino);
                return Some(ino);
            }
            self.changed.wait(&mut waiting);
        }
    }
}
