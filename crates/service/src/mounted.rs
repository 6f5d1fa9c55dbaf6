//! A file system on a loop device: attached, made if that is wanted, mounted, and taken down again.

use crate::loop_device::LoopDevice;
use crate::unmount::busy_or_failed;
use crate::watch::Watch;
use crate::{close, mkfs, mount_table, shell_word, tool};
use lacuna_core::{Advice, ByteDisk, Error, Kind, Result, Setting};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How often it is looked whether a file system is detached.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How to mount.
pub struct MountRequest<'r> {
    /// Type of the file system to make if the disk is blank, such as `ext4`.
    pub mkfs: Option<&'r str>,
    /// Mount a file system that is there already instead of refusing to make one.
    pub keep_existing: bool,
    /// Make it over data of no known kind as well.
    pub overwrite: bool,
    /// More options for `mount -o`.
    pub mount_options: Option<&'r str>,
    /// Mount it so that nothing can be written.
    pub read_only: bool,
}

/// The file system on the loop device. Dropping it unmounts it if nobody uses it.
pub struct Mounted {
    mountpoint: PathBuf,
    number: Option<String>,
    device: LoopDevice,
    /// Whether the file system was made for this.
    made: bool,
}

impl Mounted {
    /// The loop device.
    pub fn node(&self) -> &Path {
        self.device.node()
    }

    /// Whether its file system was made now; otherwise it was there already.
    pub fn was_made(&self) -> bool {
        self.made
    }

    /// Attaches a loop device to `file`, which holds `disk`, makes a file system there if that is wanted, and mounts it.
    ///
    /// Errors: [`Kind::Permission`], [`Kind::Exists`] where a file system was to be made and something is there, and
    /// whatever the system's tools say; what the disk itself said, if it failed, as `watch` knows it.
    pub fn set_up(
        request: &MountRequest<'_>,
        disk: &ByteDisk,
        file: &Path,
        mountpoint: PathBuf,
        watch: &Watch,
    ) -> Result<Self> {
        let read_only = request.read_only;
        let what = format!("cannot mount the disk at {}", mountpoint.display());
        // Programs report what the disk told them as a number at best: prefer the disk's own words.
        let from_disk = |e: Error| match watch.first_failure() {
            Some(failure) => failure.context(&what),
            None => offer_others(e),
        };
        let device = LoopDevice::attach(file, read_only).map_err(from_disk)?;
        let found = mkfs::content(device.node());
        // A disk that could not be read is not a blank disk.
        if let Some(failure) = watch.first_failure() {
            return Err(failure.context(&what));
        }
        let found = found?;
        let journalled = found.as_ref().filter(|_| read_only).and_then(mkfs::Content::without_journal);
        let keep = request.keep_existing && found.as_ref().is_some_and(|found| found.mountable);
        let wanted = request.mkfs.filter(|_| !keep);
        let made = mkfs::prepare(device.node(), disk, found, (wanted, request.overwrite))
            .map_err(|e| from_disk(e.context(&what)))?;
        let mut options = vec![if read_only { "ro" } else { "rw" }];
        options.extend(request.mount_options);
        let options = options.join(",");
        let args = [
            OsStr::new("-o"),
            OsStr::new(&options),
            OsStr::new("--"),
            device.node().as_os_str(),
            mountpoint.as_os_str(),
        ];
        // Of others than those of systemd's group the kernel makes those wait who come to where it waits for a mount.
        let waits = mount_table::is_automount(&mountpoint);
        let done = if waits {
            tool::succeed_in_our_group(&what, "mount", &args)
        } else {
            tool::succeed(&what, "mount", &args)
        };
        done.map_err(|e| match journalled {
            Some(option)
                if watch.first_failure().is_none()
                    && e.kind() == Kind::Other
                    && !options.contains(option) =>
            {
                let advice = Advice::from("if it was not unmounted, as in a copy of a disk in use, give ");
                let what = format!(
                    " {option}: its journal is then left aside, and what was written last is not seen"
                );
                e.remedy(advice.setting(Setting::MountOptions).text(what))
            }
            _ => from_disk(e),
        })?;
        let number = device.number();
        let mut mounted = Mounted { mountpoint, number, device, made };
        mounted.device.detach_when_unused()?;
        Ok(mounted)
    }

    fn is_mine(&self, entry: &mount_table::Entry) -> bool {
        entry.mountpoint == self.mountpoint
            && self.number.as_ref().is_none_or(|number| entry.is_on(self.device.node(), number))
    }

    /// Whether it is mounted, and nothing over it.
    fn is_on_top(&self) -> Result<bool> {
        Ok(mount_table::at(&self.mountpoint)?.is_some_and(|top| self.is_mine(&top)))
    }

    /// Begins to write everything that programs wrote to the disk, if the file system is still mounted. What is given back
    /// is closed when that is done. What goes wrong, unmounting tells.
    ///
    /// A program of the system does it, as it unmounts: a thread of the server that waits for the server's own disk would keep
    /// the server from dying when it is killed.
    pub fn sync(&self) -> Result<Receiver<()>> {
        let (done, waiting) = channel();
        if self.is_on_top()? {
            let at = self.mountpoint.clone();
            let sync = move || {
                let _until_done: Sender<()> = done;
                let _ = tool::run("sync", &[OsStr::new("-f"), OsStr::new("--"), at.as_os_str()]);
            };
            std::thread::Builder::new()
                .name("lacuna-sync".into())
                .spawn(sync)
                .map_err(|e| Error::io("cannot sync the file system", &e))?;
        }
        Ok(waiting)
    }

    /// Unmounts, unless someone did already or someone uses it ([`Kind::Busy`]). Calls `detached` when nobody can use it any more
    /// and the disk still takes what the file system has to write.
    pub fn unmount(&mut self, detached: impl Fn() + Sync) -> Result<()> {
        let mine = |e: &mount_table::Entry| self.is_mine(e);
        if !mount_table::entries()?.iter().any(mine) {
            return Ok(());
        }
        if !self.is_on_top()? {
            return Err(Error::new(Kind::Busy, format!("cannot unmount {}", self.mountpoint.display()))
                .found("another file system mounted over it")
                .remedy("unmount that one first"));
        }
        let is_listed = || mount_table::entries().is_ok_and(|entries| entries.iter().any(mine));
        let (done, ended) = channel::<()>();
        let finished = std::thread::scope(|scope| {
            let (is_listed, detached) = (&is_listed, &detached);
            let look = move || {
                while ended.recv_timeout(LOOK_AGAIN) == Err(RecvTimeoutError::Timeout) {
                    if !is_listed() {
                        detached();
                    }
                }
            };
            // Without a thread the unmounting may have to wait for cover that does not come.
            let _ = std::thread::Builder::new().name("lacuna-unmount".into()).spawn_scoped(scope, look);
            let args = ["--internal-only", "--"].map(OsStr::new);
            // Without helpers: umount.lacuna would ask this server, and wait for it.
            let finished = tool::run("umount", &[&args[..], &[self.mountpoint.as_os_str()]].concat());
            drop(done);
            finished
        })?;
        let left = mount_table::entries()?.iter().any(mine);
        if finished.success() || !left { Ok(()) } else { Err(busy_or_failed(&self.mountpoint, &finished)) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.unmount(|| {});
    }
}

/// Whether this process may mount a file system from a loop device. Errors: [`Kind::Permission`], with the ways that need
/// fewer privileges.
pub fn check_privileges() -> Result<()> {
    let refused = |found: &str| {
        Error::new(Kind::Permission, "cannot mount a file system from a loop device").found(found)
    };
    if !rustix::process::geteuid().is_root() {
        return Err(offer_others(refused("a user other than root")));
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err(offer_others(refused("no /dev/loop-control")));
    }
    Ok(())
}

/// Adds the ways that need fewer privileges, if privileges are what was lacking.
fn offer_others(error: Error) -> Error {
    if error.kind() != Kind::Permission {
        return error;
    }
    let advice = Advice::from(
        "run as root where loop devices are allowed, serve the disk to NBD clients, or open it with ",
    );
    error.remedy(advice.setting(Setting::Raw).text(", which gives it as a file"))
}

/// The canonical path of `given`, if it is a directory on which nothing is mounted. `run_base` is the directory of
/// the run directories, if not [`default_run_base`].
///
/// Errors: [`Kind::NotFound`], [`Kind::Usage`] if it is no directory, [`Kind::Busy`] if something is mounted there,
/// which a server that died may have left.
pub fn check_mountpoint(given: &Path, run_base: Option<&Path>) -> Result<PathBuf> {
    let word = shell_word(given);
    let what = format!("cannot mount at {}", given.display());
    let path = given.canonicalize().map_err(|e| {
        let error = Error::io(&what, &e);
        match e.raw_os_error() {
            Some(libc::ENOENT) => error.remedy(format!("create the directory: mkdir -p {word}")),
            Some(libc::ENOTCONN) => error.with_kind(Kind::Busy).remedy(
                "a FUSE server died on the way there, perhaps one of lacuna: look at the status of all",
            ),
            _ => error,
        }
    })?;
    if let Some(top) = mount_table::at(&path)? {
        if top.is_automount() {
            return Ok(path);
        }
        if close::left_by_dead(&path, &top, run_base) {
            return Err(Error::new(Kind::Busy, what)
                .found("what a lacuna server left mounted there when it died")
                .remedy("close it, which clears it away, then open again"));
        }
        return Err(Error::new(Kind::Busy, what)
            .found("something mounted there already")
            .remedy("close or unmount it, or choose another directory"));
    }
    if !fs::metadata(&path).map_err(|e| Error::io(&what, &e))?.is_dir() {
        return Err(Error::new(Kind::Usage, what).found("a file").expected("a directory"));
    }
    Ok(path)
}
