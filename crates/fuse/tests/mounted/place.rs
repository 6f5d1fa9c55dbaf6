//! Where a test mounts: whether the machine allows it, a run base and a mount point that are cleared away, and a
//! server on a thread.

use crate::memory::MemoryDisk;
use lacuna_core::Result;
use lacuna_daemon::{Closed, close};
use lacuna_fuse::{OpenRequest, Opened, Stopper};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tempfile::TempDir;

/// Why this machine cannot run a test, if it cannot. Root in a container may lack what root usually has, so it is
/// tried.
pub(crate) fn lacking(loops: bool) -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    let opens = |path: &str| File::options().read(true).write(true).open(path).is_ok();
    if !opens("/dev/fuse") {
        return Some("/dev/fuse may not be used");
    }
    if !mounts() {
        return Some("mounting is not permitted");
    }
    if loops && !opens("/dev/loop-control") {
        return Some("there is no /dev/loop-control that may be used");
    }
    let works = |program: &str, words: &str| {
        let ran = Command::new(program).arg(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
        ran.is_ok_and(|status| status.success())
    };
    if loops && !works("mkfs.ext4", "-V") {
        return Some("there is no mkfs.ext4 that works");
    }
    (loops && !works("fstrim", "--version")).then_some("there is no fstrim that works")
}

/// Whether a file system without a device can be mounted.
pub(crate) fn mounts() -> bool {
    let at = tempfile::tempdir().unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "lacuna-test", text(at.path())]).stderr(Stdio::null());
    let mounted = mount.status().is_ok_and(|status| status.success());
    if mounted {
        run("umount", &[text(at.path())]);
    }
    mounted
}

pub(crate) fn skipped(why: &str) {
    // Not println, which the test runner would keep to itself.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// One test at a time: while one starts a program, the new process has for a moment every file that the others
/// have open, and so keeps their mounts busy.
pub(crate) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Takes the turn of a test, or ends it where the machine does not allow it.
macro_rules! needs {
    ($loops:expr) => {
        let _only = $crate::place::ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(why) = $crate::place::lacking($loops) {
            $crate::place::skipped(why);
            return;
        }
    };
}

pub(crate) use needs;

/// A place for one test: a run base, a mount point, and the duty to leave nothing mounted.
pub(crate) struct Place {
    pub dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(place.mountpoint()).unwrap();
        place
    }

    pub(crate) fn base(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub(crate) fn mountpoint(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub(crate) fn request(&self, disk: &Arc<MemoryDisk>) -> OpenRequest {
        let disk: Arc<MemoryDisk> = Arc::clone(disk);
        let mut request = OpenRequest::new(disk, "memory", self.mountpoint());
        request.run_base = Some(self.base());
        request
    }

    pub(crate) fn raw(&self, disk: &Arc<MemoryDisk>) -> Server {
        let mut request = self.request(disk);
        request.raw = true;
        Server::start(request)
    }

    pub(crate) fn ext4(&self, disk: &Arc<MemoryDisk>, mkfs: bool) -> Server {
        let mut request = self.request(disk);
        request.mkfs = mkfs.then(|| "ext4".to_owned());
        Server::start(request)
    }

    pub(crate) fn close(&self) -> Result<Closed> {
        close(&self.mountpoint(), Some(&self.base()))
    }

    pub(crate) fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let here = self.dir.path().to_str().unwrap();
        let points = table.lines().filter_map(|l| l.split(' ').nth(1)).filter(|m| m.starts_with(here));
        points.map(str::to_owned).collect()
    }

    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), Vec::<String>::new());
        assert_eq!(self.loops(), Vec::<String>::new());
        assert_eq!(fs::read_dir(self.base()).map_or(0, Iterator::count), 0, "the run directory remains");
    }

    /// Loop devices on files of this place.
    pub(crate) fn loops(&self) -> Vec<String> {
        let list = Command::new("losetup").args(["--list", "--noheadings", "-O", "NAME,BACK-FILE"]).output();
        let list = String::from_utf8(list.unwrap().stdout).unwrap();
        let here = list.lines().filter(|l| l.contains(self.dir.path().to_str().unwrap()));
        here.filter_map(|l| l.split_whitespace().next()).map(str::to_owned).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.close();
        for mount in self.mounts().iter().rev() {
            let _ = Command::new("umount").args(["--lazy", mount]).status();
        }
        for device in self.loops() {
            let _ = Command::new("losetup").args(["--detach", &device]).status();
        }
    }
}

/// A server on a thread of its own. Declared after its [`Place`], it ends first.
pub(crate) struct Server {
    pub stopper: Stopper,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Server {
    pub(crate) fn start(request: OpenRequest) -> Self {
        let opened = Opened::start(request).unwrap_or_else(|e| panic!("{e}"));
        let stopper = opened.stopper();
        Server { stopper, thread: Some(std::thread::spawn(move || opened.wait())) }
    }

    /// Asks until it ends: something on the machine may look into the mount at the wrong moment.
    pub(crate) fn stop(mut self) -> Result<()> {
        wait_until("the end of the server", || {
            self.stopper.request();
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.thread.as_ref().is_none_or(JoinHandle::is_finished)
        });
        self.ended()
    }

    pub(crate) fn ended(&mut self) -> Result<()> {
        self.thread.take().unwrap().join().unwrap()
    }
}

/// A child process that is ended with the test.
pub(crate) struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Bytes that differ everywhere.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Waits until something that must happen has happened.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("never happened: {what}");
}
