//! An instance: a running server with its disk or vault, and the run directory where other
//! processes find it.
//!
//! Invariant: an instance holds the lock of its run directory for its whole life. Holding the lock
//! proves that the server is dead; process numbers do not.

use crate::dead_server;
use crate::record::Record;
use crate::run_dir::{RunPaths, claim};
use lacuna_contracts::{Error, Kind, Result};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The most servers of this user for one location without a mount point.
const MOST_OF_LOCATION: u32 = 64;

/// A run directory that this process holds. Dropping it removes the directory and then releases the
/// lock.
pub struct Instance {
    paths: RunPaths,
    lock: File,
    /// Whether the files were removed. Files of the same names may belong to another server by now.
    removed: bool,
}

impl Instance {
    /// Claims the instance of a disk or vault that is to be mounted at `mountpoint`, a canonical
    /// path. `base` is the directory of run directories. Cleans up after a dead server at this
    /// mount point.
    ///
    /// Errors: [`Kind::Busy`] while another server has the mount point, and a failure to clean up
    /// after a dead server.
    pub fn of_mount(base: &Path, mountpoint: &Path) -> Result<Self> {
        let instance =
            Self::claim(base, RunPaths::of_mount(base, mountpoint), &mountpoint.display().to_string())?;
        dead_server::clean_up(&instance.paths, None)?;
        Ok(instance)
    }

    /// Claims the instance of a server without a mount point. Several servers may have one
    /// location, if all of them only read.
    ///
    /// Errors: [`Kind::Busy`] if 64 servers have it, and [`Kind::Permission`] if other users can
    /// change the directory of run directories.
    pub fn of_server(base: &Path, location: &str) -> Result<Self> {
        for number in 0..MOST_OF_LOCATION {
            let instance = match Self::claim(base, RunPaths::of_server(base, location, number), location) {
                Err(e) if e.kind() == Kind::Busy => continue,
                taken => taken?,
            };
            // Remove the record of a dead server.
            instance.paths.remove_record()?;
            return Ok(instance);
        }
        Err(Error::new(Kind::Busy, format!("cannot register another server of {location}"))
            .found(format!("{MOST_OF_LOCATION} servers of it"))
            .hint("close one of them first"))
    }

    fn claim(base: &Path, paths: RunPaths, shown: &str) -> Result<Self> {
        let lock = claim(base, &paths, shown)?;
        Ok(Instance { paths, lock, removed: false })
    }

    /// The path of the control socket.
    pub(crate) fn control(&self) -> PathBuf {
        self.paths.control()
    }

    /// Creates the directory on which FUSE is mounted, below the file system of a disk.
    pub fn make_fuse(&self) -> Result<PathBuf> {
        self.paths.make_fuse()
    }

    /// Writes the record atomically. An instance without a record is not found.
    pub fn write(&self, record: &Record) -> Result<()> {
        self.paths.write_record(record)
    }

    /// Removes the run directory and releases the lock, as dropping does. Errors: a file that could
    /// not be removed.
    pub fn end(mut self) -> Result<()> {
        self.removed = true;
        self.paths.remove()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if !self.removed {
            // A failure cannot be reported here; `Instance::end` reports it.
            let _ = self.paths.remove();
        }
        // A child that was started at this moment may still share the open file, and with it the
        // lock.
        let _ = self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{FrontEnd, Identity, MountKind, MountRecord};
    use std::fs;

    fn record(at: &Path) -> Record {
        let mount = MountRecord { mountpoint: at.into(), kind: MountKind::Raw };
        Record::new(
            &Identity { location: "a.img".into(), ..Identity::default() },
            FrontEnd::Fuse(mount),
            false,
        )
    }

    #[test]
    fn a_mount_point_has_one_server() {
        let base = tempfile::tempdir().unwrap();
        let at = Path::new("/mnt/x");
        let first = Instance::of_mount(base.path(), at).unwrap();
        assert_eq!(Instance::of_mount(base.path(), at).err().unwrap().kind(), Kind::Busy);
        Instance::of_mount(base.path(), Path::new("/mnt/y")).unwrap();
        let record = record(at);
        first.write(&record).unwrap();
        let paths = RunPaths::of_mount(base.path(), at);
        assert_eq!(paths.record().unwrap(), Some(record));
        drop(first);
        assert!(paths.lock_file().unwrap().is_none());
        Instance::of_mount(base.path(), at).unwrap().end().unwrap();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_location_may_have_several_servers() {
        let base = tempfile::tempdir().unwrap();
        let all: Vec<Instance> =
            (0..3).map(|_| Instance::of_server(base.path(), "/a.img").unwrap()).collect();
        let mut sockets: Vec<PathBuf> = all.iter().map(Instance::control).collect();
        sockets.dedup();
        assert_eq!(sockets.len(), 3);
        let front = FrontEnd::Nbd { uris: vec!["nbd://localhost".into()] };
        let record = Record::new(&Identity::default(), front, true);
        all[1].write(&record).unwrap();
        assert_eq!(RunPaths::of_server(base.path(), "/a.img", 1).record().unwrap(), Some(record));
        drop(all);
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_number_of_servers_of_a_location_is_limited() {
        let base = tempfile::tempdir().unwrap();
        let of_server = || Instance::of_server(base.path(), "/a.img");
        let all: Vec<Instance> = (0..MOST_OF_LOCATION).map(|_| of_server().unwrap()).collect();
        let refused = of_server().err().unwrap();
        assert!(refused.kind() == Kind::Busy && refused.to_string().contains("64 servers"), "{refused}");
        drop(all);
        of_server().unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_removed_is_reported_and_the_others_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let instance = Instance::of_server(base.path(), "/a.img").unwrap();
        fs::create_dir(instance.control()).unwrap();
        let paths = instance.paths.clone();
        assert!(instance.end().is_err() && paths.lock_file().unwrap().is_none());
    }
}
