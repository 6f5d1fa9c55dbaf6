//! The place of one run: a directory that goes away with it, the key file, and the names of sockets
//! and disks.

use crate::interrupt::Interrupt;
use crate::program;
use crate::scale::Scale;
use lacuna_contracts::{Error, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What every measurement needs.
pub struct Workspace {
    dir: TempDir,
    /// The `lacuna` command.
    pub(crate) lacuna: PathBuf,
    /// How large and long.
    pub scale: Scale,
    /// Whether to stop.
    pub interrupt: Interrupt,
}

impl Workspace {
    /// A new directory below `parent`.
    pub(crate) fn new(parent: &Path, lacuna: PathBuf, scale: Scale, interrupt: Interrupt) -> Result<Self> {
        let failed = |e| Error::io(format!("cannot use {} for the disks", parent.display()), &e);
        let dir = tempfile::Builder::new().prefix("lacuna-bench-").tempdir_in(parent).map_err(failed)?;
        let work = Workspace { dir, lacuna, scale, interrupt };
        std::fs::write(work.key_file(), "a passphrase for measurements").map_err(failed)?;
        Ok(work)
    }

    /// A file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Bytes that are free on the file system of the disks.
    pub(crate) fn free(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(self.dir.path());
        let stat =
            stat.map_err(|e| Error::io("cannot see how much space is free for the disks", &e.into()))?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// The passphrase of every disk.
    pub(crate) fn key_file(&self) -> PathBuf {
        self.path("key")
    }

    /// The same, as QEMU's programs take it.
    pub(crate) fn secret(&self) -> String {
        format!("secret,id=key,file={}", self.key_file().display())
    }

    /// Waits until the file system holds nothing back, so that no server pays for the one before
    /// it.
    pub(crate) fn settle(&self) -> Result<()> {
        let failed = |e| Error::io("cannot sync the file system of the disks", &e);
        let dir = File::open(self.dir.path()).map_err(failed)?;
        rustix::fs::syncfs(&dir).map_err(|e| failed(e.into()))
    }

    /// Lets ext4 spread the directories made from now on over the disk: it is slow to make files
    /// where many were removed in the last minutes, and nobody should pay for those of the one
    /// before. Elsewhere this means nothing.
    pub(crate) fn spread(&self) {
        let dir = self.dir.path().to_string_lossy();
        let _ = program::runs("chattr", &["+T", &dir]);
    }

    /// Empties the kernel's caches of files.
    pub(crate) fn forget_pages(&self) -> Result<()> {
        let failed = |e| Error::io("cannot empty the kernel's caches", &e).remedy("measure vaults as root");
        self.settle()?;
        std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(failed)
    }

    /// Says on standard error what happens now. An error if somebody wants the run to end.
    pub fn goes_on(&self, what: &str) -> Result<()> {
        eprintln!("{what}");
        self.interrupt.check()
    }
}
