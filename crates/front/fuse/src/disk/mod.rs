//! A disk as a file, and as a mounted file system.

mod changes;
mod filesystem;
mod mounted_disk;
mod request;

pub use mounted_disk::MountedDisk;
pub use request::DiskRequest;
