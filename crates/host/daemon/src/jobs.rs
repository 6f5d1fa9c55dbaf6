//! Jobs: longer work for clients on the disk of a server. Each has a thread, and all end before the disk is closed.

use crate::exchange::{Exchange, Line};
use crate::protocol::{ALIVE, Answer, Op};
use lacuna_contracts::{Error, Kind, Naming, Result};
use lacuna_mount::Follow;
use parking_lot::Mutex;
use serde_json::Value;
use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most jobs at a time.
const MOST: usize = 8;
/// How often a server says that it is still at work.
const BEAT: Duration = Duration::from_secs(1);

/// Does the jobs of a server.
pub trait JobHandler: Send + Sync {
    /// Does what a client asks for, in a thread of its own, and gives the outcome that the client gets. It calls
    /// [`Exchange::go_on`] at least every second and ends with the error that it gets there.
    ///
    /// Errors: any failure of the work; [`Op::unknown`] for an operation that it does not do.
    fn run(&self, op: &Op, exchange: &mut Exchange) -> Result<Value>;
}

/// The jobs of a server.
#[derive(Clone)]
pub struct Jobs(Arc<State>);

struct State {
    handler: Option<Arc<dyn JobHandler>>,
    follow: Follow,
    naming: Naming,
    ended: AtomicBool,
    active: Mutex<Vec<Job>>,
}

struct Job {
    line: Arc<Line>,
    /// By which the thread is woken.
    way_out: UnixStream,
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
    pub(crate) fn take(&self, op: Op, stream: UnixStream) -> io::Result<()> {
        let line = Line::new(stream.try_clone()?)?;
        match self.accept(&op) {
            Ok(handler) => self.start(handler, op, stream, line),
            Err(e) => {
                line.send(Answer::refusal(&e, false, self.0.naming).line().as_bytes());
                Ok(())
            }
        }
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
        active.iter().for_each(|job| job.line.end(&job.way_out));
        for job in active {
            let _panicked = job.thread.join();
        }
    }

    fn accept(&self, op: &Op) -> Result<Arc<dyn JobHandler>> {
        let handler = self.0.handler.clone().ok_or_else(|| op.unknown())?;
        let mut active = self.0.active.lock();
        active.retain(|job| !job.thread.is_finished());
        if active.len() >= MOST {
            return Err(Error::new(Kind::Busy, "the server cannot take more work")
                .found(format!("{MOST} clients that it works for"))
                .remedy("try again when they are done"));
        }
        Ok(handler)
    }

    fn start(
        &self,
        handler: Arc<dyn JobHandler>,
        op: Op,
        stream: UnixStream,
        line: Arc<Line>,
    ) -> io::Result<()> {
        let way_out = stream.try_clone()?;
        let exchange = Exchange::new(stream, Arc::clone(&line), Arc::clone(&self.0.follow));
        let (naming, said) = (self.0.naming, Arc::clone(&line));
        // Longer than the work: under the lock the thread cannot be missed when all jobs are ended.
        let mut active = self.0.active.lock();
        if self.0.ended.load(Ordering::SeqCst) {
            let closing = Error::new(Kind::Busy, "the disk is being closed").remedy("give the command then");
            line.send(Answer::refusal(&closing, false, naming).line().as_bytes());
            return Ok(());
        }
        line.send(ALIVE);
        let work = move || {
            let outcome = with_beats(&said, || run(&*handler, &op, exchange));
            drop(handler);
            said.send(Answer::of(outcome, naming).line().as_bytes());
            said.close();
        };
        let thread = std::thread::Builder::new().name("lacuna-job".into()).spawn(work)?;
        active.push(Job { line, way_out, thread });
        Ok(())
    }
}

/// A defect in one job is no end of the disk for all.
fn run(handler: &dyn JobHandler, op: &Op, mut exchange: Exchange) -> Result<Value> {
    let work = AssertUnwindSafe(|| handler.run(op, &mut exchange));
    catch_unwind(work).unwrap_or_else(|_| Err(Error::new(Kind::Other, "a defect of lacuna (a panic)")))
}

/// Does `work`, and lets the client know every second that it is being done.
fn with_beats<R>(line: &Arc<Line>, work: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        let (done, waiting) = channel::<()>();
        let beating = move || {
            while waiting.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                line.send(ALIVE);
            }
        };
        // Without it a client may lose patience with slow work, and no more.
        let _ = std::thread::Builder::new().name("lacuna-beat".into()).spawn_scoped(scope, beating);
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests;
