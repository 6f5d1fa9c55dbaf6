//! A mount point that a server made. Without permissions below the mount, it takes no files when
//! the mount is gone, and it is removed with the mount.

use crate::file::FileIdentity;
use lacuna_contracts::{Error, Result};
use lacuna_mount::is_mounted;
use rustix::fs::{Mode, OFlags, fchmod};
use rustix::process::geteuid;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The mode until a mount covers it: fusermount3 mounts only where its user may write.
const OPEN: u32 = 0o700;

/// A directory that was made for a mount. Dropping it removes it, if nothing is mounted there.
pub struct MadeMountpoint {
    path: PathBuf,
    identity: FileIdentity,
    /// The directory below the mount; `None` once its permissions are gone.
    directory: Option<File>,
}

impl MadeMountpoint {
    /// Makes the directory at a canonical path. `None` if there is one already.
    ///
    /// For users other than root, an empty directory of theirs without permissions is made anew: a
    /// server made it, and the machine stopped before it was removed. They cannot mount on it.
    pub fn make(path: &Path) -> Result<Option<Self>> {
        let failed = |e: &io::Error| Error::io(format!("cannot make the mount point {}", path.display()), e);
        if is_mounted(path)? {
            return Ok(None);
        }
        match fs::symlink_metadata(path) {
            Ok(about) if is_left(&about) => fs::remove_dir(path).map_err(|e| failed(&e))?,
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(failed(&e)),
        }
        DirBuilder::new().mode(OPEN).create(path).map_err(|e| failed(&e))?;
        let opened =
            open(path).and_then(|directory| Ok((FileIdentity::of(&directory.metadata()?), directory)));
        match opened {
            Ok((identity, directory)) => {
                Ok(Some(MadeMountpoint { path: path.to_owned(), identity, directory: Some(directory) }))
            }
            Err(e) => {
                let _stays = fs::remove_dir(path);
                Err(failed(&e))
            }
        }
    }

    /// The identity of the directory.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Takes all permissions away from the directory, which a mount covers by now. This has no
    /// effect on a file system without permissions.
    pub fn forbid(&mut self) {
        if let Some(directory) = self.directory.take() {
            let _kept = fchmod(&directory, Mode::empty());
        }
    }

    /// Removes the directory as dropping does. Errors: it cannot be removed.
    pub fn remove(self) -> Result<()> {
        remove(&self.path, self.identity)
    }
}

impl Drop for MadeMountpoint {
    fn drop(&mut self) {
        // `MadeMountpoint::remove` reports the error.
        let _stays = remove(&self.path, self.identity);
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

/// The bits of a mode that `chmod` changes.
const ALL_BITS: u32 = 0o7777;

/// Whether a directory looks like one that a server made and that a stop of the machine left. Root
/// can mount on such a directory as it is.
fn is_left(about: &Metadata) -> bool {
    let (user, mode) = (geteuid(), about.permissions().mode());
    about.is_dir() && mode & ALL_BITS == 0 && !user.is_root() && about.uid() == user.as_raw()
}

/// Removes the directory at `path` if a server made it, and it is still the same directory. It
/// stays if something is mounted there, or if it has entries, which belong to another program.
///
/// Errors: it cannot be inspected or removed.
pub(crate) fn remove(path: &Path, made: FileIdentity) -> Result<()> {
    let failed = |e: &io::Error| Error::io(format!("cannot remove the mount point {}", path.display()), e);
    if is_mounted(path)? {
        return Ok(());
    }
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() && FileIdentity::of(&about).is_same(made) => {}
        Ok(_) => return Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(&e)),
    }
    match fs::remove_dir(path) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => Ok(()),
        removed => removed.map_err(|e| failed(&e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_made_directory_takes_no_files_and_goes_with_its_server() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().canonicalize().unwrap().join("mnt");
        let mut made = MadeMountpoint::make(&path).unwrap().unwrap();
        assert_eq!(mode(&path), OPEN);
        // A directory that exists is left to its owner.
        assert!(MadeMountpoint::make(&path).unwrap().is_none());
        made.forbid();
        assert_eq!(mode(&path), 0);
        made.remove().unwrap();
        assert!(!path.exists());
        drop(MadeMountpoint::make(&path).unwrap());
        assert!(!path.exists());
        assert!(MadeMountpoint::make(&path.join("below")).is_err());
    }

    #[test]
    fn only_the_directory_that_was_made_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().canonicalize().unwrap().join("mnt");
        let made = MadeMountpoint::make(&path).unwrap().unwrap();
        let identity = made.identity();
        fs::write(path.join("file"), b"of a program").unwrap();
        drop(made);
        remove(&path, identity).unwrap();
        assert!(path.join("file").exists());
        fs::rename(&path, path.with_file_name("moved")).unwrap();
        fs::create_dir(&path).unwrap();
        remove(&path, identity).unwrap();
        assert!(path.exists());
        fs::remove_dir(&path).unwrap();
        remove(&path, identity).unwrap();
    }

    #[test]
    fn a_directory_that_a_stop_of_the_machine_left_is_made_anew() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().canonicalize().unwrap().join("mnt");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).unwrap();
        let about = fs::symlink_metadata(&path).unwrap();
        assert_eq!(is_left(&about), !geteuid().is_root());
        if geteuid().is_root() {
            assert!(MadeMountpoint::make(&path).unwrap().is_none());
        } else {
            drop(MadeMountpoint::make(&path).unwrap().unwrap());
            assert!(!path.exists());
        }
    }
}
