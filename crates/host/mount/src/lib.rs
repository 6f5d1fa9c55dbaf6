//! Mounts the file system on a disk and unmounts it: mount methods, mount table, unmounting.
//!
//! A front end serves a disk as a file, mounts it with [`Mounted`] by one of the [`MountMethod`]s,
//! and records session events of its threads in a [`Watch`]. [`Growth`] grows the file system after
//! its disk has grown. [`CoverRetry`] lies between the file system and a level that gives or needs
//! cover. The modules [`loop_device`], [`mount_table`], [`proc`], [`tool`] and [`unmount`] also
//! serve to clean up after a dead server.
//!
//! Invariants kept here:
//! - A mount in use is never unmounted lazily while the server lives. It stays mounted and served,
//!   and the error names its users.
//! - The content of mount tables does not depend on the number of levels of a disk.
//! - No thread of a server that has `/dev/fuse` open waits for the server's own file system. A
//!   child process unmounts and syncs, and a thread without that descriptor attaches loop devices.
//!   So a server that is killed always ends.
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
pub use mkfs::{NO_FILE_SYSTEM, check_type};
pub use mount_method::{MountMethod, Program, lacking_for_fuse};
pub use mount_table::{
    FUSE_SOURCE, FUSE_SUBTYPE, has_automount, is_automount, is_mounted, is_mounted_elsewhere,
};
pub use mounted::{DiskFile, Follow, MountRequest, Mounted};
pub use tool::search_path;
pub use trim::trim;
pub use unmount::{RELEASE_LIMIT, unmount_fuse};
pub use watch::{ServerLog, Watch};
