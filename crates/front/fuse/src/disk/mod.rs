//! A disk as a file, and as a mounted file system.

mod filesystem;
mod request;
mod served;

pub use request::DiskRequest;
pub use served::MountedDisk;
