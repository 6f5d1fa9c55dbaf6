//! The workspace of one run: a temporary directory, the key file, and the names of sockets and
//! disks.

use crate::interrupt::Interrupt;
use crate::program;
use crate::serving::scale::Scale;
use lacuna_contracts::{Error, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

const NO_KEEPER: &str = "--no-keeper";

/// The environment of every measurement.
pub struct Workspace {
    dir: TempDir,
    /// The `lacuna` command.
    pub(crate) lacuna: PathBuf,
    /// The option of [`Workspace::alone`], once it was asked for.
    alone: OnceLock<Option<&'static str>>,
    /// The sizes and durations of the run.
    pub scale: Scale,
    /// The flag that ends the run.
    pub interrupt: Interrupt,
}

impl Workspace {
    /// A new directory below `parent`.
    pub(crate) fn new(parent: &Path, lacuna: PathBuf, scale: Scale, interrupt: Interrupt) -> Result<Self> {
        let failed = |e| Error::io(format!("cannot use {} for the disks", parent.display()), &e);
        let dir = tempfile::Builder::new().prefix("lacuna-bench-").tempdir_in(parent).map_err(failed)?;
        let work = Workspace { dir, lacuna, alone: OnceLock::new(), scale, interrupt };
        std::fs::write(work.key_file(), "a passphrase for measurements").map_err(failed)?;
        Ok(work)
    }

    /// The option that makes `lacuna serve` one process, which the clocks of processes measure
    /// whole. A version without keepers has no such option.
    pub(crate) fn alone(&self) -> Result<Option<&'static str>> {
        if let Some(option) = self.alone.get() {
            return Ok(*option);
        }
        let help = program::output(Command::new(&self.lacuna).args(["serve", "--help"]))?;
        Ok(*self.alone.get_or_init(|| help.contains(NO_KEEPER).then_some(NO_KEEPER)))
    }

    /// The path of a file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Free bytes on the file system of the disks.
    pub(crate) fn free(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(self.dir.path());
        let stat =
            stat.map_err(|e| Error::io("cannot see how much space is free for the disks", &e.into()))?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// The file with the passphrase of every disk.
    pub(crate) fn key_file(&self) -> PathBuf {
        self.path("key")
    }

    /// The passphrase as an option of QEMU's programs.
    pub(crate) fn secret(&self) -> String {
        format!("secret,id=key,file={}", self.key_file().display())
    }

    /// Writes back all dirty data of the file system, so that no server pays for the previous one.
    pub(crate) fn write_back(&self) -> Result<()> {
        let failed = |e| Error::io("cannot sync the file system of the disks", &e);
        let dir = File::open(self.dir.path()).map_err(failed)?;
        rustix::fs::syncfs(&dir).map_err(|e| failed(e.into()))
    }

    /// Lets ext4 spread new directories over the disk: it is slow at creating files where many were
    /// removed in the last minutes, and no subject should pay for the files of the previous one. It
    /// has no effect on other file systems.
    pub(crate) fn spread_directories(&self) {
        let dir = self.dir.path().to_string_lossy();
        let _ = program::is_runnable("chattr", &["+T", &dir]);
    }

    /// Empties the kernel's caches of files.
    pub(crate) fn drop_caches(&self) -> Result<()> {
        let failed = |e| Error::io("cannot empty the kernel's caches", &e).hint("measure as root");
        self.write_back()?;
        std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(failed)
    }

    /// Prints a progress message on standard error. Errors: if the run was interrupted.
    pub fn report_progress(&self, what: &str) -> Result<()> {
        eprintln!("{what}");
        self.interrupt.check()
    }
}
