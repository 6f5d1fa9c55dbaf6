//! A running NBD server: starts it, waits for it and stops it; drop kills it.

use crate::workspace::Workspace;
use lacuna_contracts::{Error, Kind, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs::File;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const READY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(300);
const GREETING: &[u8; 8] = b"NBDMAGIC";

/// A server that accepts connections.
pub(crate) struct RunningServer<'w> {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
    work: &'w Workspace,
    /// Time from the start of the process until it greets the first client.
    pub ready_after: Duration,
}

impl<'w> RunningServer<'w> {
    /// Starts `command`, which must listen on `socket`, and waits until it greets a client.
    pub(crate) fn start(work: &'w Workspace, command: &mut Command, socket: &Path) -> Result<Self> {
        remove(socket);
        let log = work.path("server.log");
        let program = command.get_program().display().to_string();
        let failed = |e| Error::io(format!("cannot start {program}"), &e);
        let stderr = File::create(&log).map_err(failed)?;
        let start = Instant::now();
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().map_err(failed)?;
        let mut server =
            RunningServer { child, socket: socket.to_owned(), log, work, ready_after: Duration::ZERO };
        server.wait_for_greeting(start)?;
        server.ready_after = start.elapsed();
        Ok(server)
    }

    fn wait_for_greeting(&mut self, start: Instant) -> Result<()> {
        while !greets(&self.socket) {
            self.work.interrupt.check()?;
            if let Some(status) = self.ended()? {
                return Err(self.failed("a server ended before it was ready", status.to_string()));
            }
            if start.elapsed() > READY_WITHIN {
                return Err(self.failed("a server does not become ready", "no greeting in a minute"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The socket for clients.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends TERM and waits for the end.
    pub(crate) fn stop(self) -> Result<()> {
        self.stop_after(|| Ok(()))
    }

    /// Stops the server, and calls `look` when the process has ended and its clocks can still be
    /// read.
    pub(crate) fn stop_after<T>(mut self, look: impl FnOnce() -> Result<T>) -> Result<T> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Error::new(Kind::Other, "a server has no process number"))?;
        kill_process(pid, Signal::TERM).map_err(|e| Error::io("cannot stop a server", &e.into()))?;
        let start = Instant::now();
        let without_reaping = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        while waitid(WaitId::Pid(pid), without_reaping)
            .map_err(|e| Error::io("cannot watch a server", &e.into()))?
            .is_none()
        {
            if start.elapsed() > STOPPED_WITHIN {
                return Err(self.failed("a server does not end", "still there after five minutes"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let seen = look();
        match self.child.wait().map_err(|e| Error::io("cannot watch a server", &e))? {
            status if status.success() => seen,
            status => Err(self.failed("a server did not end well", status.to_string())),
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|e| Error::io("cannot watch a server", &e))
    }

    fn failed(&self, what: &str, found: impl Into<String>) -> Error {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&log[log.len().saturating_sub(1000)..]).trim().to_owned();
        Error::new(Kind::Other, what).found(format!("{}; its output: {said}", found.into()))
    }
}

impl Drop for RunningServer<'_> {
    fn drop(&mut self) {
        // Both fail harmlessly if the server has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove(&self.socket);
    }
}

fn greets(socket: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let mut greeting = [0; GREETING.len()];
    let timed = stream.set_read_timeout(Some(Duration::from_secs(5)));
    timed.is_ok() && stream.read_exact(&mut greeting).is_ok() && greeting == *GREETING
}

fn remove(socket: &Path) {
    // The socket may be absent.
    let _ = std::fs::remove_file(socket);
}
