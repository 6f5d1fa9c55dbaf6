//! The keeper of a server that is being closed. It has the listening sockets and the claim on the
//! disk for a moment after its server has ended.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;

/// The time in which a keeper ends after its last server.
const ENDS_WITHIN: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// A descriptor of the process, which becomes readable when the process has ended.
pub(crate) struct KeeperProcess(OwnedFd);

impl KeeperProcess {
    /// The process with this number. `None` if it has ended.
    pub(crate) fn of(number: u32) -> Option<KeeperProcess> {
        let process = Pid::from_raw(number.cast_signed())?;
        pidfd_open(process, PidfdFlags::empty()).ok().map(KeeperProcess)
    }

    /// Waits for its end.
    pub(crate) fn wait(&self) {
        // After this time the next opening of the disk says that the keeper has it.
        let _waited = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&ENDS_WITHIN));
    }
}
