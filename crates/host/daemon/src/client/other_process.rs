//! Another process, by a descriptor that stands for it alone. Its number may be that of a third
//! process as soon as it has ended.

use crate::record::Record;
use lacuna_mount::proc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A process that was running when it was found.
pub(crate) struct OtherProcess {
    number: u32,
    /// Becomes readable when the process has ended with all its threads.
    descriptor: OwnedFd,
}

impl OtherProcess {
    /// The running process with this number; `None` if it has ended.
    pub(crate) fn of(number: u32) -> io::Result<Option<OtherProcess>> {
        let Some(process) = i32::try_from(number).map_or(None, Pid::from_raw) else { return Ok(None) };
        match pidfd_open(process, PidfdFlags::empty()) {
            Err(Errno::SRCH) => Ok(None),
            descriptor => Ok(Some(OtherProcess { number, descriptor: descriptor? })),
        }
    }

    /// The process of the server with this record. `None` if it has ended, or if another process
    /// has its number here: the number was used again, or the server is in another PID namespace,
    /// such as that of a container.
    pub(crate) fn of_server(record: &Record) -> io::Result<Option<OtherProcess>> {
        let Some(process) = OtherProcess::of(record.pid)? else { return Ok(None) };
        // The descriptor comes first: if the start is that of the server, it stands for the server.
        // If this user may not see the process, its number decides alone.
        let start = proc::start_until_gone(record.pid);
        let is_other = matches!((start, record.start), (Ok(Some(now)), Some(then)) if now != then);
        Ok((!is_other).then_some(process))
    }

    /// The number that it has, or had.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Sends it a signal. A process that has ended needs none.
    pub(crate) fn send(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.descriptor, signal) {
            Err(Errno::SRCH) => Ok(()),
            sent => sent.map_err(io::Error::from),
        }
    }

    /// Waits for its end. False if it runs on after this limit.
    pub(crate) fn has_ended_within(&self, limit: Duration) -> io::Result<bool> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&left)) {
                Ok(ended) => return Ok(ended > 0),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_end::GONE_WITHIN;
    use std::process::Command;

    #[test]
    fn the_end_of_a_process_is_awaited() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = OtherProcess::of(child.id()).unwrap().unwrap();
        assert!(process.number() == child.id() && !process.has_ended_within(Duration::ZERO).unwrap());
        // A stopped process ends too.
        process.send(Signal::STOP).unwrap();
        process.send(Signal::KILL).unwrap();
        assert!(process.has_ended_within(GONE_WITHIN).unwrap());
        child.wait().unwrap();
        process.send(Signal::KILL).unwrap();
        for none in [child.id(), 0, u32::MAX] {
            assert!(OtherProcess::of(none).unwrap().is_none(), "{none}");
        }
    }
}
