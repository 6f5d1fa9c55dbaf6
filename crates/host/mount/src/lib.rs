//! Mounts the file system on a disk and unmounts it: mount methods, mount table, unmounting.
//!
//! A front end serves a disk as a file, mounts it with [`MountedFs`] by one of the
//! [`MountMethod`]s, and records session events of its threads in a [`SessionMonitor`].
//! [`FsResize`] grows the file system after its disk has grown. [`CoverRetry`] lies between the
//! file system and a level that gives or needs cover. The modules [`loop_device`], [`mount_table`],
//! [`proc`], [`command`] and [`unmount`] also serve to clean up after a dead server.
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

pub mod command;
mod cover_retry;
mod fs_resize;
mod fsck;
pub mod loop_device;
mod mkfs;
mod mount_method;
pub mod mount_table;
mod mount_users;
mod mounted_fs;
pub mod proc;
mod program_mount;
mod session_monitor;
mod system_call;
mod trim;
pub mod unmount;

pub use command::search_path;
pub use cover_retry::{CoverRetry, CoverRole, CoverSource};
pub use fs_resize::FsResize;
pub use mkfs::{NO_FILE_SYSTEM, check_type};
pub use mount_method::{MountMethod, Program, lacking_for_fuse};
pub use mount_table::{
    FUSE_SOURCE, FUSE_SUBTYPE, has_automount, is_automount, is_mounted, is_mounted_elsewhere, is_mounted_for,
};
pub use mounted_fs::{DiskFile, MountRequest, MountedFs, ResizeHook};
pub use session_monitor::{ServerLog, SessionMonitor};
pub use trim::trim;
pub use unmount::{RELEASE_LIMIT, unmount_fuse};
