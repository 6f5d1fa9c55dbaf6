//! Giving back what a mounted file system does not use any more.

use crate::system_call;
use rustix::fs::syncfs;
use std::fs::File;
use std::io;
use std::path::Path;

/// Makes the file system at `mountpoint` discard all that was freed on it. For a process that does
/// not serve it.
pub fn trim(mountpoint: &Path) -> io::Result<()> {
    let root = File::open(mountpoint)?;
    // Blocks can be discarded once the transaction that freed them is committed.
    syncfs(&root)?;
    Ok(system_call::trim(&root)?)
}
