//! Jobs: longer work for clients on the disk of a server. Each job has a thread, and all jobs end
//! before the disk is closed.
//!
//! A client may read slowly: its user may page through its output, or think about a passphrase.
//! While there is room for other jobs, a client may take ten minutes to read a message; a client
//! that takes longer counts as gone, and its job ends. When the limit of jobs is reached, the next
//! client takes the place of the client that has not read for longest, provided that this is at
//! least 5 seconds. So a client that does not read delays only its own job.

use crate::protocol::{ControlOp, Job};
use crate::server::client_connection::{ClientConnection, JobStream};
use crate::server::worker;
use lacuna_contracts::{Error, Kind, Result, TermRenderer};
use lacuna_mount::ResizeHook;
use parking_lot::Mutex;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most jobs with a client at a time.
const MOST: usize = 8;
/// The most further jobs, of clients that have left. Each keeps its thread until a step ends that
/// cannot be interrupted.
const MOST_ENDING: usize = 8;

/// How long a job waits for a client that does not read.
#[derive(Clone, Copy)]
struct ReadLimits {
    /// How long the client may take to read one message.
    message: Duration,
    /// After this long without reading, a client may lose its place to a new client.
    evictable_after: Duration,
}

impl Default for ReadLimits {
    fn default() -> Self {
        ReadLimits { message: Duration::from_secs(600), evictable_after: Duration::from_secs(5) }
    }
}

/// Runs the jobs of a server.
pub trait JobHandler: Send + Sync {
    /// Runs the job of a client in a thread of its own, and returns the outcome for the client.
    ///
    /// The server closes the disk only when all jobs have ended. A job of many steps calls
    /// [`JobStream::check_cancelled`] between two steps and returns the error that it gets there;
    /// [`JobStream::recv`] is woken by the end. A step that cannot be interrupted, such as a flush,
    /// delays the close for as long as it takes.
    ///
    /// Errors: any failure of the job.
    fn run(&self, job: &Job, exchange: &mut JobStream) -> Result<Value>;
}

/// The jobs of a server.
#[derive(Clone)]
pub struct Jobs(Arc<JobsState>);

struct JobsState {
    handler: Option<Arc<dyn JobHandler>>,
    resize_hook: ResizeHook,
    naming: TermRenderer,
    limits: ReadLimits,
    ended: AtomicBool,
    active: Mutex<Vec<RunningJob>>,
}

/// A running job.
struct RunningJob {
    connection: Arc<ClientConnection>,
    thread: JoinHandle<()>,
}

impl Jobs {
    /// Jobs that `handler` runs; a server without a handler refuses all jobs. `resize_hook` tells
    /// the front end that the length of the disk may have changed; `naming` gives names to the
    /// settings in advice.
    pub fn new(handler: Option<Arc<dyn JobHandler>>, resize_hook: ResizeHook, naming: TermRenderer) -> Self {
        Jobs::with_limits(handler, resize_hook, naming, ReadLimits::default())
    }

    fn with_limits(
        handler: Option<Arc<dyn JobHandler>>,
        resize_hook: ResizeHook,
        naming: TermRenderer,
        limits: ReadLimits,
    ) -> Self {
        let (ended, active) = (AtomicBool::new(false), Mutex::default());
        Jobs(Arc::new(JobsState { handler, resize_hook, naming, limits, ended, active }))
    }

    /// Starts a job in a thread of its own, so that the server goes on to answer other clients.
    ///
    /// Errors: the reason why the job does not start. Nothing was sent to the client then.
    pub(crate) fn start(&self, job: Job, connection: &Arc<ClientConnection>) -> Result<()> {
        let JobsState { handler, resize_hook, naming, limits, ended, active } = &*self.0;
        let Some(handler) = handler.clone() else { return Err(ControlOp::Job(job).unsupported_error()) };
        // Locked until the new thread is in the list, so that `end` cannot miss it.
        let mut active = active.lock();
        active.retain(|job| !job.thread.is_finished());
        if ended.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Busy, "the disk is being closed")
                .hint("give the command again when it is closed"));
        }
        make_room(&active, limits.evictable_after)?;
        connection.set_read_limit(limits.message);
        let mut exchange = JobStream::new(Arc::clone(connection), Arc::clone(resize_hook));
        let work = move || handler.run(&job, &mut exchange);
        let thread = worker::start(connection, *naming, work, |_, _| ())?;
        active.push(RunningJob { connection: Arc::clone(connection), thread });
        Ok(())
    }

    /// Whether any job runs.
    pub fn is_at_work(&self) -> bool {
        self.0.active.lock().iter().any(|job| !job.thread.is_finished())
    }

    /// Ends all jobs and refuses new ones. Returns when no job uses the disk any more.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::SeqCst);
        // Joins without the lock: a new client is refused at once and does not wait.
        let active = std::mem::take(&mut *self.0.active.lock());
        active.iter().for_each(|job| job.connection.end());
        for job in active {
            let _panicked = job.thread.join();
        }
    }
}

/// Makes room for one more job. At the limit, ends the job of the client that has not read for
/// longest, if that is at least `evictable_after`.
///
/// Errors: [`Kind::Busy`] if there is no room.
fn make_room(active: &[RunningJob], evictable_after: Duration) -> Result<()> {
    let with_client: Vec<&RunningJob> = active.iter().filter(|job| !job.connection.has_ended()).collect();
    let (here, ending) = (with_client.len(), active.len() - with_client.len());
    let full = || worker::too_many(format!("{here} clients with a job, and {ending} jobs that are ending"));
    if active.len() >= MOST + MOST_ENDING {
        return Err(full());
    }
    if with_client.len() < MOST {
        return Ok(());
    }
    let unread = with_client.into_iter().filter_map(|job| Some((job.connection.unread_for()?, job)));
    let unread = unread.filter(|(since, _)| *since >= evictable_after);
    let (_, longest) = unread.max_by_key(|(since, _)| *since).ok_or_else(full)?;
    longest.connection.end();
    Ok(())
}

#[cfg(test)]
mod tests;
