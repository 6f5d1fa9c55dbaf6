//! The system calls that have no safe wrapper: the only `unsafe` of this crate.

use lacuna_mount::proc::{descriptors, ignores, threads};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

/// Forks. Returns the child's process number in the parent and `None` in the child. Errors: the
/// process has more than one thread, because locks held by other threads would stay locked for ever
/// in the child.
pub(crate) fn fork() -> io::Result<Option<u32>> {
    let threads = threads()?;
    if threads != 1 {
        return Err(io::Error::other(format!("the process has {threads} threads, and may have only one")));
    }
    // SAFETY: the process has a single thread, so the child's memory is consistent and no lock is
    // held.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => Ok(None),
        pid if pid > 0 => Ok(Some(pid.unsigned_abs())),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Signals that the keeper takes from a descriptor, while it does not act on them otherwise.
pub(crate) struct KeptSignals {
    descriptor: OwnedFd,
    /// The signals that were blocked before.
    before: libc::sigset_t,
}

/// A signal that came.
pub(crate) struct KeptSignal {
    pub(crate) number: i32,
    /// Whether the kernel sent it to all processes of the terminal.
    pub(crate) from_terminal: bool,
}

impl KeptSignals {
    /// Blocks the ends of children, and INT, TERM and HUP, but not a HUP that this process ignores:
    /// while it is blocked the system would report it all the same.
    pub(crate) fn block() -> io::Result<KeptSignals> {
        // SAFETY: installs no handler. If the parent of this process ignored the ends of children,
        // the system would not report them.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let hup = (!ignores(libc::SIGHUP)).then_some(libc::SIGHUP);
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the calls fill the two sets, which live on this stack.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM].into_iter().chain(hup) {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            set.assume_init()
        };
        // SAFETY: both sets are valid for the length of the call.
        let before = unsafe {
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr()) < 0 {
                return Err(io::Error::last_os_error());
            }
            before.assume_init()
        };
        // SAFETY: the set is valid for the length of the call, which returns a new descriptor.
        let descriptor =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(KeptSignals { descriptor, before })
    }

    /// Lets signals act again, in a child of the keeper.
    pub(crate) fn unblock(&self) {
        // SAFETY: the set is valid for the length of the call.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }

    /// The next signal that came. `None` if there is none.
    pub(crate) fn next(&self) -> io::Result<Option<KeptSignal>> {
        let mut about = std::mem::MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes to the structure, for which every value is
        // valid.
        let read = unsafe { libc::read(self.descriptor.as_raw_fd(), about.as_mut_ptr().cast(), size) };
        if read < 0 {
            let e = io::Error::last_os_error();
            return if e.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(e) };
        }
        // SAFETY: zeroed, and filled by the call.
        let about = unsafe { about.assume_init() };
        let from_terminal = about.ssi_code == libc::SI_KERNEL;
        Ok(Some(KeptSignal { number: about.ssi_signo.cast_signed(), from_terminal }))
    }
}

impl AsFd for KeptSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A descriptor that was open when the process started: its number, and its file by device and
/// inode.
struct Inherited {
    number: RawFd,
    file: (u64, u64),
}

/// Filled once, by [`note_inherited_descriptors`].
static INHERITED: OnceLock<Vec<Inherited>> = OnceLock::new();

/// Records the descriptors that the process inherited beside the standard streams; call it before
/// the process opens any of its own. [`daemonize`](crate::daemonize) closes them in the server,
/// which would otherwise hold a lock or a pipe of the shell for its whole life.
pub fn note_inherited_descriptors() {
    INHERITED.get_or_init(|| {
        // Without /proc the list stays empty. Then nothing can be mounted either.
        let numbers = descriptors().into_iter().filter(|number| *number > 2);
        numbers.filter_map(|number| Some(Inherited { number, file: inheritable_file_id(number)? })).collect()
    });
}

/// The device and inode of an open descriptor. None if the descriptor is closed or has the
/// close-on-exec flag, as all descriptors have that this program opens.
fn inheritable_file_id(number: RawFd) -> Option<(u64, u64)> {
    // SAFETY: asks for flags by number, and touches no memory.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return None;
    }
    let mut about = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fstat fills the structure or fails; zeroed bytes are a valid value as well.
    let about = unsafe { (libc::fstat(number, about.as_mut_ptr()) == 0).then(|| about.assume_init())? };
    Some((about.st_dev, about.st_ino))
}

/// Closes the inherited descriptors that are still open on the same file, except the standard
/// streams.
pub(crate) fn close_inherited_descriptors() {
    for inherited in INHERITED.get().into_iter().flatten() {
        if inheritable_file_id(inherited.number) == Some(inherited.file) {
            // SAFETY: the process inherited the descriptor, and gave it to no code that would close
            // it.
            unsafe { libc::close(inherited.number) };
        }
    }
}

/// Ignores SIGXFSZ, which kills a process when a file would exceed its size limit: the write fails
/// with EFBIG instead, which the caller reports. Child processes inherit this.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler, and touches no memory of the process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Makes variables that a service manager set for this process's parent count for this process.
/// Call it after a fork, before any thread is started.
pub(crate) fn inherit_watchdog() {
    if std::env::var_os("WATCHDOG_PID").is_none() || !threads().is_ok_and(|threads| threads == 1) {
        return;
    }
    // SAFETY: the process has a single thread, so no other thread reads the environment.
    unsafe { std::env::set_var("WATCHDOG_PID", std::process::id().to_string()) };
}

/// For root, sets `PATH` so that programs are found in the system's own directories first
/// ([`search_path`](lacuna_mount::search_path)), including programs that libraries start by name,
/// and removes `FUSERMOUNT_PATH`. Call it before any thread is started. It changes nothing if the
/// process has more than one thread, or if the threads cannot be counted for want of /proc, without
/// which nothing is mounted either.
pub fn find_programs_of_the_system() {
    if !rustix::process::geteuid().is_root() || !threads().is_ok_and(|threads| threads == 1) {
        return;
    }
    // SAFETY: the process has a single thread, so no other thread reads the environment.
    unsafe {
        std::env::set_var("PATH", lacuna_mount::search_path());
        std::env::remove_var("FUSERMOUNT_PATH");
    }
}

/// The number of bytes that the process has sent to block devices. /proc/self/io has the same
/// number, but a process with secrets that is not root's may not read it. Zero if the kernel does
/// not count.
pub fn bytes_sent_to_devices() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has the size that the call fills, and every byte pattern, including zeros, is
    // a valid value of its type.
    let blocks = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_oublock
    };
    // The kernel counts in units of 512 bytes.
    u64::try_from(blocks).unwrap_or(0).saturating_mul(512)
}
