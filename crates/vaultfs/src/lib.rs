//! A vault as a mounted file system, over FUSE.
//!
//! One job: to carry a [`lacuna_vault::Vault`] through FUSE ([`Mounted`]), until someone unmounts it or closes it
//! ([`lacuna_daemon::close`]).
//!
//! Invariants kept here:
//! - One mount owns the vault, so the kernel may cache everything it has seen for as long as it likes: contents, names,
//!   names that are not there, attributes, targets of symbolic links, and writes.
//! - The kernel owns length and times of change of a regular file while it knows the file (write-back cache): what it
//!   says of them is carried to the vault, and nothing here changes them behind its back.
//! - `fsync` returns when the vault's has: every write that the kernel held back has reached the vault before.
//! - What was deleted answers until the kernel forgets it: open files with their content, everything else with its
//!   attributes.
//! - No child process is started from a thread that serves requests, so a child that waits for the mounted file system
//!   never waits for itself.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod attributes;
mod copy;
mod device;
mod filesystem;
mod front;
mod listing;
mod mounted;
mod nodes;
mod seek;
mod served;
mod session;

pub use mounted::{MountRequest, Mounted, Stopper};
