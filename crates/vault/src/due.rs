//! The files that have something to be done a piece at a time.

use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;

/// Files that wait for their turn, at most.
const MOST: usize = 4096;

#[derive(Default)]
struct Waiting {
    inodes: Vec<u64>,
    known: HashSet<u64>,
    /// Somebody takes them.
    served: bool,
    end: bool,
}

/// The files that have something to be done.
#[derive(Default)]
pub(crate) struct Due {
    waiting: Mutex<Waiting>,
    told: Condvar,
}

impl Due {
    /// Notes that a file has something to be done. `false`: nobody will do it.
    pub(crate) fn add(&self, ino: u64) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.served || waiting.end || waiting.inodes.len() >= MOST {
            return waiting.known.contains(&ino);
        }
        if waiting.known.insert(ino) {
            waiting.inodes.push(ino);
            self.told.notify_one();
        }
        true
    }

    /// Somebody takes files from now on.
    pub(crate) fn serve(&self) {
        self.waiting.lock().served = true;
    }

    /// Nobody takes any more.
    pub(crate) fn end(&self) {
        self.waiting.lock().end = true;
        self.told.notify_all();
    }

    /// Whether chores are to end.
    pub(crate) fn has_ended(&self) -> bool {
        self.waiting.lock().end
    }

    /// The next file. Waits for one; none once chores are to end.
    pub(crate) fn next(&self) -> Option<u64> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.end {
                return None;
            }
            if let Some(ino) = waiting.inodes.pop() {
                // From now on it may be noted again.
                waiting.known.remove(&ino);
                return Some(ino);
            }
            self.told.wait(&mut waiting);
        }
    }
}
