//! The control socket: how `close`, `status` and `purge` reach a running server. One word in, one line of JSON out. Longer work
//! has messages of its own ([`crate::exchange`]).

use crate::attend::{Attendance, unknown};
use crate::connect;
use crate::counters::Counters;
use crate::outcome;
use crate::purge_answer::{self, PurgeRequest};
use crate::subject::Subject;
use crate::untold::Untold;
use lacuna_core::{Error, Kind, Naming, Result};
use lacuna_mount::Watch;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

/// Asks the server to unmount and end.
pub(crate) const CLOSE: &str = "close";
/// Asks for the counters.
pub(crate) const STATUS: &str = "status";

/// Longest first line of a client: the longest request names a place on the host and a size.
const WORD_LIMIT: u64 = 256;
/// How long a client has for it. Others are not answered meanwhile, and wait longer.
const FIRST_LINE: Duration = Duration::from_secs(2);
const ANSWER_LIMIT: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to leave a system alone that has, for example, no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A client that waits for the end of a close.
pub struct Waiting(UnixStream, Naming);

impl Waiting {
    /// The client at the other end of this stream.
    pub(crate) fn of(stream: UnixStream, naming: Naming) -> Self {
        Waiting(stream, naming)
    }

    /// Tells it how the close went.
    pub fn answer(mut self, result: &Result<()>) {
        let _ = self.0.write_all(outcome::encode(result, self.1).as_bytes());
    }

    /// Tells it why the disk stays open.
    pub fn refuse(mut self, error: &Error) {
        let _ = self.0.write_all(outcome::encode_refusal(error, self.1).as_bytes());
    }
}

/// What wakes the server.
pub enum Event {
    /// A signal or the program's own wish.
    Stop,
    /// A client asked, and waits.
    Close(Waiting),
    /// Nothing was asked of it for as long as it is to stay open then.
    Idle,
    /// Nothing has the FUSE file `disk` open any more.
    DiskReleased,
    /// The FUSE connection is over.
    SessionEnded,
}

/// The listening thread. Dropping it ends the thread.
pub struct Control {
    listener: Arc<UnixListener>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    attendance: Attendance,
}

impl Control {
    /// Listens at `path` for those who ask of `subject`, and for those whom `attendance` is for; `naming` gives names to the
    /// settings in advice that clients get. Errors: whatever the system says.
    pub fn start(
        path: &Path,
        subject: impl Subject,
        watch: Arc<Watch>,
        events: Sender<Event>,
        (attendance, naming): (Attendance, Naming),
    ) -> Result<Self> {
        let failed = |e: io::Error| Error::io(format!("cannot listen on {}", path.display()), &e);
        // A dead server's socket would be in the way. The caller holds the lock, so it is nobody's.
        let _ = std::fs::remove_file(path);
        let listener = Arc::new(UnixListener::bind(path).map_err(failed)?);
        let ending = Arc::new(AtomicBool::new(false));
        let subject: Arc<dyn Subject> = Arc::new(subject);
        let counters = Counters::shared(vec![Arc::clone(&subject)]);
        let (theirs, told) = (Arc::clone(&listener), Arc::clone(&ending));
        let attends = attendance.clone();
        let thread = std::thread::Builder::new()
            .name("lacuna-control".to_owned())
            .spawn(move || {
                // Why clients could not be accepted, or what they were not there to hear: those who get through are told.
                let untold = Untold::default();
                while !told.load(Ordering::SeqCst) {
                    match theirs.accept() {
                        // A client that misbehaves loses its connection and nothing else happens.
                        Ok((stream, _)) => {
                            let known = (&*watch, &untold);
                            _ = serve(stream, (&subject, &counters), known, &events, (&attends, naming));
                        }
                        Err(e) => {
                            untold.not_accepted(not_accepted(&e));
                            std::thread::sleep(PAUSE);
                        }
                    }
                }
            })
            .map_err(failed)?;
        Ok(Control { listener, ending, thread: Some(thread), attendance })
    }

    /// Whether work for a client is going on.
    pub fn is_at_work(&self) -> bool {
        self.attendance.is_at_work()
    }

    /// Whether the file of what is open was deleted.
    pub fn has_deleted_file(&self) -> bool {
        self.attendance.has_deleted_file()
    }

    /// Ends the work for clients and refuses more; who asks for anything else is answered. Returns when no such work uses the disk
    /// any more.
    pub fn end_work(&self) {
        self.attendance.end();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.attendance.end();
    }
}

/// What is said of a client that the system could not let in.
pub(crate) fn not_accepted(e: &io::Error) -> Error {
    Error::io("cannot accept who asks of the server", e)
}

fn serve(
    mut stream: UnixStream,
    (subject, counters): (&Arc<dyn Subject>, &Counters),
    (watch, untold): (&Watch, &Untold),
    events: &Sender<Event>,
    (attendance, naming): (&Attendance, Naming),
) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = match first_line(&stream) {
        Ok(line) => line,
        Err(refused) => return stream.write_all(outcome::encode(&Err(refused), naming).as_bytes()),
    };
    if let Some(request) = PurgeRequest::parse(&line) {
        let disk = (Arc::clone(subject), attendance.uuid());
        return purge_answer::answer(stream, &request, disk, naming, untold);
    }
    match line.as_str() {
        CLOSE => {
            // Closing may take long; that somebody heard of it does not.
            stream.write_all(outcome::HEARD)?;
            events.send(Event::Close(Waiting(stream, naming))).map_err(io::Error::other)
        }
        STATUS => {
            let last_error = watch.last_failure().or_else(|| untold.last()).map(|e| e.named(naming));
            let answer = serde_json::json!({
                "items": counters.now(),
                "last_error": last_error,
                "closing": watch.closing(),
                "id": attendance.id(),
                "file": attendance.file(),
            });
            let mut text = answer.to_string();
            text.push('\n');
            stream.write_all(text.as_bytes())
        }
        request if Attendance::is_request(request) => attendance.take(request, stream),
        question => {
            let answer = subject.answer(question).unwrap_or_else(|| Err(unknown(question)));
            stream.write_all(outcome::encode_value(&answer, naming).as_bytes())
        }
    }
}

/// What a client asks for: its first line, without the end.
///
/// Errors: [`Kind::TimedOut`] if it says nothing for 2 seconds, [`Kind::Usage`] if it says no whole line of text.
pub(crate) fn first_line(stream: &UnixStream) -> Result<String> {
    let nothing = |kind, found: String| Error::new(kind, "the server was asked for nothing").found(found);
    let failed = |e: &io::Error| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            nothing(Kind::TimedOut, format!("silence for {} seconds", FIRST_LINE.as_secs()))
        }
        _ => nothing(Kind::Usage, e.to_string()),
    };
    stream.set_read_timeout(Some(FIRST_LINE)).map_err(|e| failed(&e))?;
    let mut line = String::new();
    BufReader::new(stream.take(WORD_LIMIT)).read_line(&mut line).map_err(|e| failed(&e))?;
    // What was cut off might be the end of a number.
    if !line.ends_with('\n') {
        return Err(nothing(Kind::Usage, "a line that is too long or has no end".to_owned()));
    }
    Ok(line.trim_end().to_owned())
}

/// Says `word` to the server at `path` and waits for its line, however long the work takes. An empty answer
/// means that the server ended without one. Errors: [`io::ErrorKind::TimedOut`] if the server does not even say that
/// it heard, as one does not that was stopped.
pub(crate) fn ask(path: &Path, word: &str) -> io::Result<String> {
    let mut stream = connect::to_server(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(word.as_bytes())?;
    stream.write_all(b"\n")?;
    let mut reader = BufReader::new((&stream).take(ANSWER_LIMIT));
    let mut answer = String::new();
    reader.read_line(&mut answer).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => io::Error::from(io::ErrorKind::TimedOut),
        _ => e,
    })?;
    if answer.as_bytes() == outcome::HEARD {
        stream.set_read_timeout(None)?;
        answer.clear();
        reader.read_line(&mut answer)?;
    }
    Ok(answer)
}
