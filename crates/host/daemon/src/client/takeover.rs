//! The end of a server that does not answer, and the close of a disk whose servers a keeper starts
//! again.
//!
//! Invariant: a takeover begins with the end of the predecessor. A process has ended when all its
//! threads have, and with them their requests in the kernel. After that nothing of it reaches the
//! medium, not even when it was stopped and is resumed.

use crate::client::CallOutcome;
use crate::client::other_process::OtherProcess;
use crate::client::peer::{PROBED_WITHIN, Peer, Reach, clear_dead, silent_error};
use crate::dead_server::is_alive;
use crate::protocol::{AfterFailure, ControlOp};
use crate::record::Record;
use crate::registry::Registry;
use crate::run_dir::RunPaths;
use crate::server_end::{CloseOutcome, GONE_WITHIN, PAUSE};
use lacuna_contracts::{Error, Kind, Result};
use rustix::process::Signal;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Instant;

/// The most servers of one keeper that a close asks, each after the death of the one before.
const MOST_SERVERS: u32 = 5;

/// The end of a server that did not answer.
pub struct Takeover {
    /// Whether it was killed. It may have ended by itself before.
    pub was_killed: bool,
    /// Whether it had a living keeper.
    pub was_kept: bool,
    /// The server that its keeper has started since. `None` if there was no keeper, and so writes
    /// that were not flushed are lost, or if the keeper has ended: it reports whether they are.
    pub next: Option<Peer>,
}

impl Peer {
    /// Closes a server without a mount point, as [`Peer::close`] does. If it dies before it has
    /// closed the disk, and has a keeper, the next server is asked. With `force` also if clients
    /// use the disk over the network: they are cut off.
    ///
    /// Errors: those of [`Peer::close`].
    pub fn close_served(&self, force: bool) -> Result<CloseOutcome> {
        let op = ControlOp::Close { force };
        if let Reach::Own(paths) = &self.reach
            && let Some(keeper) = living_keeper(&self.record)?
        {
            return close_kept(self, paths, &keeper, &op).map_err(|e| self.record.mark_confidential(e));
        }
        self.close_with(&op)
    }

    /// Kills the server, which is of this user and does not answer, and waits for the end of its
    /// process.
    ///
    /// Errors: [`Kind::TimedOut`] if its process does not end, is in another PID namespace, or if
    /// the keeper starts no other server; [`Kind::Permission`] for a server of another user;
    /// failures of the system.
    pub fn take_over(&self) -> Result<Takeover> {
        let Reach::Own(paths) = &self.reach else {
            return Err(Error::new(Kind::Permission, format!("cannot end {}", self.server()))
                .expected("a server of this user"));
        };
        self.end_and_follow(paths).map_err(|e| self.record.mark_confidential(e))
    }

    fn end_and_follow(&self, paths: &RunPaths) -> Result<Takeover> {
        let what = format!("cannot end {}", self.server());
        let failed = |e: io::Error| Error::io(what.as_str(), &e);
        let keeper = living_keeper(&self.record)?;
        let server = OtherProcess::of_server(&self.record).map_err(failed)?;
        // The descriptor comes first: if the run directory has still a server and the same record,
        // the process is that server.
        let is_there = is_alive(paths)? == Some(true) && paths.record()?.as_ref() == Some(&self.record);
        if is_there {
            kill(&server.ok_or_else(|| unknown_process(&what, &self.record))?, &what)?;
        }
        let Some(keeper) = keeper else {
            clear_dead(paths, None, PROBED_WITHIN)?;
            return Ok(Takeover { was_killed: is_there, was_kept: false, next: None });
        };
        // A keeper that was stopped as well does not notice the end.
        keeper.send(Signal::CONT).map_err(failed)?;
        let next = next_server(&self.record, &keeper, paths.base()).map_err(|e| e.context(&what))?;
        Ok(Takeover { was_killed: is_there, was_kept: true, next })
    }
}

/// Kills a server, and waits for the end of its process.
fn kill(server: &OtherProcess, what: &str) -> Result<()> {
    let failed = |e: io::Error| Error::io(what, &e);
    server.send(Signal::KILL).map_err(failed)?;
    if server.has_ended_within(GONE_WITHIN).map_err(failed)? {
        return Ok(());
    }
    let (process, seconds) = (server.number(), GONE_WITHIN.as_secs());
    Err(Error::new(Kind::TimedOut, what)
        .found(format!("process {process}, killed {seconds} seconds ago and still in the kernel"))
        .expected("the end of the process, after which none of its requests is carried out")
        .hint("it ends when its medium answers, or is removed; then try again"))
}

/// The error for a living server whose process has another number here, so that it cannot be
/// killed.
fn unknown_process(what: &str, server: &Record) -> Error {
    Error::new(Kind::TimedOut, what)
        .found(format!("a server that does not answer, and another process with its number {}", server.pid))
        .expected("a server in the same PID namespace, not in another container")
        .hint("end it where it was started")
}

/// The keeper of a server, if it lives.
pub(crate) fn living_keeper(record: &Record) -> Result<Option<OtherProcess>> {
    let Some(keeper) = record.keeper else { return Ok(None) };
    let process = OtherProcess::of(keeper.pid);
    let process = process.map_err(|e| Error::io("cannot look at the keeper of the server", &e))?;
    // The descriptor comes first: if the keeper lives, it stands for the keeper.
    Ok(process.filter(|_| keeper.is_alive()))
}

/// Waits for the server that this keeper starts after the one with the record `ended`. `None` if
/// the keeper ends first. Errors: [`Kind::TimedOut`], and failures of the system.
pub(crate) fn next_server(ended: &Record, keeper: &OtherProcess, base: &Path) -> Result<Option<Peer>> {
    let registry = Registry::open(Some(base))?;
    let begun = Instant::now();
    loop {
        let is_over = keeper.has_ended_within(PAUSE);
        let is_over = is_over.map_err(|e| Error::io("cannot wait for the next server", &e))?;
        // A server that cannot be inspected is none that this keeper has just started.
        let (mut peers, _unseen) = registry.all_with_errors();
        peers.retain(|peer| peer.record.keeper == ended.keeper);
        let next = peers.iter().position(|peer| peer.alive && peer.record.pid != ended.pid);
        if next.is_some() || is_over {
            return Ok(next.map(|next| peers.swap_remove(next)));
        }
        if begun.elapsed() > GONE_WITHIN {
            let obstacle = peers.into_iter().find_map(|peer| peer.record.obstacle.filter(|_| !peer.alive));
            return Err(not_started_error(keeper, obstacle));
        }
    }
}

fn not_started_error(keeper: &OtherProcess, obstacle: Option<String>) -> Error {
    let (process, error) = (keeper.number(), Error::new(Kind::TimedOut, "the server was not started again"));
    match obstacle {
        Some(obstacle) => error
            .found(format!("its keeper (process {process}), which waits: {obstacle}"))
            .hint("remove the obstacle; then try again"),
        None => error
            .found(format!("its keeper (process {process}) still at it"))
            .hint("try again; if the keeper was stopped, resume it with `kill -CONT`"),
    }
}

/// Closes the disk of a server with this living keeper, and waits for the end of both. If the
/// server dies before it has closed the disk, the next server is asked, which makes the writes of
/// its predecessor durable. `paths` is the run directory of `peer`.
fn close_kept(peer: &Peer, paths: &RunPaths, keeper: &OtherProcess, op: &ControlOp) -> Result<CloseOutcome> {
    let what = format!("cannot close {}", peer.record.location);
    let failed = |e: io::Error| Error::io(what.as_str(), &e);
    let mut server = peer.clone();
    for _ in 0..MOST_SERVERS {
        let process = OtherProcess::of_server(&server.record).map_err(failed)?;
        match server.call(op) {
            Ok(CallOutcome::Done(_)) => {
                await_ends(process.as_ref(), keeper, &what)?;
                return Ok(CloseOutcome::Cleanly);
            }
            Ok(CallOutcome::Refused(e, AfterFailure::Stays)) => return Err(e),
            Ok(CallOutcome::Refused(e, AfterFailure::Ends)) => {
                // The lost data matters more than whether the processes end.
                let _stay = await_ends(process.as_ref(), keeper, &what);
                return Err(e.context(what));
            }
            Ok(CallOutcome::Silent(limit)) => return Err(silent_error(what, Some(&server.record), limit)),
            // It died, or another process has closed it.
            Ok(CallOutcome::Ended | CallOutcome::Malformed) => {}
            Err(e) if has_gone(&e) => {}
            Err(e) => return Err(failed(e)),
        }
        match next_server(&server.record, keeper, paths.base()).map_err(|e| e.context(&what))? {
            Some(next) => server = next,
            None => {
                // The keeper has ended, with or without a failure.
                return peer.close_with(op);
            }
        }
    }
    Err(Error::new(Kind::Other, what)
        .found(format!("{MOST_SERVERS} servers that died, one after the other, before they had closed it"))
        .expected("a server that closes the disk"))
}

/// Whether no server listens at the control socket.
fn has_gone(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
    )
}

/// Waits for the end of a server that has closed, and of its keeper: until then they have the claim
/// on the disk and its listening sockets.
fn await_ends(server: Option<&OtherProcess>, keeper: &OtherProcess, what: &str) -> Result<()> {
    let failed = |e: io::Error| Error::io(what, &e);
    // A keeper that was stopped does not notice the end of its server.
    keeper.send(Signal::CONT).map_err(failed)?;
    for process in server.into_iter().chain([keeper]) {
        if !process.has_ended_within(GONE_WITHIN).map_err(failed)? {
            return Err(Error::new(Kind::TimedOut, what)
                .found(format!("process {} still there after the disk was closed", process.number()))
                .expected("its end"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Instance;
    use crate::record::{FrontEnd, Identity, KeeperId};
    use lacuna_mount::proc;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn a_process_that_has_only_the_number_of_a_server_is_not_killed() {
        let base = tempfile::tempdir().unwrap();
        let instance = Instance::of_server(base.path(), "/a.img").unwrap();
        let mut process = Command::new("sleep").arg("600").spawn().unwrap();
        let start = proc::start_of(process.id()).unwrap();
        let front = FrontEnd::Nbd { uris: Vec::new() };
        let record = Record { pid: process.id(), start, ..Record::new(&Identity::default(), front, false) };
        let found = |record: &Record| {
            instance.write(record).unwrap();
            Registry::open(Some(base.path())).unwrap().all().unwrap().remove(0)
        };
        // As in another PID namespace, or when the number was used again.
        let other = found(&Record { start: start.map(|start| start + 1), ..record.clone() });
        assert_eq!(other.take_over().err().unwrap().kind(), Kind::TimedOut);
        assert!(OtherProcess::of_server(&other.record).unwrap().is_none());
        assert!(process.try_wait().unwrap().is_none());
        let server = found(&record);
        let taken_over = server.take_over().unwrap();
        assert!(taken_over.was_killed && !taken_over.was_kept && taken_over.next.is_none());
        assert_eq!(process.wait().unwrap().signal(), Some(libc::SIGKILL));
        instance.end().unwrap();
        // A server that ended by itself.
        let taken_over = server.take_over().unwrap();
        assert!(!taken_over.was_killed && taken_over.next.is_none());
    }

    /// As when the keeper was told to end: its next server has ended before this process sees it.
    #[test]
    fn a_keeper_that_ends_after_its_server_is_not_taken_for_none() {
        let base = tempfile::tempdir().unwrap();
        let instance = Instance::of_server(base.path(), "/a.img").unwrap();
        let start = || Command::new("sleep").arg("600").spawn().unwrap();
        let (mut process, mut keeper) = (start(), start());
        let front = FrontEnd::Nbd { uris: Vec::new() };
        let record = Record {
            pid: process.id(),
            start: proc::start_of(process.id()).unwrap(),
            keeper: KeeperId::of(keeper.id()).unwrap(),
            ..Record::new(&Identity::default(), front, false)
        };
        instance.write(&record).unwrap();
        let server = Registry::open(Some(base.path())).unwrap().all().unwrap().remove(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                process.wait().unwrap();
                keeper.kill().unwrap();
                keeper.wait().unwrap();
            });
            let taken_over = server.take_over().unwrap();
            assert!(taken_over.was_killed && taken_over.was_kept && taken_over.next.is_none());
        });
        instance.end().unwrap();
    }
}
