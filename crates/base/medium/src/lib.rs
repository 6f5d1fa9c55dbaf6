//! Media for ciphertext: flat bytes, numbered objects, or a folder of files, each behind one small
//! trait. Tests inject faults at these traits.
//!
//! Invariants kept here:
//! - A medium knows no keys; the adversary may read all data that it holds.
//! - A read returns exactly the requested bytes or an error; short reads and writes of the system
//!   are completed or reported.
//! - One process at a time: a medium opened for writing holds an exclusive lock until it is
//!   dropped.
//! - Reading a file does not change its access time, if the system permits.
//! - A discreet read leaves nothing in the system's cache, if the system permits, and makes the
//!   system write nothing.
//! - `unsafe` is confined to two requests to block devices, one about quotas, and one to write
//!   cached pages back.
#![deny(unsafe_code)]

mod block_device;
mod direct;
mod disk_folder;
mod dont_cache;
mod file;
mod file_cache;
mod file_limits;
mod file_open;
mod folder;
mod medium;
mod memory;
mod object;
mod path_only;
mod pieces;
mod quota;
mod runs;
mod striped;
mod unsynced;
mod write_back;

pub use disk_folder::{DiskFolder, LOCK as LOCK_FILE, forget_cached};
pub use file::FileMedium;
pub use file_cache::FileStamp;
pub use file_limits::check_takes_len;
pub use file_open::{Access, LinkPolicy, check_can_create, check_takes_files, open_for_inspection};
pub use folder::{Folder, FolderFile, FsSpace, check_name};
pub use medium::{Medium, ReadExtent, WriteExtent};
pub use memory::MemoryMedium;
pub use object::{
    KeySelection, ObjectKey, ObjectStep, ObjectStore, ObjectTransaction, Query, QueryAnswer, SnapshotId,
};
pub use path_only::path_only;
pub use pieces::{check_range, pieces};
pub use runs::near_runs;
pub use striped::StripedMedium;
