//! How a server attends to clients that ask for longer work on what it has open: a thread for each, and an end to all of them
//! before the disk is closed.

use crate::exchange::{BEAT, Exchange, Line, REQUEST, VERSION};
use crate::outcome::{self, HEARD};
use lacuna_core::{Error, Kind, Naming, Result};
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

/// The most clients that are attended to at a time.
const MOST: usize = 8;

/// What a server can do for clients with what it has open.
pub trait Attendant: Send + Sync {
    /// Does what a request asks for, in a thread of its own. What is given back is the outcome that the client gets. It calls
    /// [`Exchange::go_on`] at least every second and ends with the error that it gets there.
    ///
    /// Errors: what went wrong; [`Kind::Usage`] for a request that it does not know ([`unknown`]).
    fn attend(&self, request: &str, exchange: &mut Exchange) -> Result<Value>;

    /// The UUID of what is open, as text; none of what has none.
    fn uuid(&self) -> Option<String> {
        None
    }

    /// By which its owner knows again what is open, as text, for those who ask for the status.
    fn id(&self) -> Option<String> {
        None
    }

    /// What became of the file that is open, for those who ask for the status; null if there is none.
    fn file(&self) -> Value {
        Value::Null
    }
}

/// The error for a request that an attendant does not know.
pub fn unknown(request: &str) -> Error {
    Error::new(Kind::Usage, "the server does not do what it was asked for")
        .found(format!("the request {request:?}"))
        .remedy("close it and give the command then")
}

/// The clients of a server, and who attends to them.
#[derive(Clone)]
pub struct Attendance(Arc<Clients>);

struct Clients {
    attendant: Option<Arc<dyn Attendant>>,
    follow: Follow,
    naming: Naming,
    ended: AtomicBool,
    active: Mutex<Vec<Client>>,
}

struct Client {
    line: Arc<Line>,
    /// By which the thread is woken.
    way_out: UnixStream,
    thread: JoinHandle<()>,
}

impl Attendance {
    /// Attends to clients with `attendant`; a server without one refuses all. `follow` tells the front end that the disk may have
    /// another length; `naming` gives names to the settings in advice.
    pub fn of(attendant: Option<Arc<dyn Attendant>>, follow: Follow, naming: Naming) -> Self {
        let (ended, active) = (AtomicBool::new(false), Mutex::default());
        Attendance(Arc::new(Clients { attendant, follow, naming, ended, active }))
    }

    /// The UUID of what is open ([`Attendant::uuid`]).
    pub(crate) fn uuid(&self) -> Option<String> {
        self.0.attendant.as_ref().and_then(|attendant| attendant.uuid())
    }

    /// By which its owner knows again what is open ([`Attendant::id`]).
    pub fn id(&self) -> Option<String> {
        self.0.attendant.as_ref().and_then(|attendant| attendant.id())
    }

    /// What became of the file that is open ([`Attendant::file`]).
    pub fn file(&self) -> Value {
        self.0.attendant.as_ref().map_or(Value::Null, |attendant| attendant.file())
    }

    /// Whether that file was deleted: what is open is gone with the server.
    pub fn has_deleted_file(&self) -> bool {
        self.file()["deleted"] == true
    }

    /// Whether the first line of a client is a request, of whatever version.
    pub(crate) fn is_request(line: &str) -> bool {
        line.starts_with(REQUEST)
    }

    /// Does what the first line of a client asks for, in a thread of its own: others are answered meanwhile.
    pub(crate) fn take(&self, first_line: &str, stream: UnixStream) -> io::Result<()> {
        let line = Line::new(stream.try_clone()?)?;
        match self.accept(first_line) {
            Ok((attendant, request)) => self.start(attendant, request, stream, line),
            Err(e) => {
                line.send(outcome::encode(&Err(e), self.0.naming).as_bytes());
                Ok(())
            }
        }
    }

    /// Whether work for a client is going on.
    pub fn is_at_work(&self) -> bool {
        self.0.active.lock().iter().any(|client| !client.thread.is_finished())
    }

    /// Ends all work and refuses more. Returns when nobody uses the disk any more for a client.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::SeqCst);
        // Not under the lock: a client that comes meanwhile is refused and does not wait.
        let active = std::mem::take(&mut *self.0.active.lock());
        active.iter().for_each(|client| client.line.end(&client.way_out));
        for client in active {
            let _panicked = client.thread.join();
        }
    }

    fn accept(&self, first_line: &str) -> Result<(Arc<dyn Attendant>, String)> {
        let (version, request) = first_line[REQUEST.len()..].split_once(' ').unwrap_or_default();
        if version != VERSION {
            return Err(Error::new(Kind::Usage, "the server cannot do what it was asked for")
                .found(format!("version {version:?} of the messages"))
                .expected(format!("version {VERSION}"))
                .remedy("use the version of lacuna that the server is of, or start the server anew"));
        }
        let attendant = self.0.attendant.clone().ok_or_else(|| unknown(request))?;
        let mut active = self.0.active.lock();
        active.retain(|client| !client.thread.is_finished());
        if active.len() >= MOST {
            return Err(Error::new(Kind::Busy, "the server cannot take more work")
                .found(format!("{MOST} clients that it works for"))
                .remedy("try again when they are done"));
        }
        Ok((attendant, request.to_owned()))
    }

    fn start(
        &self,
        attendant: Arc<dyn Attendant>,
        request: String,
        stream: UnixStream,
        line: Arc<Line>,
    ) -> io::Result<()> {
        let way_out = stream.try_clone()?;
        let exchange = Exchange::new(stream, Arc::clone(&line), Arc::clone(&self.0.follow));
        let (naming, said) = (self.0.naming, Arc::clone(&line));
        // Longer than the work: under the lock the thread cannot be missed by who ends all of them.
        let mut active = self.0.active.lock();
        if self.0.ended.load(Ordering::SeqCst) {
            let closing = Error::new(Kind::Busy, "the disk is being closed").remedy("give the command then");
            line.send(outcome::encode(&Err(closing), naming).as_bytes());
            return Ok(());
        }
        line.send(HEARD);
        let work = move || {
            let outcome = with_beats(&said, || attend(&*attendant, &request, exchange));
            drop(attendant);
            said.send(outcome::encode_value(&outcome, naming).as_bytes());
            said.close();
        };
        let thread = std::thread::Builder::new().name("lacuna-attend".into()).spawn(work)?;
        active.push(Client { line, way_out, thread });
        Ok(())
    }
}

/// A defect in the work for one client is no end of the disk for all.
fn attend(attendant: &dyn Attendant, request: &str, mut exchange: Exchange) -> Result<Value> {
    let work = AssertUnwindSafe(|| attendant.attend(request, &mut exchange));
    catch_unwind(work).unwrap_or_else(|_| Err(Error::new(Kind::Other, "a defect of lacuna (a panic)")))
}

/// Does `work`, and lets the client know every second that it is being done.
fn with_beats<R>(line: &Arc<Line>, work: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        let (done, waiting) = channel::<()>();
        let beating = move || {
            while waiting.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                line.send(HEARD);
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
