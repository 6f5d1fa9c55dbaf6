//! The place of a test: a check of the machine, a run base and a mount point that are cleaned up,
//! and a server on a thread.

use crate::machine::{self, wait_until};
use crate::memory::MemoryDisk;
use lacuna_contracts::Result;
use lacuna_daemon::{CloseOutcome, Registry, ServerStatus, close};
use lacuna_fuse::{DiskRequest, MountedDisk, Stopper};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tempfile::TempDir;

/// The reason why this machine cannot run a test, if there is one.
pub(crate) fn lacking_for(loops: bool) -> Option<&'static str> {
    if let Some(why) = machine::lacking() {
        return Some(why);
    }
    let opens = |path: &str| File::options().read(true).write(true).open(path).is_ok();
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

/// Runs one test at a time: a starting child process inherits all open files of this process for a
/// moment, and so keeps the mounts of other tests busy.
pub(crate) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Takes the lock of [`ONE_AT_A_TIME`], or skips the test where the machine does not allow it.
macro_rules! skip_unless_supported {
    ($loops:expr) => {
        let _only = $crate::fixture::ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(why) = $crate::fixture::lacking_for($loops) {
            $crate::machine::skipped(why);
            return;
        }
    };
}

pub(crate) use skip_unless_supported;

/// The place of one test: a run base and a mount point. Dropping it unmounts everything.
pub(crate) struct MountFixture {
    pub dir: TempDir,
}

impl MountFixture {
    pub(crate) fn new() -> Self {
        let place = MountFixture { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(place.mountpoint()).unwrap();
        place
    }

    pub(crate) fn base(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub(crate) fn mountpoint(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub(crate) fn request(&self, disk: &Arc<MemoryDisk>) -> DiskRequest {
        let disk: Arc<MemoryDisk> = Arc::clone(disk);
        let mut request = DiskRequest::new(disk, "memory", self.mountpoint());
        request.run_base = Some(self.base());
        request
    }

    pub(crate) fn raw(&self, disk: &Arc<MemoryDisk>) -> ServerThread {
        let mut request = self.request(disk);
        request.raw = true;
        ServerThread::start(request)
    }

    pub(crate) fn ext4(&self, disk: &Arc<MemoryDisk>, mkfs: bool) -> ServerThread {
        let mut request = self.request(disk);
        request.mkfs = mkfs.then(|| "ext4".to_owned());
        ServerThread::start(request)
    }

    pub(crate) fn close(&self) -> Result<CloseOutcome> {
        close(&self.mountpoint(), Some(&self.base()))
    }

    /// The status that the server reports.
    pub(crate) fn status(&self) -> ServerStatus {
        let registry = Registry::open(Some(&self.base())).unwrap();
        let peer = registry.by_mountpoint(&self.mountpoint()).unwrap_or_else(|e| panic!("{e}"));
        peer.status().unwrap_or_else(|e| panic!("{e}"))
    }

    /// The mount points of the live servers, or of the dead ones.
    pub(crate) fn mounted_by(&self, alive: bool) -> Vec<PathBuf> {
        let peers = Registry::open(Some(&self.base())).unwrap().all().unwrap();
        let found = peers.iter().filter(|peer| peer.alive == alive);
        found.map(|peer| peer.mount().unwrap().mountpoint.clone()).collect()
    }

    pub(crate) fn mounts(&self) -> Vec<String> {
        machine::mounts_below(self.dir.path())
    }

    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), Vec::<String>::new());
        assert_eq!(self.loops(), Vec::<String>::new());
        assert_eq!(fs::read_dir(self.base()).map_or(0, Iterator::count), 0, "the run directory remains");
    }

    /// Stops `server` at the end of a test: nothing may be left.
    #[track_caller]
    pub(crate) fn stop(&self, server: ServerThread) {
        server.stop().unwrap();
        self.assert_nothing_left();
    }

    /// Loop devices on files of this place.
    pub(crate) fn loops(&self) -> Vec<String> {
        let list = Command::new("losetup").args(["--list", "--noheadings", "-O", "NAME,BACK-FILE"]).output();
        let list = String::from_utf8(list.unwrap().stdout).unwrap();
        let here = list.lines().filter(|l| l.contains(self.dir.path().to_str().unwrap()));
        here.filter_map(|l| l.split_whitespace().next()).map(str::to_owned).collect()
    }
}

impl Drop for MountFixture {
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

/// A server on a thread of its own. Declared after its [`MountFixture`], it is dropped first.
pub(crate) struct ServerThread {
    pub stopper: Stopper,
    thread: Option<JoinHandle<Result<()>>>,
}

impl ServerThread {
    pub(crate) fn start(request: DiskRequest) -> Self {
        let opened = MountedDisk::start(request).unwrap_or_else(|e| panic!("{e}"));
        let stopper = opened.stopper();
        ServerThread { stopper, thread: Some(std::thread::spawn(move || opened.wait())) }
    }

    /// Repeats the request until the server ends: another program may use the mount for a moment.
    pub(crate) fn stop(mut self) -> Result<()> {
        wait_until("the end of the server", || {
            self.stopper.request();
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.thread.as_ref().is_none_or(JoinHandle::is_finished)
        });
        self.join()
    }

    pub(crate) fn join(&mut self) -> Result<()> {
        self.thread.take().unwrap().join().unwrap()
    }
}

/// A child process that is killed at the end of the test.
pub(crate) struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(program: &str, args: &[&str]) {
    machine::run(Command::new(program).args(args));
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
