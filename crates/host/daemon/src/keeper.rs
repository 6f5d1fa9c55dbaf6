//! The keeper: the process that outlives a server. It forks each server, waits for it, and starts
//! the next one if the server died. From the first server on it holds what the next one needs: the
//! memory with acknowledged writes, and everything that the process had before the fork, such as
//! keys, listening sockets and claims.
//!
//! Invariants:
//! - A server starts only after its predecessor has ended: the keeper has waited for the death of
//!   all its threads, and so for the end of all its requests in the kernel.
//! - The keeper has one thread, and holds neither an open disk nor the lock of a medium.
//! - A server that makes all acknowledged writes durable releases the memory. If it ends by itself,
//!   no other one is started.
//! - A server that ends by itself with an error and has not released the memory may have left
//!   writes in it: it could not open or not close the disk. It is followed by another one, unless
//!   it is the first one and was never ready: then there are no writes. If it was ready, the next
//!   server makes the writes durable and ends.
//! - A server that is told to end and dies first is followed by one that makes its writes durable
//!   and ends.
//! - After `MOST_FAILED` servers in a row that failed, the keeper gives up, and says which writes
//!   are lost.
//! - A server whose keeper died goes on, and is not started again.

use crate::record::KeeperId;
use crate::system_call::{self, KeptSignals};
use lacuna_contracts::{Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Servers that may fail in a row: they died before they were ready, or of a fault of their own
/// within [`SOON`], or ended with writes that they could not make durable.
const MOST_FAILED: u32 = 5;
/// A server that lives for this long has begun well.
const SOON: Duration = Duration::from_secs(10);
/// The pause before another try after an error.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest message of a server.
const MESSAGE: usize = 4096;
/// The hint if a keeper gives up.
const LOST: &str = "writes that were not flushed are lost; check the file system that lies on the disk";

/// A message of a server, by its first byte. `HOLD` comes with a descriptor.
const HOLD: u8 = b'H';
const RELEASE: u8 = b'R';
const UNKEPT: u8 = b'U';
const NOTIFY: u8 = b'N';
const READY: u8 = b'Y';

/// A server's line to its keeper.
pub struct KeeperLink {
    socket: OwnedFd,
    left: Mutex<Option<File>>,
    signals: KeptSignals,
    keeper: KeeperId,
}

impl KeeperLink {
    /// The keeper, which may have died since.
    pub fn keeper(&self) -> KeeperId {
        self.keeper
    }

    /// Calls `act` in a thread of its own when the keeper has died. Errors: there is no thread.
    pub fn on_death(self: &Arc<Self>, act: impl FnOnce() + Send + 'static) -> Result<()> {
        let link = Arc::clone(self);
        let wait = move || {
            // The end of the other side is always reported.
            let ended = || poll(&mut [PollFd::new(&link.socket, PollFlags::empty())], None);
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
        self.send(&[HOLD], Some(memory.as_fd()))
    }

    /// Makes the keeper let go of the memory: no server needs its writes any more, until this one
    /// calls [`KeeperLink::hold`] or [`KeeperLink::keep_nothing`].
    pub fn release(&self) -> Result<()> {
        self.send(&[RELEASE], None)
    }

    /// Tells the keeper that this server keeps its writes in no memory that outlives it.
    pub fn keep_nothing(&self) -> Result<()> {
        self.send(&[UNKEPT], None)
    }

    /// Tells the keeper that the server accepts clients.
    pub fn ready(&self) -> Result<()> {
        self.send(&[READY], None)
    }

    /// Makes the keeper send this state to the service manager, which takes it from the main
    /// process only.
    pub fn notify(&self, state: &str) -> Result<()> {
        let message = [&[NOTIFY], state.as_bytes()].concat();
        self.send(&message[..message.len().min(MESSAGE)], None)
    }

    fn send(&self, message: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let sent = rustix::io::retry_on_intr(|| {
            sendmsg(&self.socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)
        });
        match sent {
            // The keeper is gone: the server goes on without one.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Ok(()),
            Err(e) => Err(Error::io("cannot send the keeper what outlives this server", &e.into())),
        }
    }
}

/// What the keeper does for its servers.
pub struct KeeperActions<'a> {
    /// Called once, when the first server accepts clients.
    pub ready: &'a dyn Fn() -> Result<()>,
    /// Sends a state to the service manager.
    pub notify: &'a dyn Fn(&str),
    /// Reports that a server died, before the next one is started, or that writes are lost.
    pub report: &'a dyn Fn(&Error),
}

/// Runs `serve` in a process of its own, and again after each death of that process and each end
/// with writes in its memory. Returns the exit code of the last one. `serve` gets the line to the
/// keeper, and returns the exit code. Call this while the process has one thread.
///
/// Errors: [`Kind::Other`] if servers die one after the other, and failures of the system.
pub fn keep(actions: &KeeperActions<'_>, mut serve: impl FnMut(KeeperLink) -> i32) -> Result<i32> {
    let failed = |e: std::io::Error| Error::io("cannot start the server", &e);
    let signals = KeptSignals::block().map_err(failed)?;
    let own = KeeperId::of(std::process::id()).and_then(|own| own.ok_or_else(|| Errno::SRCH.into()));
    let keeper = own.map_err(failed)?;
    let (mut kept, mut is_successor, mut failed_in_a_row) = (KeptState::default(), false, 0);
    loop {
        let flags = SocketFlags::CLOEXEC;
        let (ours, socket) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|e| failed(e.into()))?;
        let left = kept.memory.as_ref().map(File::try_clone).transpose().map_err(failed)?;
        let Some(server) = system_call::fork().map_err(failed)? else {
            drop((ours, std::mem::take(&mut kept)));
            system_call::inherit_watchdog();
            std::process::exit(serve(KeeperLink { socket, left: Mutex::new(left), signals, keeper }));
        };
        drop((socket, left));
        let begun = Instant::now();
        let server = Pid::from_raw(server.cast_signed()).expect("a child has a positive number");
        if let Some(signal) = kept.told_to_end {
            // The signal waits until the server handles it. A server that has ended needs none.
            let _ended = kill_process(server, signal);
        }
        let ended = watch(server, &ours, &signals, actions, &mut kept).inspect_err(|_| end(server))?;
        let was_ready = std::mem::take(&mut kept.is_ready);
        let signal = match ended {
            // Another try: the medium may work again, and the memory may have writes for it.
            ServerEnd::Exited(code) if code != 0 && (is_successor || was_ready) && kept.memory.is_some() => {
                is_successor = true;
                failed_in_a_row += 1;
                if failed_in_a_row >= MOST_FAILED {
                    (actions.report)(&gave_up());
                    return Ok(code);
                }
                if was_ready {
                    // It ended by itself: the next one only brings its writes to the medium.
                    kept.told_to_end = kept.told_to_end.or(Some(Signal::TERM));
                }
                std::thread::sleep(PAUSE);
                continue;
            }
            ServerEnd::Exited(code) => return Ok(code),
            ServerEnd::Died(signal) => signal,
        };
        is_successor = true;
        let began_well = was_ready && (signal == libc::SIGKILL || begun.elapsed() >= SOON);
        failed_in_a_row = if began_well { 0 } else { failed_in_a_row + 1 };
        let died = Error::new(Kind::Other, "the server died")
            .found(format!("signal {signal}"))
            .expected("a server that runs until it is closed");
        if was_ready && kept.loses_writes() {
            return Err(died.hint(LOST));
        }
        if failed_in_a_row >= MOST_FAILED {
            return Err(died.hint("it died again and again soon after its start, and is not started again"));
        }
        (actions.report)(&died.hint("it is started again, and clients can reconnect"));
    }
}

/// The message if servers cannot make the writes in the memory durable.
fn gave_up() -> Error {
    Error::new(Kind::Other, "the disk is not opened again")
        .found(format!("{MOST_FAILED} servers in a row that failed, with writes in memory"))
        .expected("a server that makes them durable")
        .hint(LOST)
}

/// Ends a server that the keeper cannot watch any more.
fn end(server: Pid) {
    // A server that has ended needs no signal, and is reaped here.
    let _ended = kill_process(server, Signal::TERM);
    let _reaped = waitpid(Some(server), WaitOptions::empty());
}

/// What the keeper knows of its servers.
#[derive(Default)]
struct KeptState {
    memory: Option<File>,
    /// Whether all writes of the server are durable, so that it needs no memory, as while its disk
    /// grows.
    all_durable: bool,
    /// Whether a server was ready before.
    was_ready: bool,
    /// Whether the present server is ready.
    is_ready: bool,
    /// The last signal that told a server to end. It may have come when there was none.
    told_to_end: Option<Signal>,
}

impl KeptState {
    /// Whether the death of the server loses writes that it has acknowledged.
    fn loses_writes(&self) -> bool {
        self.memory.is_none() && !self.all_durable
    }
}

enum ServerEnd {
    Exited(i32),
    Died(i32),
}

/// Waits for the end of a server, and acts on its messages meanwhile.
fn watch(
    server: Pid,
    link: &OwnedFd,
    signals: &KeptSignals,
    actions: &KeeperActions<'_>,
    kept: &mut KeptState,
) -> Result<ServerEnd> {
    let failed = |e: std::io::Error| Error::io("cannot wait for the server", &e);
    let (mut linked, mut is_new) = (true, true);
    loop {
        // The end of a server is noticed by the signal of its death.
        let mut sources =
            vec![PollFd::new(signals, PollFlags::IN), PollFd::new(link, PollFlags::IN | PollFlags::HUP)];
        sources.truncate(1 + usize::from(linked));
        // A new server has not heard the signals that came before it was started.
        let polled = if is_new { Ok(0) } else { poll(&mut sources, None) };
        match polled {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(failed(e.into())),
        }
        // Messages first: a server that died may have left some.
        while linked && receive(link, actions, kept, &mut linked)? {}
        while let Some(signal) = signals.next().map_err(failed)? {
            if signal.number == libc::SIGCHLD {
                let Some((_, status)) =
                    waitpid(Some(server), WaitOptions::NOHANG).map_err(|e| failed(e.into()))?
                else {
                    continue;
                };
                while linked && receive(link, actions, kept, &mut linked)? {}
                if let Some(code) = status.exit_status() {
                    return Ok(ServerEnd::Exited(code));
                }
                if let Some(signal) = status.terminating_signal() {
                    return Ok(ServerEnd::Died(signal));
                }
                continue;
            }
            let number = Signal::from_named_raw(signal.number).expect("one of the blocked signals");
            kept.told_to_end = Some(number);
            // A signal of the terminal reaches the server too, except for the end of a session,
            // which may reach its leader alone. A new server still blocks it, and so gets it once.
            if is_new || !signal.from_terminal || signal.number == libc::SIGHUP {
                // A server that has ended is noticed by SIGCHLD.
                let _ended = kill_process(server, number);
            }
        }
        is_new = false;
    }
}

/// Receives one message, if there is one. `linked` becomes false at the end of the server.
fn receive(
    link: &OwnedFd,
    actions: &KeeperActions<'_>,
    kept: &mut KeptState,
    linked: &mut bool,
) -> Result<bool> {
    let mut message = [0; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(link, &mut [IoSliceMut::new(&mut message)], &mut control, flags) {
        Ok(received) => received.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
        Err(Errno::CONNRESET) => 0,
        Err(e) => return Err(Error::io("cannot hear the server", &e.into())),
    };
    if received == 0 {
        *linked = false;
        return Ok(false);
    }
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.flatten().next();
    match (message[0], descriptor) {
        (HOLD, Some(memory)) => (kept.memory, kept.all_durable) = (Some(File::from(memory)), false),
        (RELEASE, _) => (kept.memory, kept.all_durable) = (None, true),
        (UNKEPT, _) => kept.all_durable = false,
        (READY, _) => {
            kept.is_ready = true;
            if !std::mem::replace(&mut kept.was_ready, true) {
                (actions.ready)()?;
            }
        }
        (NOTIFY, _) => (actions.notify)(&String::from_utf8_lossy(&message[1..received])),
        // The server is this very program: there are no other messages.
        _ => {}
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_loses_nothing_while_all_its_writes_are_durable() {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, socket) = pair.unwrap();
        let (signals, keeper) = (KeptSignals::block().unwrap(), KeeperId { pid: 1, start: 0 });
        signals.unblock();
        let link = KeeperLink { socket, left: Mutex::new(None), signals, keeper };
        let actions = KeeperActions { ready: &|| Ok(()), notify: &|_| {}, report: &|_| {} };
        let (mut kept, mut linked) = (KeptState::default(), true);
        let mut lost_after = |sent: Result<()>| {
            sent.unwrap();
            assert!(receive(&ours, &actions, &mut kept, &mut linked).unwrap());
            kept.loses_writes()
        };
        let memory = tempfile::tempfile().unwrap();
        assert!(lost_after(link.keep_nothing()));
        assert!(!lost_after(link.hold(&memory)));
        // The disk grows, with and without memory afterwards.
        assert!(!lost_after(link.release()));
        assert!(!lost_after(link.hold(&memory)));
        assert!(!lost_after(link.release()));
        assert!(lost_after(link.keep_nothing()));
    }
}
