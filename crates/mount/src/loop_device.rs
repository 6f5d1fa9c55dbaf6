//! A loop device on the FUSE file, through `losetup`.

use crate::tool;
use lacuna_core::{Error, Kind, Result};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// An attached loop device. Dropping it detaches it, unless it already detaches by itself.
pub(crate) struct LoopDevice {
    node: PathBuf,
    backing: PathBuf,
    automatic: bool,
}

impl LoopDevice {
    /// Attaches the next free loop device to `backing`.
    ///
    /// Direct I/O is asked for: the FUSE file has no page cache to go through, and only so does the loop
    /// device keep several requests in flight at once.
    pub(crate) fn attach(backing: &Path, read_only: bool) -> Result<Self> {
        let attach = |direct_io: &str| {
            let mut args = vec![OsStr::new("--find"), OsStr::new("--show"), OsStr::new(direct_io)];
            if read_only {
                args.push(OsStr::new("--read-only"));
            }
            args.push(backing.as_os_str());
            tool::succeed("cannot attach a loop device", "losetup", &args)
        };
        let shown = attach("--direct-io=on").or_else(|_| {
            // losetup attaches first and asks for direct I/O then: what it gave up on half way may be attached.
            for left in resting_on(backing)? {
                detach_from(&left, backing)?;
            }
            attach("--direct-io=off")
        });
        let shown = shown?.stdout;
        let node = PathBuf::from(shown);
        if !node.starts_with("/dev") {
            return Err(Error::new(Kind::Other, "cannot attach a loop device")
                .found(format!("losetup printed {:?}", node.display().to_string()))
                .expected("the name of a device"));
        }
        Ok(LoopDevice { node, backing: backing.to_owned(), automatic: false })
    }

    /// The device node, such as `/dev/loop0`.
    pub(crate) fn node(&self) -> &Path {
        &self.node
    }

    /// The file that it was put on.
    pub(crate) fn backing(&self) -> &Path {
        &self.backing
    }

    /// The device number as `major:minor`.
    pub(crate) fn number(&self) -> Result<Option<String>> {
        number(&self.node)
    }

    /// Lets the kernel detach the device when its last user (the mount) is gone, however it is unmounted.
    pub(crate) fn detach_when_unused(&mut self) -> Result<()> {
        tool::succeed(
            "cannot prepare the loop device for its end",
            "losetup",
            &[OsStr::new("--detach"), self.node.as_os_str()],
        )?;
        self.automatic = attribute(&self.node, "loop/autoclear")?.as_deref() == Some("1");
        Ok(())
    }

    /// Detaches the device if it still rests on our file.
    pub(crate) fn detach(&mut self) -> Result<()> {
        detach_from(&self.node, &self.backing)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if !self.automatic {
            let _ = self.detach();
        }
    }
}

/// Detaches the loop device `node`, unless it rests on another file by now or on none.
pub fn detach_from(node: &Path, backing: &Path) -> Result<()> {
    if !rests_on(node, backing)? {
        return Ok(());
    }
    let args = [OsStr::new("--detach"), node.as_os_str()];
    tool::succeed("cannot detach the loop device", "losetup", &args).map(drop)
}

/// Lets the loop device `node` know that its file may have another length, unless it rests on another file by now.
pub(crate) fn follow(node: &Path, backing: &Path) -> Result<()> {
    if !rests_on(node, backing)? {
        return Ok(());
    }
    // The kernel asks the file system for the length now, and the loop device takes what the kernel knows.
    fs::metadata(backing).map_err(|e| Error::io("cannot look at the file of the disk", &e))?;
    let args = [OsStr::new("--set-capacity"), node.as_os_str()];
    tool::succeed("cannot make the loop device larger", "losetup", &args).map(drop)
}

/// Every loop device that rests on `backing`. Errors: what keeps one of them from being seen.
pub fn resting_on(backing: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: &io::Error| Error::io("cannot look for loop devices in /sys/block", e);
    let devices = match fs::read_dir("/sys/block") {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        devices => devices.map_err(|e| failed(&e))?,
    };
    let mut found = Vec::new();
    for device in devices {
        let node = Path::new("/dev").join(device.map_err(|e| failed(&e))?.file_name());
        if rests_on(&node, backing)? {
            found.push(node);
        }
    }
    Ok(found)
}

/// Whether this is a loop device that rests on `backing`.
fn rests_on(node: &Path, backing: &Path) -> Result<bool> {
    let file = attribute(node, "loop/backing_file")?;
    Ok(file.is_some_and(|file| Path::new(file.trim_end_matches(" (deleted)")) == backing))
}

/// The number of a device as `major:minor`; none if there is no such device.
pub fn number(node: &Path) -> Result<Option<String>> {
    attribute(node, "dev")
}

/// None where there is no such device or attribute, as of a device that is removed at this moment.
fn attribute(node: &Path, name: &str) -> Result<Option<String>> {
    let Some(device) = node.file_name() else { return Ok(None) };
    let path = Path::new("/sys/block").join(device).join(name);
    match fs::read(&path) {
        // The file of another program's device may have any name, and one that is too long for the kernel to tell.
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).trim().to_owned())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENAMETOOLONG)) => Ok(None),
        Err(e) => Err(Error::io(format!("cannot read {}", path.display()), &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_by_their_files() {
        assert_eq!(resting_on(Path::new("/no/such/file")).unwrap(), [] as [PathBuf; 0]);
        assert_eq!(number(Path::new("/dev/no-such-device")).unwrap(), None);
        assert!(!rests_on(Path::new("/dev/no-such-device"), Path::new("")).unwrap());
    }
}
