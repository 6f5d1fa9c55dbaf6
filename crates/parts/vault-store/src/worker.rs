//! The worker thread: removes files of removed objects and finishes checkpoints that commits leave
//! to it.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;

#[derive(Default)]
struct Orders {
    due: bool,
    end: bool,
}

/// The thread, which ends when this is dropped.
pub(crate) struct Worker {
    orders: Arc<(Mutex<Orders>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. It calls `work` after [`Worker::wake`]; calls of `wake` in the meantime
    /// count as one.
    pub(crate) fn start(work: impl Fn() + Send + 'static) -> Worker {
        let orders = Arc::<(Mutex<Orders>, Condvar)>::default();
        let given = orders.clone();
        let thread = std::thread::spawn(move || run(&work, &given));
        Worker { orders, thread: Some(thread) }
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.orders.0.lock().due = true;
        self.orders.1.notify_one();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.orders.0.lock().end = true;
        self.orders.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // The store's health has the thread's failure.
            let _ended = thread.join();
        }
    }
}

fn run(work: &impl Fn(), (orders, told): &(Mutex<Orders>, Condvar)) {
    loop {
        {
            let mut orders = orders.lock();
            while !orders.due && !orders.end {
                told.wait(&mut orders);
            }
            if !std::mem::take(&mut orders.due) {
                return;
            }
        }
        work();
    }
}
