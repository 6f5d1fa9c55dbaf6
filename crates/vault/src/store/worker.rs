//! The thread that finishes what commits leave to it: files of removed objects, and checkpoints.

use super::checkpoint;
use super::engine::Engine;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;

#[derive(Default)]
struct Orders {
    due: bool,
    end: bool,
}

/// The thread, which ends when this is dropped.
pub(super) struct Worker {
    orders: Arc<(Mutex<Orders>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts it.
    pub(super) fn start(engine: Arc<Engine>) -> Worker {
        let orders = Arc::<(Mutex<Orders>, Condvar)>::default();
        let given = orders.clone();
        let thread = std::thread::spawn(move || work(&engine, &given));
        Worker { orders, thread: Some(thread) }
    }

    /// There is something to do.
    pub(super) fn wake(&self) {
        self.orders.0.lock().due = true;
        self.orders.1.notify_one();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.orders.0.lock().end = true;
        self.orders.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // What went wrong in it is in the engine's health.
            let _ended = thread.join();
        }
    }
}

fn work(engine: &Engine, (orders, told): &(Mutex<Orders>, Condvar)) {
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
        if let Err(e) = engine.unlink_leaving() {
            engine.refused(e);
        }
        // What the host refuses is tried again by the next checkpoint; anything else is fail-stop already.
        let _failure = checkpoint::finish(engine, &mut engine.frozen.lock());
    }
}
