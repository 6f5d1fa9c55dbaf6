//! The queue of files with work to be done piece by piece, in order of arrival.

use parking_lot::{Condvar, Mutex};
use std::collections::{HashSet, VecDeque};

/// The most files in the queue.
const MOST: usize = 4096;

/// Whether a thread takes files from the queue.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum QueueStage {
    /// Not yet.
    #[default]
    NotStarted,
    Open,
    /// No longer.
    Closed,
}

#[derive(Default)]
struct QueuedFiles {
    inodes: VecDeque<u64>,
    known: HashSet<u64>,
    /// Files with work that failed.
    postponed: HashSet<u64>,
    stage: QueueStage,
}

/// The queue of files.
#[derive(Default)]
pub(crate) struct TaskQueue {
    waiting: Mutex<QueuedFiles>,
    changed: Condvar,
}

impl TaskQueue {
    /// Queues a file. `false`: no thread will process it.
    pub(crate) fn push(&self, ino: u64) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.stage != QueueStage::Open {
            // Even if it was queued before: no thread will take it.
            return false;
        }
        if waiting.inodes.len() >= MOST {
            return waiting.known.contains(&ino);
        }
        if waiting.known.insert(ino) {
            waiting.inodes.push_back(ino);
            self.changed.notify_one();
        }
        true
    }

    /// Notes that the work on a file failed: its conversion waits for the next opening. Otherwise
    /// each attempt, which leaves something to commit, would lead to the next one.
    pub(crate) fn postpone(&self, ino: u64) {
        let mut waiting = self.waiting.lock();
        if waiting.postponed.len() < MOST {
            waiting.postponed.insert(ino);
        }
    }

    /// Whether the work on a file failed.
    pub(crate) fn is_postponed(&self, ino: u64) -> bool {
        self.waiting.lock().postponed.contains(&ino)
    }

    /// Starts the queue: a thread will take files.
    pub(crate) fn open(&self) {
        self.waiting.lock().stage = QueueStage::Open;
    }

    /// Closes the queue: no thread takes files after this.
    pub(crate) fn close(&self) {
        self.waiting.lock().stage = QueueStage::Closed;
        self.changed.notify_all();
    }

    /// Whether the thread must end.
    pub(crate) fn is_closed(&self) -> bool {
        self.waiting.lock().stage == QueueStage::Closed
    }

    /// Takes the file that was queued first. Waits for one; `None` once the queue is closed.
    pub(crate) fn pop(&self) -> Option<u64> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.stage == QueueStage::Closed {
                return None;
            }
            if let Some(ino) = waiting.inodes.pop_front() {
                // It may be queued again.
                waiting.known.remove(&ino);
                return Some(ino);
            }
            self.changed.wait(&mut waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_taken_in_order_of_arrival() {
        let queue = TaskQueue::default();
        assert!(!queue.push(1));
        queue.open();
        assert!([7, 3, 7, 5].map(|ino| queue.push(ino)).iter().all(|noted| *noted));
        assert_eq!([queue.pop(), queue.pop()], [Some(7), Some(3)]);
        // A file that was taken is queued at the end.
        assert!(queue.push(7));
        assert_eq!([queue.pop(), queue.pop()], [Some(5), Some(7)]);
        assert!(queue.push(9) && !queue.is_closed());
        queue.close();
        assert!(queue.is_closed() && queue.pop().is_none() && !queue.push(4) && !queue.push(9));
    }

    #[test]
    fn failed_work_is_remembered_for_a_limited_number_of_files() {
        let queue = TaskQueue::default();
        (0..2 * MOST as u64).for_each(|ino| queue.postpone(ino));
        assert!(queue.is_postponed(0) && queue.is_postponed(MOST as u64 - 1));
        assert!(!queue.is_postponed(MOST as u64));
    }
}
