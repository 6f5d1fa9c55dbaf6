//! Serves a disk as a file and as a mounted file system, and mounts a vault.
//!
//! One job: to carry a [`lacuna_contracts::Disk`] or a [`lacuna_vault::Vault`] through FUSE, until
//! someone unmounts it or closes it ([`lacuna_daemon::close`]). In raw mode the mount of a disk
//! holds one regular file, `disk`, and a text file of counters, `status`. Otherwise a loop device
//! is put on that file, or a program serves it, and its file system is mounted where the person
//! asked ([`MountedDisk`]). A vault is a file system itself ([`MountedVault`]). [`MountServer`]
//! serves either.
//!
//! Invariants kept here:
//! - No child process is started from a thread that serves FUSE requests, so a child that waits for
//!   the mounted file system never waits for itself.
//!
//! Of a disk:
//! - The kernel caches nothing of the FUSE file but what a program maps into its memory: every
//!   write has reached the disk before it is acknowledged, so that `fsync` is exactly
//!   [`lacuna_contracts::Disk::flush`]. What was changed in a mapping reaches the disk with `msync`
//!   or `fsync`, or when the mapping ends.
//!
//! Of a vault:
//! - One mount owns the vault, so the kernel may cache everything it has seen for as long as it
//!   likes: contents, names, names that are not there, attributes, targets of symbolic links, and
//!   writes.
//! - The kernel owns length and times of change of a regular file while it knows the file
//!   (write-back cache): what it says of them is carried to the vault, and nothing here changes
//!   them behind its back.
//! - `fsync` returns when the vault's has: every write that the kernel held back has reached the
//!   vault before.
//! - What was deleted answers until the kernel forgets it: open files with their content,
//!   everything else with its attributes.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod device;
mod disk;
mod reports;
mod server;
mod session;
mod use_count;
mod vault;

pub use disk::{DiskRequest, MountedDisk};
pub use server::{MountServer, Stopper};
pub use vault::{MountedVault, VaultRequest};
