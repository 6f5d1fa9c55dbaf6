//! From the file of a disk to a mounted file system, and back: the methods to mount it, what the
//! kernel has mounted, and unmounting.
//!
//! A front end gives a disk as a file, mounts it with [`Mounted`] by one of the [`MountMethod`]s,
//! and keeps in a [`Watch`] what its threads see of the session. [`Growth`] makes the file system
//! as large as a disk that has grown. [`CoverRetry`] lies between the file system and a level that
//! has to do with cover. The modules [`loop_device`], [`mount_table`], [`proc`], [`tool`] and
//! [`unmount`] also serve the clearing away of what a dead server left.
//!
//! Invariants kept here:
//! - Nothing in use is torn away: unmounting is never lazy while the server lives. What is busy
//!   stays mounted and served, and the error names who uses it.
//! - What appears in mount tables does not depend on how many levels a disk has.
//! - No thread of a server that has `/dev/fuse` open waits for the server's own file system: a
//!   program does, which unmounts and syncs, or a thread apart, which attaches loop devices. A
//!   server that is killed ends.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod cover_retry;
mod growth;
pub mod loop_device;
mod mkfs;
mod mount_method;
pub mod mount_table;
mod mounted;
pub mod proc;
mod program_mount;
mod repair;
mod system_call;
pub mod tool;
mod trim;
pub mod unmount;
mod users;
mod watch;

pub use cover_retry::{Cover, CoverRetry, CoverSource};
pub use growth::Growth;
pub use mkfs::check_type;
pub use mount_method::{MountMethod, Program, lacking_for_fuse};
pub use mount_table::{FUSE_SOURCE, has_automount, is_automount, is_mounted, is_mounted_elsewhere};
pub use mounted::{DiskFile, Follow, MountRequest, Mounted};
pub use tool::search_path;
pub use trim::trim;
pub use unmount::{RELEASE_LIMIT, unmount_fuse};
pub use watch::{ServerLog, Watch};
