//! Where ciphertext rests: flat bytes, or numbered objects, each behind one small trait, the seam
//! at which tests put faults.
//!
//! Invariants kept here:
//! - A medium knows nothing of keys; whatever it is given may be read by the adversary.
//! - Reads return exactly what was asked or an error; a short read or write of the system is
//!   finished or reported, never passed on.
//! - One process at a time: a medium opened for writing holds an exclusive lock until it is
//!   dropped.
//! - Reading a file leaves its access time alone wherever the system lets us.
//! - A discreet read leaves nothing in the system's cache wherever it lets us, and makes the system
//!   write nothing.
//! - `unsafe` is confined to two requests to block devices, and one about quotas.
#![deny(unsafe_code)]

mod block_device;
mod direct;
mod discreet;
mod disk_folder;
mod file;
mod folder;
mod medium;
mod memory;
mod memory_objects;
mod memory_pages;
mod object;
mod opening;
mod path_only;
mod pieces;
mod quota;
mod runs;
mod striped;
mod unsynced;

pub use disk_folder::{DiskFolder, LOCK as LOCK_FILE, forget_cached};
pub use file::FileMedium;
pub use folder::{Folder, FolderFile, Space, check_name};
pub use medium::{Medium, ReadExtent, WriteExtent};
pub use memory::MemoryMedium;
pub use memory_objects::{MemoryObject, MemoryObjects};
pub use object::{Found, Key, Keys, ObjectStore, Query, SnapshotId, Step, Transaction};
pub use opening::{Access, Links, open_to_look};
pub use path_only::path_only;
pub use pieces::{check_range, pieces};
pub use runs::near_runs;
pub use striped::StripedMedium;
