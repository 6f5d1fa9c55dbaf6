//! The processor time of a server: of the whole process, and of its background threads.

use lacuna_contracts::{Error, Kind, Result};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::time::Duration;

/// The prefix of the names of lacuna's threads.
const THREAD_PREFIX: &str = "lacuna-";
/// The lacuna threads that receive and answer requests.
const FOREGROUND: [&str; 2] = ["lacuna-nbd", "lacuna-fuse"];

/// The processor clocks of one process.
pub(crate) struct ProcessorClocks {
    process: ClockId,
    /// The kernel's files with the times of the background threads.
    background: Vec<PathBuf>,
}

/// Processor time up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessorTime {
    /// Time of all threads, including ended ones.
    pub total: Duration,
    /// Time of the background threads that existed when the clocks were created.
    pub background: Duration,
}

impl ProcessorTime {
    /// The difference to an earlier moment.
    pub(crate) fn since(self, earlier: ProcessorTime) -> ProcessorTime {
        ProcessorTime {
            total: self.total.saturating_sub(earlier.total),
            background: self.background.saturating_sub(earlier.background),
        }
    }
}

impl ProcessorClocks {
    /// The clocks of a process, with its present threads.
    pub(crate) fn of(pid: u32) -> Result<ProcessorClocks> {
        let process = clock_getcpuclockid(Pid::from_raw(pid as i32)).map_err(failed)?;
        let tasks = format!("/proc/{pid}/task");
        let entries = std::fs::read_dir(&tasks).map_err(|e| Error::io(format!("cannot read {tasks}"), &e))?;
        let mut background = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| Error::io(format!("cannot read {tasks}"), &e))?.path();
            if name(&path)?.is_some_and(|name| is_background(&name)) {
                background.push(path.join("schedstat"));
            }
        }
        Ok(ProcessorClocks { process, background })
    }

    /// The time so far. It is complete for a process that has ended and was not waited for.
    pub(crate) fn spent(&self) -> Result<ProcessorTime> {
        let total = Duration::from(clock_gettime(self.process).map_err(failed)? as TimeSpec);
        let background = self.background.iter().map(running_time).sum::<Result<Duration>>()?;
        Ok(ProcessorTime { total, background })
    }

    /// The time of the whole process so far.
    pub(crate) fn total(&self) -> Result<Duration> {
        clock_gettime(self.process).map(Duration::from).map_err(failed)
    }
}

fn failed(errno: nix::Error) -> Error {
    Error::io("cannot read the processor time of a server", &errno.into())
}

/// The name of a thread; `None` if it has ended.
fn name(task: &std::path::Path) -> Result<Option<String>> {
    present(std::fs::read_to_string(task.join("comm")))
}

fn is_background(name: &str) -> bool {
    let name = name.trim();
    name.starts_with(THREAD_PREFIX) && !FOREGROUND.contains(&name)
}

/// The first number of `schedstat` is the time on a processor, in nanoseconds. An ended thread
/// counts as zero.
fn running_time(path: &PathBuf) -> Result<Duration> {
    let Some(text) = present(std::fs::read_to_string(path))? else { return Ok(Duration::ZERO) };
    let nanos = text.split(' ').next().unwrap_or(&text).parse();
    nanos
        .map(Duration::from_nanos)
        .map_err(|_| Error::new(Kind::Other, format!("cannot use {}", path.display())).found(text.trim()))
}

/// The text that was read; `None` if the thread has ended.
fn present(read: std::io::Result<String>) -> Result<Option<String>> {
    match read {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        // The thread ended between open and read.
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(None),
        Err(e) => Err(Error::io("cannot read about a thread", &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn background_threads_are_counted_apart() {
        let (begin, end) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel::<()>());
        let work = move || {
            begin.1.recv().unwrap();
            (0..30_000_000u64).for_each(|n| _ = black_box(n));
            end.0.send(()).unwrap();
            begin.1.recv().unwrap_err();
        };
        let thread = std::thread::Builder::new().name("lacuna-commit".into()).spawn(work).unwrap();
        // A thread sets its name when it starts.
        std::thread::sleep(Duration::from_millis(50));
        let clocks = ProcessorClocks::of(std::process::id()).unwrap();
        let before = clocks.spent().unwrap();
        begin.0.send(()).unwrap();
        end.1.recv().unwrap();
        // The kernel accounts the time of a thread when it stops running.
        std::thread::sleep(Duration::from_millis(50));
        let spent = clocks.spent().unwrap().since(before);
        assert!(spent.background > Duration::ZERO && spent.total >= spent.background, "{spent:?}");
        drop(begin.0);
        thread.join().unwrap();
    }

    #[test]
    fn threads_are_classified_by_name() {
        assert!(
            is_background("lacuna-commit\n") && !is_background("lacuna-nbd\n") && !is_background("nbdkit\n")
        );
    }
}
