//! A loop device on the FUSE file.
//!
//! The kernel's requests for it go to the server's own file system, so they are made by a thread
//! without the process's descriptors (`system_call.rs`).

use crate::system_call::{self, run_without_descriptors};
use lacuna_contracts::{Error, Kind, Result};
use rustix::io::Errno;
use std::ffi::c_long;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The control device that allocates loop devices.
pub(crate) const LOOP_CONTROL: &str = "/dev/loop-control";
/// The least read-ahead of a loop device, in units of 512 bytes: two of the longest requests to the
/// file. With the 128 KiB of most devices, one thread of the server works for a sequential reader.
const READ_AHEAD: c_long = 4096;
/// How often to retry after another program took the free loop device first.
const TRIES: u32 = 64;

/// An attached loop device. Dropping it detaches it, unless the kernel will detach it.
pub(crate) struct LoopDevice {
    node: PathBuf,
    number: String,
    backing: PathBuf,
    has_autoclear: bool,
}

impl LoopDevice {
    /// Attaches the next free loop device to `backing`, without a partition scan.
    ///
    /// Uses direct I/O: the FUSE file has no page cache, and only with direct I/O does the loop
    /// device keep several requests in flight at once.
    pub(crate) fn attach(backing: &Path, read_only: bool) -> Result<Self> {
        let attached = run_without_descriptors(|| attach_next(backing, read_only));
        let (node, number) = attached.map_err(|e| failed("cannot attach a loop device", &e))?;
        Ok(LoopDevice { node, number, backing: backing.to_owned(), has_autoclear: false })
    }

    /// The device node, such as `/dev/loop0`.
    pub(crate) fn node(&self) -> &Path {
        &self.node
    }

    /// The backing file.
    pub(crate) fn backing(&self) -> &Path {
        &self.backing
    }

    /// The device number as `major:minor`, which identifies its mount in the mount table.
    pub(crate) fn number(&self) -> &str {
        &self.number
    }

    /// Makes the kernel detach the device after its last user (the mount) is gone, however it is
    /// unmounted.
    pub(crate) fn detach_when_unused(&mut self) -> Result<()> {
        clear_backing_file(&self.node)
            .map_err(|e| failed("cannot set the loop device to detach on close", &e))?;
        self.has_autoclear = attribute(&self.node, "loop/autoclear")?.as_deref() == Some("1");
        Ok(())
    }

    /// Detaches the device if its file is still `backing`.
    pub(crate) fn detach(&mut self) -> Result<()> {
        detach_from(&self.node, &self.backing)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if !self.has_autoclear {
            let _ = self.detach();
        }
    }
}

/// Attaches the next free loop device to `backing`, and returns its node and number.
fn attach_next(backing: &Path, read_only: bool) -> io::Result<(PathBuf, String)> {
    let open = |path: &Path| File::options().read(true).write(!read_only).open(path);
    let (file, control) = (open(backing)?, File::options().read(true).write(true).open(LOOP_CONTROL)?);
    let mut tries = TRIES;
    let (node, number, device) = loop {
        let node = PathBuf::from(format!("/dev/loop{}", system_call::free_loop_device(&control)?));
        let number = known_number(&node)?;
        let device = open(&node)?;
        match system_call::set_backing_file(&device, &file) {
            Ok(()) => break (node, number, device),
            Err(Errno::BUSY) if tries > 0 => tries -= 1,
            Err(e) => return Err(e.into()),
        }
    };
    match configure(&device, read_only) {
        Ok(()) => Ok((node, number)),
        Err(e) => {
            system_call::clear_backing_file(&device)?;
            Err(e.into())
        }
    }
}

/// Configures an attached device.
fn configure(device: &File, read_only: bool) -> rustix::io::Result<()> {
    // A device that reads less far ahead works as well, only slower.
    let _raised = raise_read_ahead(device);
    if !read_only {
        // The device is still read-only if an earlier user made it so (`blockdev --setro`).
        system_call::set_read_only(device, false)?;
    }
    match system_call::set_direct_io(device) {
        Err(Errno::INVAL) => Ok(()),
        set => set,
    }
}

/// Makes the kernel read at least [`READ_AHEAD`] ahead.
fn raise_read_ahead(device: &File) -> rustix::io::Result<()> {
    let is_less = system_call::read_ahead(device)? < READ_AHEAD;
    if is_less { system_call::set_read_ahead(device, READ_AHEAD) } else { Ok(()) }
}

/// The number of an existing device. This is checked before the device is attached, because without
/// the number the device could not be detached and its mount not be identified.
fn known_number(node: &Path) -> io::Result<String> {
    number(node).map_err(io::Error::other)?.ok_or_else(|| {
        let words = format!("no number of {} below /sys/block, where sysfs must be mounted", node.display());
        io::Error::other(words)
    })
}

fn clear_backing_file(node: &Path) -> io::Result<()> {
    run_without_descriptors(|| Ok(system_call::clear_backing_file(&File::open(node)?)?))
}

fn failed(what: &str, e: &io::Error) -> Error {
    let error = Error::io(what, e);
    if error.kind() == Kind::Permission { error } else { error.with_kind(Kind::Other) }
}

/// Detaches the loop device `node`, unless it has another file by now or none.
pub fn detach_from(node: &Path, backing: &Path) -> Result<()> {
    if !is_backed_by(node, backing)? {
        return Ok(());
    }
    clear_backing_file(node).map_err(|e| failed("cannot detach the loop device", &e))
}

/// Makes the loop device `node` take over the new length of its file, unless it has another file by
/// now.
pub(crate) fn refresh_capacity(node: &Path, backing: &Path) -> Result<()> {
    if !is_backed_by(node, backing)? {
        return Ok(());
    }
    let follow = || -> io::Result<()> {
        // Refreshes the length that the kernel has cached, which the loop device then takes.
        fs::metadata(backing)?;
        Ok(system_call::set_capacity(&File::open(node)?)?)
    };
    run_without_descriptors(follow).map_err(|e| failed("cannot make the loop device larger", &e))
}

/// Every loop device with the file `backing`. Errors: a failure to inspect one of them.
pub fn devices_backed_by(backing: &Path) -> Result<Vec<PathBuf>> {
    devices_with(|file| file == backing)
}

/// Every loop device with a `wanted` file. Errors: a failure to inspect one of them.
pub(crate) fn devices_with(wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let failed = |e: &io::Error| Error::io("cannot look for loop devices in /sys/block", e);
    let devices = match fs::read_dir("/sys/block") {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        devices => devices.map_err(|e| failed(&e))?,
    };
    let mut found = Vec::new();
    for device in devices {
        let node = Path::new("/dev").join(device.map_err(|e| failed(&e))?.file_name());
        if backing_file(&node)?.is_some_and(|file| wanted(&file)) {
            found.push(node);
        }
    }
    Ok(found)
}

/// Whether this is a loop device with the file `backing`.
fn is_backed_by(node: &Path, backing: &Path) -> Result<bool> {
    Ok(backing_file(node)?.is_some_and(|file| file == backing))
}

/// The file of a loop device; `None` if it has none, or if `node` is no loop device.
pub fn backing_file(node: &Path) -> Result<Option<PathBuf>> {
    let file = attribute(node, "loop/backing_file")?;
    Ok(file.map(|file| PathBuf::from(file.trim_end_matches(" (deleted)"))))
}

/// The number of a device as `major:minor`; `None` if there is no such device.
pub fn number(node: &Path) -> Result<Option<String>> {
    attribute(node, "dev")
}

/// `None` if there is no such device or attribute, or if the device is removed concurrently.
fn attribute(node: &Path, name: &str) -> Result<Option<String>> {
    let Some(device) = node.file_name() else { return Ok(None) };
    let path = Path::new("/sys/block").join(device).join(name);
    match fs::read(&path) {
        // The path of another program's file may be any bytes, and may be too long for the kernel
        // to print.
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).trim().to_owned())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENAMETOOLONG)) => Ok(None),
        Err(e) => Err(Error::io(format!("cannot read {}", path.display()), &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn loop_devices_are_found_by_their_files() {
        assert_eq!(devices_backed_by(Path::new("/no/such/file")).unwrap(), [] as [PathBuf; 0]);
        assert_eq!(number(Path::new("/dev/no-such-device")).unwrap(), None);
        let unknown = known_number(Path::new("/dev/no-such-device")).unwrap_err();
        assert!(unknown.to_string().contains("no number of /dev/no-such-device"), "{unknown}");
        assert!(!is_backed_by(Path::new("/dev/no-such-device"), Path::new("")).unwrap());
    }

    #[test]
    fn a_device_has_the_bytes_and_the_length_of_its_file() {
        if File::options().read(true).write(true).open(LOOP_CONTROL).is_err() {
            return eprintln!("skipped: there are no loop devices for this user");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("disk");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(b"mine", 4096).unwrap();
        file.sync_all().unwrap();
        let blocks = |node: &Path| attribute(node, "size").unwrap().unwrap();
        let takes_no_writes = |node: &Path| attribute(node, "ro").unwrap().unwrap() == "1";

        let mut device = LoopDevice::attach(&path, false).unwrap();
        let node = device.node().to_owned();
        assert_eq!(devices_backed_by(&path).unwrap(), [node.as_path()]);
        assert_eq!(number(&node).unwrap().as_deref(), Some(device.number()));
        let mut read = [0; 4];
        File::open(&node).unwrap().read_exact_at(&mut read, 4096).unwrap();
        assert_eq!((&read, blocks(&node).as_str(), takes_no_writes(&node)), (b"mine", "2048", false));
        file.set_len(2 << 20).unwrap();
        refresh_capacity(&node, &path).unwrap();
        assert_eq!(blocks(&node), "4096");
        device.detach().unwrap();
        drop(device);

        let mut device = LoopDevice::attach(&path, true).unwrap();
        let node = device.node().to_owned();
        assert!(takes_no_writes(&node));
        let user = File::open(&node).unwrap();
        device.detach_when_unused().unwrap();
        assert!(device.has_autoclear);
        drop(device);
        assert!(devices_backed_by(&path).unwrap().contains(&node));
        drop(user);
    }

    #[test]
    fn a_device_reads_far_ahead() {
        if File::options().read(true).write(true).open(LOOP_CONTROL).is_err() {
            return eprintln!("skipped: there are no loop devices for this user");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("disk");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let device = LoopDevice::attach(&path, true).unwrap();
        let node = File::open(device.node()).unwrap();
        let attached = system_call::read_ahead(&node).unwrap();
        assert!(attached >= READ_AHEAD, "{attached}");
        for (set, raised) in [(256, READ_AHEAD), (2 * READ_AHEAD, 2 * READ_AHEAD)] {
            system_call::set_read_ahead(&node, set).unwrap();
            raise_read_ahead(&node).unwrap();
            assert_eq!(system_call::read_ahead(&node).unwrap(), raised);
        }
        system_call::set_read_ahead(&node, attached).unwrap();
    }

    #[test]
    fn a_device_that_was_left_read_only_takes_writes_again() {
        if File::options().read(true).write(true).open(LOOP_CONTROL).is_err() {
            return eprintln!("skipped: there are no loop devices for this user");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("disk");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let set = |node: &Path, read_only| {
            system_call::set_read_only(&File::open(node).unwrap(), read_only).unwrap();
        };
        let is_read_only = |node: &Path| attribute(node, "ro").unwrap().unwrap() == "1";

        let device = LoopDevice::attach(&path, false).unwrap();
        let left = device.node().to_owned();
        set(&left, true);
        drop(device);
        // The lowest free device is that one, unless another program has it at this moment.
        let mut taken = Vec::new();
        while taken.len() < 8 {
            let device = LoopDevice::attach(&path, false).unwrap();
            if device.node() == left {
                let was_kept = is_read_only(&left);
                set(&left, false);
                return assert!(!was_kept);
            }
            taken.push(device);
        }
        set(&left, false);
        eprintln!("skipped: another program has {}", left.display());
    }
}
