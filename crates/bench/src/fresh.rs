//! A new ext4 for each subject, on a loop device over a file of the same disk, where root may have one; elsewhere a directory.
//!
//! A file system remembers those who used it before: ext4 is slow to make files where many were removed in the last minutes, and it
//! places them by what is free. In a file system of its own nobody pays for the subject before.

use crate::program;
use crate::workspace::Workspace;
use lacuna_core::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Bytes of the file. Written once, so that no subject waits for the disk below to allocate it.
const SIZE: u64 = 6 << 30;

/// The loop device, or nothing.
pub(crate) struct Fresh<'w> {
    work: &'w Workspace,
    device: Option<String>,
}

impl<'w> Fresh<'w> {
    /// Makes the file and its loop device.
    ///
    /// Errors: if the file cannot be written. That there is no loop device is none.
    pub(crate) fn new(work: &'w Workspace) -> Result<Fresh<'w>> {
        let failed = |e| Error::io("cannot make a place for the file systems that are measured", &e);
        std::fs::create_dir(work.backing()).map_err(failed)?;
        let image = work.path("fresh.img");
        if work.scale.quick || !rustix::process::geteuid().is_root() {
            return Ok(Fresh { work, device: None });
        }
        write_zeros(&image).map_err(failed)?;
        let shown =
            program::output(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&image));
        Ok(Fresh { work, device: shown.ok().map(|shown| shown.trim().to_owned()) })
    }

    /// Whether subjects have file systems of their own.
    pub(crate) fn is_there(&self) -> bool {
        self.device.is_some()
    }

    /// Makes the file system anew; without a loop device it is the directory that it was.
    pub(crate) fn renew(&self) -> Result<()> {
        let Some(device) = &self.device else { return Ok(()) };
        self.unmount();
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", device]);
        program::output(&mut make)?;
        program::output(Command::new("mount").arg(device).arg(self.work.backing())).map(drop)
    }

    fn unmount(&self) {
        // It may not be mounted.
        let _ = program::output(Command::new("umount").arg(self.work.backing()));
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            self.unmount();
            let _ = program::output(Command::new("losetup").args(["--detach", device]));
        }
    }
}

fn write_zeros(path: &Path) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let zeros = vec![0; 4 << 20];
    for _ in 0..SIZE / zeros.len() as u64 {
        file.write_all(&zeros)?;
    }
    file.sync_all()
}
