//! A path-only handle (`O_PATH`) on an open file, independent of the file's name.

use lacuna_contracts::{Error, Kind, Result};
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

const FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A path-only handle (`O_PATH`) on an open file or device. It neither reads nor writes, and holds
/// no lock. `path`, the path at which `file` was opened, may lead elsewhere by now.
///
/// Errors: [`Kind::Changed`] if only the path can be used (without `/proc`) and it leads elsewhere.
pub fn path_only(file: &File, path: &Path) -> Result<OwnedFd> {
    let by_file = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(by_file, FLAGS, Mode::empty()).or_else(|_| by_name(file, path))
}

fn by_name(file: &File, path: &Path) -> Result<OwnedFd> {
    let failed = |e: Errno| Error::io(format!("cannot track {}", path.display()), &e.into());
    let found = open(path, FLAGS, Mode::empty()).map_err(failed)?;
    let (own, other) = (fstat(file).map_err(failed)?, fstat(&found).map_err(failed)?);
    if (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino) {
        return Ok(found);
    }
    Err(Error::new(Kind::Changed, format!("cannot open {}", path.display()))
        .found("another file at this path than a moment ago")
        .hint("try again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_handle_follows_the_file_and_not_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, "mine").unwrap();
        let file = File::open(&path).unwrap();
        let inode = |fd: OwnedFd| fstat(&fd).unwrap().st_ino;
        assert_eq!(inode(by_name(&file, &path).unwrap()), file.metadata().unwrap().ino());
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        std::fs::write(&path, "another").unwrap();
        assert_eq!(inode(path_only(&file, &path).unwrap()), file.metadata().unwrap().ino());
        assert_eq!(by_name(&file, &path).unwrap_err().kind(), Kind::Changed);
    }
}
