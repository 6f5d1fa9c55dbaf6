//! The worker thread: removes files of removed objects and finishes checkpoints that commits leave
//! to it.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;

#[derive(Default)]
struct WorkerSignals {
    has_work: bool,
    must_end: bool,
}

/// The thread, which ends when this is dropped.
pub(crate) struct StoreWorker {
    orders: Arc<(Mutex<WorkerSignals>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl StoreWorker {
    /// Starts the thread. It calls `work` after [`StoreWorker::wake`]; calls of `wake` in the
    /// meantime count as one.
    pub(crate) fn start(work: impl Fn() + Send + 'static) -> StoreWorker {
        let orders = Arc::<(Mutex<WorkerSignals>, Condvar)>::default();
        let given = orders.clone();
        let thread = std::thread::spawn(move || run(&work, &given));
        StoreWorker { orders, thread: Some(thread) }
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.orders.0.lock().has_work = true;
        self.orders.1.notify_one();
    }
}

impl Drop for StoreWorker {
    fn drop(&mut self) {
        self.orders.0.lock().must_end = true;
        self.orders.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // The store's health has the thread's failure.
            let _ended = thread.join();
        }
    }
}

fn run(work: &impl Fn(), (orders, wakeup): &(Mutex<WorkerSignals>, Condvar)) {
    loop {
        {
            let mut orders = orders.lock();
            while !orders.has_work && !orders.must_end {
                wakeup.wait(&mut orders);
            }
            if !std::mem::take(&mut orders.has_work) {
                return;
            }
        }
        work();
    }
}
