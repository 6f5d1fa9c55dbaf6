//! Jobs: longer work for clients on the disk of a server. Each has a thread, and all end before the disk is closed.

use crate::exchange::{Exchange, Line};
use crate::protocol::{Job, Op};
use crate::worker;
use lacuna_contracts::{Error, Kind, Naming, Result};
use lacuna_mount::Follow;
use parking_lot::Mutex;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The most jobs at a time.
const MOST: usize = 8;

/// Does the jobs of a server.
pub trait JobHandler: Send + Sync {
    /// Does what a client asks for, in a thread of its own, and gives the outcome that the client gets.
    ///
    /// The disk is closed only when all jobs have ended. Work of many steps calls [`Exchange::go_on`] between two of them and ends with
    /// the error that it gets there; [`Exchange::hear`] is woken by the end. A step that cannot be cut short, such as a flush, delays the
    /// closing for as long as it takes.
    ///
    /// Errors: any failure of the work.
    fn run(&self, job: &Job, exchange: &mut Exchange) -> Result<Value>;
}

/// The jobs of a server.
#[derive(Clone)]
pub struct Jobs(Arc<State>);

struct State {
    handler: Option<Arc<dyn JobHandler>>,
    follow: Follow,
    naming: Naming,
    ended: AtomicBool,
    active: Mutex<Vec<Active>>,
}

/// A job that a worker does.
struct Active {
    line: Arc<Line>,
    thread: JoinHandle<()>,
}

impl Jobs {
    /// Jobs that `handler` does; a server without one refuses all. `follow` tells the front end that the disk may have
    /// another length; `naming` gives names to the settings in advice.
    pub fn new(handler: Option<Arc<dyn JobHandler>>, follow: Follow, naming: Naming) -> Self {
        let (ended, active) = (AtomicBool::new(false), Mutex::default());
        Jobs(Arc::new(State { handler, follow, naming, ended, active }))
    }

    /// Does what a client asks for, in a thread of its own: others are answered meanwhile.
    ///
    /// Errors: why it is not begun. The client has heard nothing then.
    pub(crate) fn take(&self, job: Job, line: &Arc<Line>) -> Result<()> {
        let State { handler, follow, naming, ended, active } = &*self.0;
        let Some(handler) = handler.clone() else { return Err(Op::Job(job).unknown()) };
        // Until the thread is among them: it cannot be missed when all jobs are ended.
        let mut active = active.lock();
        active.retain(|job| !job.thread.is_finished());
        if ended.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Busy, "the disk is being closed").remedy("give the command then"));
        }
        if active.len() >= MOST {
            return Err(Error::new(Kind::Busy, "the server cannot take more work")
                .found(format!("{MOST} clients that it works for"))
                .remedy("try again when they are done"));
        }
        line.set_for_job()?;
        let mut exchange = Exchange::new(Arc::clone(line), Arc::clone(follow));
        let work = move || handler.run(&job, &mut exchange);
        let thread = worker::start(line, *naming, work, |_, _| ())?;
        active.push(Active { line: Arc::clone(line), thread });
        Ok(())
    }

    /// Whether there is one.
    pub fn is_at_work(&self) -> bool {
        self.0.active.lock().iter().any(|job| !job.thread.is_finished())
    }

    /// Ends all jobs and refuses more. Returns when none uses the disk any more.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::SeqCst);
        // Not under the lock: a client that comes meanwhile is refused and does not wait.
        let active = std::mem::take(&mut *self.0.active.lock());
        active.iter().for_each(|job| job.line.end());
        for job in active {
            let _panicked = job.thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
