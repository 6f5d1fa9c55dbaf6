//! The clients of the control server that have not sent their whole request. The thread that
//! accepts clients reads from all of them as their bytes come, so that a client that is silent or
//! slow delays no other.

use crate::protocol::REQUEST_LIMIT;
use crate::server::worker::too_many;
use lacuna_contracts::{Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{self, ErrorKind};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// The most clients at a time with an incomplete request. At one more, the client that connected
/// first is refused.
pub(crate) const MOST_INCOMING: usize = 64;

/// A client that is to be answered.
pub(crate) struct IncomingRequest {
    /// The connection to it.
    pub stream: UnixStream,
    /// Its request without the newline. Errors: [`Kind::TimedOut`] if the line was not complete in
    /// time, [`Kind::Usage`] if it is too long or has no end, [`Kind::Busy`] if too many other
    /// clients came meanwhile.
    pub line: Result<Vec<u8>>,
}

/// The clients with an incomplete request, in the order of their connections.
pub(crate) struct Incoming {
    clients: Vec<IncomingClient>,
    /// How long each client may take to send its request.
    limit: Duration,
}

struct IncomingClient {
    stream: UnixStream,
    line: Vec<u8>,
    until: Instant,
}

impl Incoming {
    /// No clients yet. Each may take `limit` to send its request.
    pub(crate) fn new(limit: Duration) -> Self {
        Incoming { clients: Vec::new(), limit }
    }

    /// Waits until a client connects, sends bytes, leaves, or has taken too long. Errors: those of
    /// the system.
    pub(crate) fn wait(&self, listener: &UnixListener) -> io::Result<()> {
        let mut ready = vec![PollFd::new(listener, PollFlags::IN)];
        ready.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::IN)));
        // All clients have the same limit, so it is over first for the first one.
        let left = self.clients.first().map(|first| first.until.saturating_duration_since(Instant::now()));
        let left = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        match poll(&mut ready, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Accepts a client, if one connects to the `listener`, which must not block. Errors: those of
    /// the system.
    pub(crate) fn accept(&mut self, listener: &UnixListener) -> io::Result<()> {
        match listener.accept() {
            Ok((stream, _)) => {
                let until = Instant::now() + self.limit;
                self.clients.push(IncomingClient { stream, line: Vec::new(), until });
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Reads the bytes that have come, and takes the clients that can be answered now.
    pub(crate) fn take(&mut self) -> Vec<IncomingRequest> {
        let mut asked = Vec::new();
        for mut client in std::mem::take(&mut self.clients) {
            match client.read(self.limit) {
                Some(line) => asked.push(IncomingRequest { stream: client.stream, line }),
                None => self.clients.push(client),
            }
        }
        let beyond = self.clients.len().saturating_sub(MOST_INCOMING);
        for IncomingClient { stream, .. } in self.clients.drain(..beyond) {
            let line = Err(too_many(format!("{MOST_INCOMING} later clients without a whole request")));
            asked.push(IncomingRequest { stream, line });
        }
        asked
    }
}

impl IncomingClient {
    /// Reads the bytes that have come, up to the end of the request; later bytes are ignored.
    /// `None` if the request is not complete and there is time left of `limit`.
    fn read(&mut self, limit: Duration) -> Option<Result<Vec<u8>>> {
        let mut part = [0; 256];
        loop {
            match recv(&self.stream, &mut part[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Some(refusal(Kind::Usage, "an unterminated line".to_owned())),
                Ok((len, _)) => self.line.extend_from_slice(&part[..len]),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(e) => return Some(refusal(Kind::Usage, e.to_string())),
            }
            let end = self.line.iter().position(|byte| *byte == b'\n');
            if let Some(end) = end.filter(|end| *end <= REQUEST_LIMIT) {
                self.line.truncate(end);
                return Some(Ok(std::mem::take(&mut self.line)));
            }
            if self.line.len() > REQUEST_LIMIT {
                let found = format!("a line of more than {REQUEST_LIMIT} bytes");
                return Some(refusal(Kind::Usage, found));
            }
        }
        let late = Instant::now() >= self.until;
        late.then(|| refusal(Kind::TimedOut, format!("no line within {} seconds", limit.as_secs())))
    }
}

fn refusal(kind: Kind, found: String) -> Result<Vec<u8>> {
    Err(Error::new(kind, "the server got no request").found(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LONG: Duration = Duration::from_secs(1_000_000);

    struct Scene {
        incoming: Incoming,
        listener: UnixListener,
        dir: tempfile::TempDir,
    }

    impl Scene {
        fn new(limit: Duration) -> Scene {
            let dir = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
            listener.set_nonblocking(true).unwrap();
            Scene { incoming: Incoming::new(limit), listener, dir }
        }

        /// A client that was accepted and has sent `said`.
        fn client(&mut self, said: &[u8]) -> UnixStream {
            let mut client = UnixStream::connect(self.dir.path().join("socket")).unwrap();
            client.write_all(said).unwrap();
            self.incoming.wait(&self.listener).unwrap();
            self.incoming.accept(&self.listener).unwrap();
            client
        }

        /// The requests of the clients that can be answered, or the kinds of their refusals.
        fn asked(&mut self) -> Vec<std::result::Result<Vec<u8>, Kind>> {
            self.incoming.take().into_iter().map(|asked| asked.line.map_err(|e| e.kind())).collect()
        }
    }

    #[test]
    fn a_request_may_come_in_pieces_and_after_those_of_others() {
        let mut scene = Scene::new(LONG);
        scene.incoming.accept(&scene.listener).unwrap();
        let (_silent, mut slow) = (scene.client(b""), scene.client(b"slo"));
        assert!(scene.asked().is_empty());
        let _quick = scene.client(b"quick\nand more");
        assert_eq!(scene.asked(), [Ok(b"quick".to_vec())]);
        slow.write_all(b"w\n").unwrap();
        scene.incoming.wait(&scene.listener).unwrap();
        assert_eq!(scene.asked(), [Ok(b"slow".to_vec())]);
        let longest = [&[b'x'; REQUEST_LIMIT][..], b"\n"].concat();
        let (_longest, _longer) = (scene.client(&longest), scene.client(&[b'x'; REQUEST_LIMIT + 1]));
        drop(scene.client(b"left"));
        let answered = [Ok(longest[..REQUEST_LIMIT].to_vec()), Err(Kind::Usage), Err(Kind::Usage)];
        assert_eq!(scene.asked(), answered);
        assert_eq!(scene.incoming.clients.len(), 1);
    }

    #[test]
    fn a_client_that_takes_too_long_is_refused() {
        let mut scene = Scene::new(Duration::ZERO);
        let _clients = (scene.client(b"in time\n"), scene.client(b"half"));
        scene.incoming.wait(&scene.listener).unwrap();
        assert_eq!(scene.asked(), [Ok(b"in time".to_vec()), Err(Kind::TimedOut)]);
    }

    #[test]
    fn of_too_many_clients_the_first_ones_are_refused() {
        let mut scene = Scene::new(LONG);
        let mut clients: Vec<UnixStream> = (0..MOST_INCOMING + 2).map(|_| scene.client(b"")).collect();
        assert_eq!(scene.asked(), [Err(Kind::Busy), Err(Kind::Busy)]);
        clients[2].write_all(b"status\n").unwrap();
        let _one_more = scene.client(b"");
        assert_eq!(scene.asked(), [Ok(b"status".to_vec())]);
    }
}
