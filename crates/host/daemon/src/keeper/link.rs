//! A server's line to its keeper, and the messages on it.
//!
//! Invariant: a server never waits for its keeper, which may be stopped. States for the service
//! manager, which come every second, have a socket of their own, and are dropped when it is full.
//! So there is room for all other messages, which are few.

use crate::record::KeeperId;
use crate::system_call::KeptSignals;
use lacuna_contracts::{Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    recv, sendmsg, socketpair,
};
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// The longest message of a server, in bytes.
pub(super) const LONGEST: usize = 4096;

/// A message of a server, by its first byte. `HOLD` comes with a descriptor, `OBSTACLE` with a
/// text.
pub(super) const HOLD: u8 = b'H';
pub(super) const RELEASE: u8 = b'R';
pub(super) const UNKEPT: u8 = b'U';
pub(super) const READY: u8 = b'Y';
pub(super) const OBSTACLE: u8 = b'O';

/// The sockets of one side.
pub(super) struct LinkSockets {
    pub(super) messages: OwnedFd,
    /// States for the service manager.
    pub(super) states: OwnedFd,
}

impl LinkSockets {
    /// Both sides: that of the keeper and that of its server.
    pub(super) fn pair() -> io::Result<(LinkSockets, LinkSockets)> {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (messages, states) = (pair()?, pair()?);
        let keeper = LinkSockets { messages: messages.0, states: states.0 };
        Ok((keeper, LinkSockets { messages: messages.1, states: states.1 }))
    }

    /// The next state for the service manager, if there is one.
    pub(super) fn next_state(&self) -> io::Result<Option<String>> {
        let mut state = [0_u8; LONGEST];
        match recv(&self.states, &mut state[..], RecvFlags::DONTWAIT) {
            // The server has ended.
            Ok((_, 0)) | Err(Errno::AGAIN | Errno::INTR | Errno::CONNRESET) => Ok(None),
            Ok((_, len)) => Ok(Some(String::from_utf8_lossy(&state[..len.min(LONGEST)]).into_owned())),
            Err(e) => Err(e.into()),
        }
    }
}

/// The state in which the servers before left their disk.
#[derive(Default)]
pub(super) struct Inheritance {
    /// The memory of the last one.
    pub(super) memory: Option<File>,
    /// Whether any of them accepted clients.
    pub(super) was_ready: bool,
    /// The obstacle that ended the last one.
    pub(super) obstacle: Option<String>,
}

/// A server's line to its keeper.
pub struct KeeperLink {
    sockets: LinkSockets,
    left: Mutex<Option<File>>,
    was_ready: bool,
    obstacle: Option<String>,
    signals: KeptSignals,
    keeper: KeeperId,
}

impl KeeperLink {
    pub(super) fn new(
        sockets: LinkSockets,
        from: Inheritance,
        signals: KeptSignals,
        keeper: KeeperId,
    ) -> KeeperLink {
        let Inheritance { memory, was_ready, obstacle } = from;
        KeeperLink { sockets, left: Mutex::new(memory), was_ready, obstacle, signals, keeper }
    }

    /// The keeper, which may have died since.
    pub fn keeper(&self) -> KeeperId {
        self.keeper
    }

    /// Whether a server before this one accepted clients, and so has told its user where.
    pub fn was_ready(&self) -> bool {
        self.was_ready
    }

    /// The obstacle that ended the server before this one ([`KeeperLink::report_obstacle`]).
    pub fn last_obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }

    /// Calls `act` in a thread of its own when the keeper has died. Errors: there is no thread.
    pub fn on_death(self: &Arc<Self>, act: impl FnOnce() + Send + 'static) -> Result<()> {
        let link = Arc::clone(self);
        let wait = move || {
            // The end of the other side is always reported.
            let ended = || poll(&mut [PollFd::new(&link.sockets.messages, PollFlags::empty())], None);
            let mut result = ended();
            while result == Err(Errno::INTR) {
                result = ended();
            }
            if result.is_ok() {
                act();
            }
        };
        let thread = std::thread::Builder::new().name("lacuna-keeper".into()).spawn(wait);
        thread.map(drop).map_err(|e| Error::io("cannot watch the keeper", &e))
    }

    /// Lets INT, TERM and HUP act in this server. They wait until then, so that none ends a server
    /// that does not handle them yet.
    pub fn let_signals_act(&self) {
        self.signals.unblock();
    }

    /// Whether the last server left memory, which no call has taken yet.
    pub fn has_left(&self) -> bool {
        self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some()
    }

    /// The memory that the last server left. It is returned once.
    pub fn take_left(&self) -> Option<File> {
        self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }

    /// Makes the keeper hold a descriptor of this memory, in place of any other. The kernel has the
    /// descriptor when this returns, so the death of this process does not lose it.
    pub fn hold(&self, memory: &File) -> Result<()> {
        self.tell(&[HOLD], Some(memory.as_fd()))
    }

    /// Makes the keeper let go of the memory: no server needs its writes any more, until this one
    /// calls [`KeeperLink::hold`] or [`KeeperLink::keep_nothing`].
    pub fn release(&self) -> Result<()> {
        self.tell(&[RELEASE], None)
    }

    /// Tells the keeper that this server keeps its writes in no memory that outlives it.
    pub fn keep_nothing(&self) -> Result<()> {
        self.tell(&[UNKEPT], None)
    }

    /// Tells the keeper that the server accepts clients.
    pub fn ready(&self) -> Result<()> {
        self.tell(&[READY], None)
    }

    /// Tells the keeper that this server ends because of an obstacle that may pass by itself
    /// ([`Error::may_pass`]), so that it tries again for longer than after other errors.
    pub fn report_obstacle(&self, obstacle: &str) -> Result<()> {
        let message = [&[OBSTACLE], obstacle.as_bytes()].concat();
        self.tell(&message[..message.len().min(LONGEST)], None)
    }

    /// Makes the keeper send this state to the service manager, which takes it from the main
    /// process only. The state is dropped if the keeper does not take the ones before it.
    pub fn notify(&self, state: &str) -> Result<()> {
        let state = state.as_bytes();
        match send(&self.sockets.states, &state[..state.len().min(LONGEST)], None) {
            Ok(()) | Err(Errno::AGAIN) => Ok(()),
            Err(e) => Err(Error::io("cannot send the keeper a state", &e.into())),
        }
    }

    fn tell(&self, message: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
        let what = "cannot send the keeper what outlives this server";
        match send(&self.sockets.messages, message, descriptor) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN) => Err(Error::new(Kind::Other, what)
                .found(format!("a keeper that takes no messages (process {})", self.keeper.pid))
                .hint(format!("if it was stopped, `kill -CONT {}` resumes it", self.keeper.pid))),
            Err(e) => Err(Error::io(what, &e.into())),
        }
    }
}

/// Sends a message at once, or fails with [`Errno::AGAIN`].
fn send(socket: &OwnedFd, message: &[u8], descriptor: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(message)], &mut control, flags));
    match sent {
        // The keeper is gone: the server goes on without one.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Ok(()),
        Err(e) => Err(e),
    }
}
