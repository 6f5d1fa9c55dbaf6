//! Serves a disk as a file, and as a mounted file system.
//!
//! One job: to carry a [`lacuna_core::Disk`] through FUSE. In raw mode the FUSE mount holds one regular file,
//! `disk`, and a text file of counters, `status`. Otherwise a loop device is put on that file and its file
//! system is mounted where the person asked ([`Opened`]), until someone closes it ([`lacuna_daemon::close`]).
//!
//! Invariants kept here:
//! - The kernel caches nothing of the FUSE file but what a program maps into its memory: every write has reached the disk
//!   before it is acknowledged, so that `fsync` is exactly [`lacuna_core::Disk::flush`]. What was changed in a mapping reaches
//!   the disk with `msync` or `fsync`, or when the mapping ends.
//! - No child process is started from a thread that serves FUSE requests, so a child that waits for the
//!   mounted file system never waits for itself.
#![warn(missing_docs)]

mod filesystem;
mod open;
mod session;

pub use open::{OpenRequest, Opened, Stopper};
