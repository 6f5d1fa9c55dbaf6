//! The system calls that have no safe wrapper: the only `unsafe` of this crate.

use lacuna_mount::proc::{descriptors, threads};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::OnceLock;

/// From `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Splits the process in two. Gives the child's process number in the parent and `None` in the
/// child. Refused while the process has more than one thread, because locks held by the others
/// would stay locked for ever in the child.
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

/// Puts `file` in the place of standard input, output and error.
pub(crate) fn replace_standard_streams(file: impl AsFd) -> io::Result<()> {
    let from = file.as_fd().as_raw_fd();
    for to in 0..=2 {
        // SAFETY: `from` is open for the length of the call, and nothing in Rust owns the numbers 0
        // to 2.
        if unsafe { libc::dup2(from, to) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A descriptor that was open when the process started, and what it was open on.
struct Inherited {
    number: RawFd,
    file: (u64, u64),
}

/// Notes once.
static INHERITED: OnceLock<Vec<Inherited>> = OnceLock::new();

/// Notes which descriptors the process has beside the standard streams, before it opens any of its
/// own: [`daemonize`](crate::daemonize) lets them go. A lock or a pipe that a shell keeps in one
/// would otherwise be held by the server for its life.
pub fn note_inherited_descriptors() {
    INHERITED.get_or_init(|| {
        // Without /proc nothing is noted, and nothing is mounted either.
        let numbers = descriptors().into_iter().filter(|number| *number > 2);
        numbers.filter_map(|number| Some(Inherited { number, file: open_on(number)? })).collect()
    });
}

/// What a descriptor is open on, and nothing if it is closed or is to be closed in programs that
/// are started: what this program opens is.
fn open_on(number: RawFd) -> Option<(u64, u64)> {
    // SAFETY: asks for flags by number, and touches no memory.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return None;
    }
    let mut about = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the system fills the structure, or says that it did not; zeroed bytes are one as
    // well.
    let about = unsafe { (libc::fstat(number, about.as_mut_ptr()) == 0).then(|| about.assume_init())? };
    Some((about.st_dev, about.st_ino))
}

/// Closes the descriptors that the process was started with and still has, beside the standard
/// streams.
pub(crate) fn close_inherited_descriptors() {
    for inherited in INHERITED.get().into_iter().flatten() {
        if open_on(inherited.number) == Some(inherited.file) {
            // SAFETY: this process was started with the descriptor, and never gave it to anything
            // that would close it.
            unsafe { libc::close(inherited.number) };
        }
    }
}

/// Ignores the signal that ends a process whose file would become longer than its limit: the write
/// fails with EFBIG, which the caller then sees. Programs that are started later ignore it as well.
pub fn ignore_file_size_signal() {
    // SAFETY: to ignore a signal installs no handler, and touches no memory of the process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Lets root find programs where the system keeps its own first
/// ([`search_path`](lacuna_mount::search_path)), also those that libraries start by their names.
/// Called before any thread is started: with more than one nothing changes, and nothing where they
/// cannot be counted, for want of /proc, without which nothing is mounted either.
pub fn find_programs_of_the_system() {
    if !rustix::process::geteuid().is_root() || !threads().is_ok_and(|threads| threads == 1) {
        return;
    }
    // SAFETY: the process has a single thread, so nothing else reads the environment meanwhile.
    unsafe {
        std::env::set_var("PATH", lacuna_mount::search_path());
        std::env::remove_var("FUSERMOUNT_PATH");
    }
}

/// How many bytes the process has sent to devices: those of /proc/self/io, which a process with
/// secrets that is not root's may not read. Zero where the kernel does not count them.
pub fn bytes_sent_to_devices() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a place of the length that the call fills, and every byte pattern, zeros
    // too, is a value of its type.
    let blocks = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_oublock
    };
    // The kernel counts in units of 512 bytes.
    u64::try_from(blocks).unwrap_or(0).saturating_mul(512)
}

/// Tells the kernel that the calling thread, and every thread and process it starts from now on,
/// carries the writes of a block device: when it needs memory, the kernel will not try to get some
/// by writing to that very device and so wait for itself. Gives whether the kernel agreed; it needs
/// `CAP_SYS_RESOURCE`.
pub fn become_io_flusher() -> bool {
    // SAFETY: this option takes plain numbers and touches no memory of the process.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0 }
}
