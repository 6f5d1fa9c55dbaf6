//! The server side: the connection on which it answers one client, and the messages of a job.

use crate::protocol::{KEEPALIVE, ServerAnswer, message, read_line};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_mount::ResizeHook;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde_json::Value;
use std::io::{self, BufReader, ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client may take to read an answer.
const ANSWER_READ_WITHIN: Duration = Duration::from_secs(5);
/// How often a working server sends a keepalive.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// The connection to one client, which several threads may use at once.
///
/// Invariant: a client that does not read, or reads slowly, delays the threads of its connection
/// for one limit in total. Then the exchange ends: nothing more is sent, and a thread that waits
/// for the client is woken.
pub(crate) struct ClientConnection {
    stream: UnixStream,
    /// How long the client may take to read one message, in however many pieces. Locked while bytes
    /// are sent.
    read_limit: Mutex<Duration>,
    /// When the socket buffer became full, if it is still full: the client has not read the bytes
    /// that were sent before.
    unread_since: Mutex<Option<Instant>>,
    ended: AtomicBool,
}

impl ClientConnection {
    /// The connection to the client at the other end, which may take 5 seconds to read an answer.
    pub(crate) fn new(stream: UnixStream) -> Arc<ClientConnection> {
        let (sending, unread_since) = (Mutex::new(ANSWER_READ_WITHIN), Mutex::default());
        Arc::new(ClientConnection {
            stream,
            read_limit: sending,
            unread_since,
            ended: AtomicBool::new(false),
        })
    }

    /// Sets how long the client may take to read each further message.
    pub(crate) fn set_read_limit(&self, limit: Duration) {
        *self.read_limit.lock() = limit;
    }

    /// Sends bytes. If the client does not read them in time, the exchange ends and nothing more is
    /// sent, so that the client never sees a message after one that it missed.
    pub(crate) fn send(&self, bytes: &[u8]) {
        let limit = self.read_limit.lock();
        if !self.has_ended() && self.write_within(*limit, bytes).is_err() {
            self.end();
        }
    }

    /// Sends a keepalive without blocking. If the socket buffer is full, the client still has
    /// earlier bytes to read, and needs none.
    fn send_keepalive(&self) {
        let Some(_sending) = self.read_limit.try_lock() else { return };
        if self.has_ended() {
            return;
        }
        match self.try_write(KEEPALIVE) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.end(),
        }
    }

    /// Errors: [`ErrorKind::TimedOut`] if the client did not read enough within `limit`, and errors
    /// of the system.
    fn write_within(&self, limit: Duration, mut bytes: &[u8]) -> io::Result<()> {
        let until = Instant::now() + limit;
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_for_buffer_space(until)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Sends without blocking. Returns the number of bytes that the system took. Errors:
    /// [`Errno::AGAIN`] if it took none.
    fn try_write(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        let sent = rustix::net::send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        match sent {
            Ok(_) => *self.unread_since.lock() = None,
            Err(Errno::AGAIN) => {
                self.unread_since.lock().get_or_insert_with(Instant::now);
            }
            Err(_) => {}
        }
        sent
    }

    /// Waits until the socket buffer has room, or the exchange ends. Errors:
    /// [`ErrorKind::TimedOut`].
    fn wait_for_buffer_space(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.stream, PollFlags::OUT)], Some(&left)) {
            // The caller checks the time again.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// How long the socket buffer has been full because the client does not read; `None` if it is
    /// not known to be full.
    pub(crate) fn unread_for(&self) -> Option<Duration> {
        let since = *self.unread_since.lock();
        since.map(|since| since.elapsed())
    }

    /// Sends an answer.
    pub(crate) fn answer(&self, answer: &ServerAnswer) {
        self.send(answer.line().as_bytes());
    }

    /// Whether the client has left or did not read in time, or the server has ended the exchange.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Ends the exchange, and wakes a thread that waits for the client.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.close();
    }

    /// Shuts the connection down: the client sees the end even while other references to it
    /// exist.
    pub(crate) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Sends the client a keepalive every second until it is dropped.
pub(crate) struct KeepaliveSender {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KeepaliveSender {
    /// Starts the thread. If no thread can be started, the client gets no keepalives and may time
    /// out.
    pub(crate) fn start(connection: &Arc<ClientConnection>) -> KeepaliveSender {
        let (done, working) = channel::<()>();
        let connection = Arc::clone(connection);
        let keep_alive = move || {
            while !connection.has_ended()
                && working.recv_timeout(KEEPALIVE_INTERVAL) == Err(RecvTimeoutError::Timeout)
            {
                connection.send_keepalive();
            }
        };
        let thread = std::thread::Builder::new().name("lacuna-alive".into()).spawn(keep_alive).ok();
        KeepaliveSender { done: Some(done), thread }
    }
}

impl Drop for KeepaliveSender {
    fn drop(&mut self) {
        drop(self.done.take());
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Reads the bytes that the client of a connection sends.
struct ConnectionReader(Arc<ClientConnection>);

impl Read for ConnectionReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&self.0.stream).read(bytes)
    }
}

/// The messages that belong to one request.
pub struct JobStream {
    reader: BufReader<ConnectionReader>,
    connection: Arc<ClientConnection>,
    resize_hook: ResizeHook,
}

impl JobStream {
    pub(crate) fn new(connection: Arc<ClientConnection>, resize_hook: ResizeHook) -> Self {
        JobStream {
            reader: BufReader::new(ConnectionReader(Arc::clone(&connection))),
            connection,
            resize_hook,
        }
    }

    /// Sends a message. Errors: those of [`JobStream::check_cancelled`].
    pub fn send(&self, said: &Value) -> Result<()> {
        self.connection.send(message(said).as_bytes());
        self.check_cancelled()
    }

    /// The next message of the client; `None` when the client has left or the server ends the job,
    /// which wakes this call. Errors: [`Kind::TimedOut`] after `limit`, [`Kind::Usage`] for a line
    /// that is no JSON.
    pub fn recv(&mut self, limit: Duration) -> Result<Option<Value>> {
        self.check_cancelled()?;
        let failed = |e: &io::Error| Error::io("cannot read from the client", e);
        self.connection.stream.set_read_timeout(Some(limit)).map_err(|e| failed(&e))?;
        match read_line(&mut self.reader) {
            Ok(line) if line.is_empty() => Ok(None),
            Ok(line) => serde_json::from_slice(&line).map(Some).map_err(|e| {
                Error::new(Kind::Usage, "invalid message from the client")
                    .found(format!("a line that is not JSON ({e})"))
            }),
            Err(e) => Err(match e.kind() {
                ErrorKind::WouldBlock => Error::new(Kind::TimedOut, "the client waited too long")
                    .found(format!("silence for {} seconds", limit.as_secs()))
                    .hint("give the command again"),
                _ => failed(&e),
            }),
        }
    }

    /// Errors: the client has left or does not read, or the server is about to close the disk.
    pub fn check_cancelled(&self) -> Result<()> {
        if !self.connection.has_ended() {
            return Ok(());
        }
        Err(Error::new(Kind::Busy, "the job was cancelled")
            .found("the disk is being closed, or the client has left or does not read"))
    }

    /// Tells the front end that the length of the disk may have changed.
    pub fn notify_resized(&self) -> Result<()> {
        (self.resize_hook)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than the socket buffers hold for a client that does not read.
    const LONG: usize = 16 << 20;

    fn pair(limit: Duration) -> (UnixStream, Arc<ClientConnection>) {
        let (client, server) = UnixStream::pair().unwrap();
        // A failing test must not wait for ever.
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let connection = ClientConnection::new(server);
        connection.set_read_limit(limit);
        (client, connection)
    }

    #[test]
    fn a_client_that_does_not_read_is_waited_for_once_and_gets_nothing_more() {
        let (mut client, connection) = pair(Duration::from_millis(20));
        connection.send(b"first\n");
        assert!(!connection.has_ended() && connection.unread_for().is_none());
        connection.send(&vec![b'x'; LONG]);
        assert!(connection.has_ended() && connection.unread_for().is_some());
        // With this limit, waiting for another message would take for ever.
        connection.set_read_limit(Duration::from_secs(1_000_000));
        connection.send(&vec![b'y'; LONG]);
        connection.send_keepalive();
        // The client reads the earlier bytes, and then the end, though this side keeps the
        // connection.
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).unwrap();
        assert!(heard.starts_with(b"first\nx") && heard.len() < LONG && heard.ends_with(b"x"));
    }

    #[test]
    fn a_message_has_one_time_limit_for_all_its_pieces() {
        let (mut client, connection) = pair(Duration::from_millis(100));
        // Each piece makes room long before the limit; all of them together take a multiple of it.
        let reader = std::thread::spawn(move || {
            let (mut piece, mut heard) = (vec![0; 64 << 10], 0);
            loop {
                match client.read(&mut piece).unwrap() {
                    0 => return heard,
                    len => heard += len,
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        connection.send(&vec![b'x'; LONG]);
        assert!(connection.has_ended());
        assert!(reader.join().unwrap() < LONG);
    }

    #[test]
    fn a_thread_that_waits_for_a_message_is_woken_when_the_client_does_not_read() {
        let (_client, connection) = pair(Duration::from_millis(20));
        let mut exchange = JobStream::new(Arc::clone(&connection), Arc::new(|| Ok(())));
        std::thread::scope(|scope| {
            let hearing = scope.spawn(|| exchange.recv(Duration::from_secs(60)));
            connection.send(&vec![b'x'; LONG]);
            match hearing.join().unwrap() {
                Ok(heard) => assert_eq!(heard, None),
                // The reader called `recv` after the end.
                Err(e) => assert_eq!(e.kind(), Kind::Busy, "{e}"),
            }
        });
    }

    #[test]
    fn a_keepalive_never_blocks() {
        let (client, connection) = pair(Duration::from_secs(1_000_000));
        while connection.unread_for().is_none() {
            connection.send_keepalive();
        }
        connection.send_keepalive();
        assert!(!connection.has_ended());
        client.set_nonblocking(true).unwrap();
        let mut heard = Vec::new();
        assert_eq!((&client).read_to_end(&mut heard).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(!heard.is_empty() && heard.iter().all(|byte| *byte == b'\n'));
        // A client that reads again gets the next keepalive.
        connection.send_keepalive();
        assert!(connection.unread_for().is_none() && (&client).read(&mut [0; 8]).unwrap() == 1);
        drop(client);
        connection.send_keepalive();
        assert!(connection.has_ended());
    }
}
