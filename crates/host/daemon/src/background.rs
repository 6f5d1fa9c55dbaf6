//! Going to the background: the parent waits until the child is ready or has failed.

use crate::protocol::{AfterFailure, ServerAnswer};
use crate::system_call;
use lacuna_contracts::{Error, Kind, Result, TermRenderer};
use rustix::process::configure_io_flusher_behavior;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};

/// Longest message that the parent reads from the child, in bytes.
const MESSAGE_LIMIT: u64 = 64 << 10;

/// Prefix of a progress line. The outcome is JSON, and has no such prefix.
const PROGRESS_PREFIX: &str = "+";

/// Which of the two processes this is.
pub enum ForkResult {
    /// The process that the user started. It waits with [`ChildStartup::wait`] and exits
    /// accordingly.
    Parent(ChildStartup),
    /// The process that will serve.
    Child(ReadyPipe),
}

/// The parent's handle on a child that is still starting.
pub struct ChildStartup {
    pipe: PipeReader,
    pid: u32,
}

/// The child's pipe to its parent for the outcome of the start. Dropping it without an outcome
/// means failure.
pub struct ReadyPipe {
    pipe: PipeWriter,
    naming: TermRenderer,
}

/// Forks; `naming` gives names to the settings in advice that the child sends to its parent. Call
/// it while the process has one thread, after everything that needs the terminal.
///
/// The child keeps its standard streams, working directory, session and inherited descriptors until
/// [`ReadyPipe::report_ready`]: if it mounts for an automount of systemd, the kernel lets it pass
/// by its process group.
pub fn daemonize(naming: TermRenderer) -> Result<ForkResult> {
    let failed = |e: std::io::Error| Error::io("cannot go to the background", &e);
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    let _ = std::io::stdout().flush();
    if let Some(pid) = system_call::fork().map_err(failed)? {
        Ok(ForkResult::Parent(ChildStartup { pipe: reader, pid }))
    } else {
        Ok(ForkResult::Child(ReadyPipe { pipe: writer, naming }))
    }
}

impl ChildStartup {
    /// Waits until the child is ready, and returns its process number. Errors: the child's error,
    /// with its kind. `on_progress` gets the progress lines.
    pub fn wait(self, mut on_progress: impl FnMut(&str)) -> Result<u32> {
        let mut pipe = BufReader::new(self.pipe);
        loop {
            let mut line = String::new();
            let read = pipe.by_ref().take(MESSAGE_LIMIT).read_line(&mut line);
            if let Some(progress) = line.strip_prefix(PROGRESS_PREFIX) {
                on_progress(progress.trim_end());
                continue;
            }
            return match (read, ServerAnswer::parse(line.as_bytes())) {
                (Ok(_), Some(ServerAnswer::Ok(_))) => Ok(self.pid),
                (Ok(_), Some(ServerAnswer::Error { refusal, .. })) => Err(refusal.error()),
                _ => Err(Error::new(Kind::Other, "the server in the background did not start")
                    .found("it ended without a message")
                    .hint("run the command in the foreground to see why")),
            };
        }
    }
}

/// The child's pipe to its parent for progress before it is ready.
pub struct StartupProgress {
    pipe: PipeWriter,
}

impl StartupProgress {
    /// Sends one line. It is lost once the child is ready.
    pub fn send(&mut self, line: &str) {
        let _ = self.pipe.write_all(format!("{PROGRESS_PREFIX}{line}\n").as_bytes());
    }
}

impl ReadyPipe {
    /// A handle for progress lines, for another thread.
    pub fn progress(&self) -> Result<StartupProgress> {
        let pipe = self.pipe.try_clone();
        pipe.map(|pipe| StartupProgress { pipe }).map_err(|e| Error::io("cannot report progress", &e))
    }

    /// Detaches from the terminal, the working directory and inherited descriptors, then lets the
    /// parent exit with success.
    pub fn report_ready(mut self) -> Result<()> {
        let detached = detach();
        let outcome =
            ServerAnswer::of(detached.clone().map(|()| Value::Null), AfterFailure::Ends, self.naming);
        let written = self.pipe.write_all(outcome.line().as_bytes());
        detached?;
        written.map_err(|e| Error::io("cannot report to the process that started the server", &e))
    }

    /// Lets the parent exit with `error`. False if the parent is gone.
    pub fn report_failure(mut self, error: &Error) -> bool {
        let answer = ServerAnswer::of(Err(error.clone()), AfterFailure::Ends, self.naming);
        self.pipe.write_all(answer.line().as_bytes()).is_ok()
    }
}

/// Marks the calling thread, and every thread and process that it starts afterwards, as carrying
/// the writes of a block device (PR_SET_IO_FLUSHER). Memory reclaim in such a thread will not write
/// to that very device and so deadlock. Returns whether the kernel accepted; it needs
/// `CAP_SYS_RESOURCE`.
pub fn become_io_flusher() -> bool {
    configure_io_flusher_behavior(true).is_ok()
}

/// Detaches from the terminal, the working directory and inherited descriptors.
pub fn detach() -> Result<()> {
    let failed = |e| Error::io("cannot detach from the terminal", &e);
    rustix::process::setsid().map_err(|e| failed(e.into()))?;
    std::env::set_current_dir("/").map_err(failed)?;
    let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    let replaced = dup2_stdin(&null).and_then(|()| dup2_stdout(&null)).and_then(|()| dup2_stderr(&null));
    replaced.map_err(|e| failed(e.into()))?;
    system_call::close_inherited_descriptors();
    Ok(())
}
