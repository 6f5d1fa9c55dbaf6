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
//!   are lost. Servers that end because of an obstacle that may pass by itself, such as another
//!   program that has the file, do not count: the keeper tries again until the obstacle has passed,
//!   or for `ENDS_WITHIN` if it was told to end.
//! - A server whose keeper died goes on, and is not started again. A server whose keeper was
//!   stopped goes on too (`keeper/link.rs`).

mod link;

use crate::record::KeeperId;
use crate::system_call::{self, KeptSignals};
use lacuna_contracts::{Error, Kind, Result};
use link::{HOLD, Inheritance, LONGEST, LinkSockets, OBSTACLE, READY, RELEASE, UNKEPT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

pub use link::KeeperLink;

/// Servers that may fail in a row: they died before they were ready, or of a fault of their own
/// within [`SOON`], or ended with writes that they could not make durable.
const MOST_FAILED: u32 = 5;
/// A server that lives for this long has begun well.
const SOON: Duration = Duration::from_secs(10);
/// The pause before another try after an error, and the first one because of an obstacle.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause because of an obstacle. Each is twice as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long a keeper that was told to end tries again in spite of an obstacle. An outage may be
/// longer, but a user who ends a server waits for it.
const ENDS_WITHIN: Duration = Duration::from_secs(5 * 60);
/// The hint if a keeper gives up.
const LOST: &str = "writes that were not flushed are lost; check the file system that lies on the disk";

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
    let failed = |e: io::Error| Error::io("cannot start the server", &e);
    let signals = KeptSignals::block().map_err(failed)?;
    let own = KeeperId::of(std::process::id()).and_then(|own| own.ok_or_else(|| Errno::SRCH.into()));
    let keeper = own.map_err(failed)?;
    let mut kept = KeptState::default();
    loop {
        let (ours, theirs) = LinkSockets::pair().map_err(failed)?;
        let inherited = kept.inheritance().map_err(failed)?;
        let Some(server) = system_call::fork().map_err(failed)? else {
            drop((ours, std::mem::take(&mut kept)));
            system_call::inherit_watchdog();
            std::process::exit(serve(KeeperLink::new(theirs, inherited, signals, keeper)));
        };
        drop((theirs, inherited));
        let begun = Instant::now();
        let server = Pid::from_raw(server.cast_signed()).expect("a child has a positive number");
        if let Some(signal) = kept.told_to_end {
            // The signal waits until the server handles it. A server that has ended needs none.
            let _ended = kill_process(server, signal);
        }
        let ended = watch(server, &ours, &signals, actions, &mut kept).inspect_err(|_| end(server))?;
        let (step, error) = match ended {
            ServerEnd::Exited(code) => kept.after_exit(code, Instant::now()),
            ServerEnd::Died(signal) => kept.after_death(signal, begun.elapsed())?,
        };
        if let Some(e) = &error {
            (actions.report)(e);
        }
        match step {
            NextStep::End(code) => return Ok(code),
            NextStep::Start { after } => {
                // No server says so meanwhile, and the watchdog of a service manager would end this
                // process.
                (actions.notify)("WATCHDOG=1");
                pause(&signals, &mut kept, after)?;
            }
        }
    }
}

/// Ends a server that the keeper cannot watch any more.
fn end(server: Pid) {
    // A server that has ended needs no signal, and is reaped here.
    let _ended = kill_process(server, Signal::TERM);
    let _reaped = waitpid(Some(server), WaitOptions::empty());
}

/// Waits before another server is started, but not after a signal that tells it to end.
fn pause(signals: &KeptSignals, kept: &mut KeptState, length: Duration) -> Result<()> {
    let failed = |e: io::Error| Error::io("cannot wait before the next server", &e);
    let until = Instant::now() + length;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let left = Timespec::try_from(left).map_err(|e| failed(io::Error::other(e)))?;
        match poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(failed(e.into())),
        }
        while let Some(signal) = signals.next().map_err(failed)? {
            if signal.number != libc::SIGCHLD {
                kept.told_to_end = Some(named(signal.number));
                return Ok(());
            }
        }
    }
}

fn named(signal: i32) -> Signal {
    Signal::from_named_raw(signal).expect("one of the blocked signals")
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
    /// The number of servers before the present one.
    predecessors: u64,
    /// The last signal that told a server to end. It may have come when there was none.
    told_to_end: Option<Signal>,
    /// The obstacle that ends the present server, or ended the last one.
    obstacle: Option<String>,
    /// The servers in a row that ended because of an obstacle.
    obstructed: u32,
    /// When the keeper gives up because of an obstacle, after it was told to end. Servers that are
    /// ready in between do not move it: they may fail to close the disk again and again.
    ends_by: Option<Instant>,
    /// The servers in a row that failed otherwise.
    failed_in_a_row: u32,
}

/// What follows the end of a server.
#[derive(Debug, PartialEq, Eq)]
enum NextStep {
    /// The keeper ends with this exit code.
    End(i32),
    /// Another server is started after this pause.
    Start { after: Duration },
}

impl KeptState {
    /// The state in which the last server left the disk, for the next one.
    fn inheritance(&mut self) -> io::Result<Inheritance> {
        let memory = self.memory.as_ref().map(File::try_clone).transpose()?;
        Ok(Inheritance { memory, was_ready: self.was_ready, obstacle: self.obstacle.take() })
    }

    /// Whether the death of the server loses writes that it has acknowledged.
    fn loses_writes(&self) -> bool {
        self.memory.is_none() && !self.all_durable
    }

    /// The next step, with an error to report, after the end of a server by itself.
    fn after_exit(&mut self, code: i32, now: Instant) -> (NextStep, Option<Error>) {
        let was_ready = std::mem::take(&mut self.is_ready);
        // Without memory nothing can be lost. No later server may serve the disk then: nothing
        // shows whether another client has changed it meanwhile.
        if code == 0 || !(self.predecessors > 0 || was_ready) || self.memory.is_none() {
            return (NextStep::End(code), None);
        }
        self.predecessors += 1;
        if was_ready {
            // It ended by itself: the next one only brings its writes to the medium.
            self.told_to_end = self.told_to_end.or(Some(Signal::TERM));
            self.obstructed = 0;
        }
        let step = |after| (NextStep::Start { after }, None);
        let gives_up = |found| (NextStep::End(code), Some(gave_up(found)));
        // Another try: the medium may work again, and the memory may have writes for it.
        let Some(obstacle) = &self.obstacle else {
            self.failed_in_a_row += 1;
            return if self.failed_in_a_row < MOST_FAILED {
                step(PAUSE)
            } else {
                gives_up(format!("{MOST_FAILED} servers in a row that failed, with writes in memory"))
            };
        };
        if self.told_to_end.is_some() && now >= *self.ends_by.get_or_insert(now + ENDS_WITHIN) {
            return gives_up(obstacle.clone());
        }
        let doubled = PAUSE * 2_u32.pow(self.obstructed.min(8));
        self.obstructed += 1;
        step(doubled.min(LONGEST_PAUSE))
    }

    /// The next step, with an error to report, after the death of a server that lived for some
    /// time.
    ///
    /// Errors: no other one is started.
    fn after_death(&mut self, signal: i32, lifetime: Duration) -> Result<(NextStep, Option<Error>)> {
        let was_ready = std::mem::take(&mut self.is_ready);
        self.predecessors += 1;
        let began_well = was_ready && (signal == libc::SIGKILL || lifetime >= SOON);
        self.failed_in_a_row = if began_well { 0 } else { self.failed_in_a_row + 1 };
        self.obstructed = 0;
        let died = Error::new(Kind::Other, "the server died")
            .found(format!("signal {signal}"))
            .expected("a server that runs until it is closed");
        if was_ready && self.loses_writes() {
            return Err(died.hint(LOST));
        }
        if self.failed_in_a_row >= MOST_FAILED {
            return Err(died.hint("it died again and again soon after its start, and is not started again"));
        }
        let again = died.hint("it is started again, and clients can reconnect");
        Ok((NextStep::Start { after: Duration::ZERO }, Some(again)))
    }
}

/// The message if servers cannot make the writes in the memory durable.
fn gave_up(found: String) -> Error {
    Error::new(Kind::Other, "the disk is not opened again")
        .found(found)
        .expected("a server that makes the writes in memory durable")
        .hint(LOST)
}

enum ServerEnd {
    Exited(i32),
    Died(i32),
}

/// Waits for the end of a server, and acts on its messages meanwhile.
fn watch(
    server: Pid,
    link: &LinkSockets,
    signals: &KeptSignals,
    actions: &KeeperActions<'_>,
    kept: &mut KeptState,
) -> Result<ServerEnd> {
    let failed = |e: io::Error| Error::io("cannot wait for the server", &e);
    let (mut linked, mut is_new) = (true, true);
    loop {
        // The end of a server is noticed by the signal of its death.
        let mut sources = vec![
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(&link.messages, PollFlags::IN | PollFlags::HUP),
            PollFd::new(&link.states, PollFlags::IN),
        ];
        sources.truncate(if linked { 3 } else { 1 });
        // A new server has not heard the signals that came before it was started.
        let polled = if is_new { Ok(0) } else { poll(&mut sources, None) };
        match polled {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(failed(e.into())),
        }
        // Messages first: a server that died may have left some.
        receive_all(link, actions, kept, &mut linked)?;
        while let Some(signal) = signals.next().map_err(failed)? {
            if signal.number == libc::SIGCHLD {
                let Some((_, status)) =
                    waitpid(Some(server), WaitOptions::NOHANG).map_err(|e| failed(e.into()))?
                else {
                    continue;
                };
                receive_all(link, actions, kept, &mut linked)?;
                if let Some(code) = status.exit_status() {
                    return Ok(ServerEnd::Exited(code));
                }
                if let Some(signal) = status.terminating_signal() {
                    return Ok(ServerEnd::Died(signal));
                }
                continue;
            }
            let number = named(signal.number);
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

/// Receives all messages that have come. `linked` becomes false at the end of the server.
fn receive_all(
    link: &LinkSockets,
    actions: &KeeperActions<'_>,
    kept: &mut KeptState,
    linked: &mut bool,
) -> Result<()> {
    while *linked && receive(&link.messages, actions, kept, linked)? {}
    let failed = |e: io::Error| Error::io("cannot hear the state of the server", &e);
    while let Some(state) = link.next_state().map_err(failed)? {
        (actions.notify)(&state);
    }
    Ok(())
}

/// Receives one message, if there is one. `linked` becomes false at the end of the server.
fn receive(
    link: &OwnedFd,
    actions: &KeeperActions<'_>,
    kept: &mut KeptState,
    linked: &mut bool,
) -> Result<bool> {
    let mut message = [0; LONGEST];
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
        (OBSTACLE, _) => kept.obstacle = Some(String::from_utf8_lossy(&message[1..received]).into_owned()),
        // The server is this very program: there are no other messages.
        _ => {}
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
