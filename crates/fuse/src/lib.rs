//! Serves a disk as a file, and as a mounted file system.
//!
//! One job: to carry a [`lacuna_core::Disk`] through FUSE. In raw mode the FUSE mount holds one regular file,
//! `disk`, and a text file of counters, `status`. Otherwise a loop device is put on that file and its file
//! system is mounted where the person asked ([`Opened`]), until someone closes it ([`close`]).
//!
//! Invariants kept here:
//! - The kernel caches nothing of the FUSE file but what a program maps into its memory: every write has reached the disk
//!   before it is acknowledged, so that `fsync` is exactly [`lacuna_core::Disk::flush`]. What was changed in a mapping reaches
//!   the disk with `msync` or `fsync`, or when the mapping ends.
//! - Nothing in use is torn away: unmounting is never lazy while the server lives. What is busy stays mounted
//!   and served, and the error names who uses it.
//! - A server holds the lock of its run directory for its whole life. Whoever gets the lock knows the server
//!   to be gone, whatever process numbers say.
//! - No child process is started from a thread that serves FUSE requests, so a child that waits for the
//!   mounted file system never waits for itself.
//! - What appears in mount tables and records does not depend on how many levels a disk has.
#![warn(missing_docs)]

mod close;
mod control;
mod counters;
mod daemon;
mod filesystem;
mod loop_device;
mod mkfs;
mod mount_table;
mod open;
mod outcome;
mod run_directory;
mod session;
mod shell_word;
mod system_call;
mod tool;
mod users;
mod watch;

pub use close::{Closed, close, died, running, status};
pub use counters::Counters;
pub use daemon::{Meanwhile, ReadyPipe, Side, Started, daemonize};
pub use open::{Log, OpenRequest, Opened, Stopper, check_mountpoint};
pub use run_directory::{Record, default_run_base, fnv1a};
pub use shell_word::shell_word;
pub use system_call::become_io_flusher;
