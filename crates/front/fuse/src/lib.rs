//! Serves a disk as a file and as a mounted file system, and mounts a vault.
//!
//! One job: to serve a [`lacuna_contracts::Disk`] or a [`lacuna_vault::Vault`] through FUSE, until
//! a user unmounts it or a client closes it ([`lacuna_daemon::close`]). In raw mode the mount of a
//! disk holds one regular file, `disk`, and a text file of counters, `status`. Otherwise a loop
//! device is attached to that file, or a program serves it, and its file system is mounted at the
//! requested directory ([`MountedDisk`]). A vault is a file system itself ([`MountedVault`]).
//! [`MountServer`] serves either.
//!
//! Invariants:
//! - No child process is started from a thread that serves FUSE requests, so a child that waits for
//!   the mounted file system never waits for itself.
//!
//! Of a disk:
//! - The kernel caches nothing of the FUSE file except the pages that programs map: every write has
//!   reached the disk before it is acknowledged, so that `fsync` is exactly
//!   [`lacuna_contracts::Disk::flush`]. Changes in a mapping reach the disk with `msync` or
//!   `fsync`, or when the mapping ends.
//!
//! Of a vault:
//! - One mount owns the vault, so the kernel may cache everything it has seen without a time limit:
//!   contents, names, missing names, attributes, targets of symbolic links, and writes.
//! - The kernel owns length and change times of a regular file while it knows the file (write-back
//!   cache): its values are passed to the vault, and nothing here changes them without the kernel.
//! - The kernel alone checks access, by permission bits and access control lists. The vault keeps
//!   both in agreement, and gives new nodes the lists that they inherit.
//! - `fsync` returns after the vault's `fsync`, and the kernel has sent every write that it held
//!   back before that.
//! - A deleted node is served until the kernel forgets it: open files with their content, every
//!   other node with its attributes.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod device;
mod disk;
mod server;
mod session;
mod session_reporter;
mod use_count;
mod vault;

pub use disk::{DiskRequest, MountedDisk};
pub use server::{MountServer, Stopper};
pub use vault::{MountedVault, VaultRequest};
