//! The thread that finishes what commits leave to it: files of removed objects, and checkpoints.

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
    /// Starts it. It calls `work` after each [`Worker::wake`], once for those that come meanwhile.
    pub(crate) fn start(work: impl Fn() + Send + 'static) -> Worker {
        let orders = Arc::<(Mutex<Orders>, Condvar)>::default();
        let given = orders.clone();
        let thread = std::thread::spawn(move || run(&work, &given));
        Worker { orders, thread: Some(thread) }
    }

    /// There is something to do.
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
            // What went wrong in it is in the store's health.
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
