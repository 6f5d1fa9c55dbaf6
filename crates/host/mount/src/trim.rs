//! Trims a mounted file system.

use crate::system_call;
use rustix::fs::syncfs;
use std::fs::File;
use std::io;
use std::path::Path;

/// Makes the file system at `mountpoint` discard all free blocks. Must not be called by the process
/// that serves it.
pub fn trim(mountpoint: &Path) -> io::Result<()> {
    let root = File::open(mountpoint)?;
    // Blocks can be discarded only after the transaction that freed them is committed.
    syncfs(&root)?;
    Ok(system_call::trim(&root)?)
}
