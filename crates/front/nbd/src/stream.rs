//! The byte streams of a connection: a socket, a socket under TLS (`tls.rs`), or bytes in memory.

use lacuna_contracts::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A connection in the transmission phase. One thread at a time calls `recv`, and one at a time
/// sends; the two must not wait for each other.
pub(crate) trait Transport: Send + Sync {
    /// Waits for bytes; 0 is the end of the stream.
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize>;
    /// Whether `try_recv` is worth calling more than once.
    const CAN_POLL: bool = false;
    /// Takes bytes that have arrived; `None` if there are none, or if this transport cannot tell.
    fn try_recv(&self, _buf: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }
    /// Sends everything and waits as long as it takes.
    fn send(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()>;
    /// Sends until it would have to wait and leaves the rest in `slices`.
    fn try_send(&self, slices: &mut &mut [IoSlice<'_>]) -> io::Result<()>;
    /// Closes both directions at once and wakes waiting threads.
    fn hang_up(&self);
    /// Ends the stream in order after the last reply.
    fn finish(&self) {}
}

/// A connected socket.
pub(crate) enum Socket {
    /// A unix socket.
    Unix(UnixStream),
    /// A TCP connection.
    Tcp(TcpStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Socket {
    /// Sets the socket up for requests and replies.
    pub(crate) fn prepare(&self) -> Result<()> {
        if let Socket::Tcp(stream) = self {
            stream.set_nodelay(true).map_err(|e| Error::io("cannot set TCP_NODELAY", &e))?;
            rustix::net::sockopt::set_socket_keepalive(stream, true)
                .map_err(|e| Error::io("cannot set SO_KEEPALIVE", &e.into()))?;
        }
        Ok(())
    }

    fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Unix(s) => s.set_read_timeout(limit).and_then(|()| s.set_write_timeout(limit)),
            Socket::Tcp(s) => s.set_read_timeout(limit).and_then(|()| s.set_write_timeout(limit)),
        }
    }

    /// Removes the time limit of reads and writes.
    pub(crate) fn patient(&self) -> io::Result<()> {
        self.set_timeout(None)
    }

    /// Stops reading; replies in progress can still be sent.
    pub(crate) fn stop_reading(&self) {
        let _ = rustix::net::shutdown(self, Shutdown::Read);
    }

    /// Whether the client has ended its side, and so sends no further request.
    pub(crate) fn has_ended(&self) -> bool {
        let mut side = [PollFd::new(self, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut side, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    fn sendmsg(&self, slices: &mut &mut [IoSlice<'_>], flags: SendFlags) -> io::Result<()> {
        while !slices.is_empty() {
            let mut none = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(self, slices, &mut none, flags | SendFlags::NOSIGNAL) {
                Ok(sent) => IoSlice::advance_slices(slices, sent),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

impl Transport for Socket {
    const CAN_POLL: bool = true;

    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let got = match self {
                Socket::Unix(stream) => (&mut &*stream).read(buf),
                Socket::Tcp(stream) => (&mut &*stream).read(buf),
            };
            match got {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn try_recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(self, buf, RecvFlags::DONTWAIT) {
            Ok((got, _)) => Ok(Some(got)),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn send(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.sendmsg(&mut slices, SendFlags::empty())
    }

    fn try_send(&self, slices: &mut &mut [IoSlice<'_>]) -> io::Result<()> {
        match self.sendmsg(slices, SendFlags::DONTWAIT) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    fn hang_up(&self) {
        let _ = rustix::net::shutdown(self, Shutdown::Both);
    }
}

/// A socket during negotiation. It gives up a client that is silent for `silence` or has not
/// finished by `deadline`, so that an inactive client does not occupy a connection.
pub(crate) struct TimedSocket<'a> {
    socket: &'a Socket,
    silence: Duration,
    deadline: Instant,
}

impl<'a> TimedSocket<'a> {
    /// Limits the whole negotiation to six times `silence`, and to one hour.
    pub(crate) fn new(socket: &'a Socket, silence: Duration) -> Self {
        let deadline = Instant::now() + silence.saturating_mul(6).min(Duration::from_secs(3600));
        TimedSocket { socket, silence, deadline }
    }

    fn arm(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now()).min(self.silence);
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { self.socket.set_timeout(Some(left)) }
    }
}

fn timed_out(e: io::Error) -> io::Error {
    if e.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { e }
}

impl Read for TimedSocket<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        self.socket.recv(buf).map_err(timed_out)
    }
}

impl Write for TimedSocket<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.arm()?;
        self.socket.send(&mut [IoSlice::new(data)]).map_err(timed_out)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
