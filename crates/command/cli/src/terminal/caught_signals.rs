//! Catches the signals that end, stop or continue the process, and puts the former handlers back.
//!
//! `signal-hook` cannot do this: after its first registration a signal never has its default action
//! again, and Ctrl-C has to end the process while a key is derived.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::low_level::raise;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// The signals that are caught. KILL and STOP cannot be; signals of a fault of the program and
/// real-time signals are not.
const SIGNALS: [i32; 15] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGALRM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGSTKFLT,
    libc::SIGXCPU,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGTSTP,
    libc::SIGCONT,
];

/// The pipe that the handler writes to; -1 if no signals are caught.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// The caught signals of this process, until this is dropped. A process has at most one of these at
/// a time.
pub(crate) struct CaughtSignals {
    former: Vec<(i32, libc::sigaction)>,
    caught: OwnedFd,
    /// Open while the handler may write to it.
    _handler: OwnedFd,
}

impl CaughtSignals {
    /// Catches the signals. A signal that was ignored before (as HUP is with `nohup`) stays
    /// ignored, unless it is one of `even_ignored`.
    pub(crate) fn new(even_ignored: &[i32]) -> io::Result<Self> {
        let (caught, handler) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        PIPE.store(handler.as_raw_fd(), Ordering::SeqCst);
        let mut signals = CaughtSignals { former: Vec::new(), caught, _handler: handler };
        for signal in SIGNALS {
            let former = action_of(signal)?;
            if former.sa_sigaction != libc::SIG_IGN || even_ignored.contains(&signal) {
                signals.former.push((signal, former));
                set(signal, &catching())?;
            }
        }
        Ok(signals)
    }

    /// The next signal that was caught, if there is one.
    pub(crate) fn next_signal(&self) -> io::Result<Option<i32>> {
        let mut signal = [0u8];
        match rustix::io::read(&self.caught, &mut signal) {
            Ok(1..) => Ok(Some(i32::from(signal[0]))),
            Ok(0) | Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The next signal, which is awaited for at most this time.
    pub(crate) fn wait(&self, limit: Duration) -> io::Result<Option<i32>> {
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            if let Some(signal) = self.next_signal()? {
                return Ok(Some(signal));
            }
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(self, PollFlags::IN)], Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl AsFd for CaughtSignals {
    /// Readable once a signal was caught.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.caught.as_fd()
    }
}

impl Drop for CaughtSignals {
    fn drop(&mut self) {
        for (signal, former) in &self.former {
            // The same call with valid values succeeded before.
            let _restored = set(*signal, former);
        }
        PIPE.store(-1, Ordering::SeqCst);
        // A signal that came after the last look is not lost.
        while let Ok(Some(signal)) = self.next_signal() {
            if signal != libc::SIGCONT {
                let _sent = raise(signal);
            }
        }
    }
}

/// The handler: passes the number of the signal on.
extern "C" fn pass_on(signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: `write` is async-signal-safe. It reads one byte that lives long enough, and fails if
    // the pipe is gone or full. The interrupted code gets its `errno` back.
    unsafe {
        let errno = libc::__errno_location();
        let interrupted = *errno;
        libc::write(PIPE.load(Ordering::SeqCst), ptr::from_ref(&byte).cast(), 1);
        *errno = interrupted;
    }
}

/// The action that catches a signal. Interrupted system calls are restarted.
fn catching() -> libc::sigaction {
    let handler: extern "C" fn(libc::c_int) = pass_on;
    // SAFETY: all fields are numbers, an empty set, or a pointer that may be null.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    action
}

/// The present action of a signal.
fn action_of(signal: i32) -> io::Result<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: the call fills `action` if it succeeds, and only then it is read.
    unsafe {
        if libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0 {
            Ok(action.assume_init())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

fn set(signal: i32, action: &libc::sigaction) -> io::Result<()> {
    // SAFETY: the action comes from the system, or has the handler `pass_on`, which is
    // async-signal-safe.
    match unsafe { libc::sigaction(signal, action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
