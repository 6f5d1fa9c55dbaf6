//! The crate against the kernel: files, file systems, trims, faults, and the end of a server.
//!
//! Every test skips itself, saying why, where the machine does not allow it. Whatever happens, nothing stays
//! mounted.

#[path = "memory/mod.rs"]
mod memory;

use lacuna_core::{BlockAddr, Disk, Error, Kind, Result};
use lacuna_fuse::{Closed, OpenRequest, Opened, Stopper, close, running, status};
use memory::MemoryDisk;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tempfile::TempDir;

/// Why this machine cannot run a test, if it cannot. Root in a container may lack what root usually has, so it is
/// tried.
fn lacking(loops: bool) -> Option<&'static str> {
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
    let no_mkfs = Command::new("mkfs.ext4").arg("-V").stderr(Stdio::null()).status().is_err();
    (loops && no_mkfs).then_some("there is no mkfs.ext4")
}

/// Whether a file system without a device can be mounted.
fn mounts() -> bool {
    let at = tempfile::tempdir().unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "lacuna-test", text(at.path())]).stderr(Stdio::null());
    let mounted = mount.status().is_ok_and(|status| status.success());
    if mounted {
        run("umount", &[text(at.path())]);
    }
    mounted
}

fn skipped(why: &str) {
    // Not println, which the test runner would keep to itself.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// One test at a time: while one starts a program, the new process has for a moment every file that the others
/// have open, and so keeps their mounts busy.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

macro_rules! needs {
    ($loops:expr) => {
        let _only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = lacking($loops) {
            skipped(why);
            return;
        }
    };
}

/// A place for one test: a run base, a mount point, and the duty to leave nothing mounted.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(place.mountpoint()).unwrap();
        place
    }

    fn base(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn mountpoint(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn request(&self, disk: &Arc<MemoryDisk>) -> OpenRequest {
        let disk: Arc<MemoryDisk> = Arc::clone(disk);
        let mut request = OpenRequest::new(disk, "memory", self.mountpoint());
        request.run_base = Some(self.base());
        request
    }

    fn raw(&self, disk: &Arc<MemoryDisk>) -> Server {
        let mut request = self.request(disk);
        request.raw = true;
        Server::start(request)
    }

    fn ext4(&self, disk: &Arc<MemoryDisk>, mkfs: bool) -> Server {
        let mut request = self.request(disk);
        request.mkfs = mkfs.then(|| "ext4".to_owned());
        Server::start(request)
    }

    fn close(&self) -> Result<Closed> {
        close(&self.mountpoint(), Some(&self.base()))
    }

    fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let here = self.dir.path().to_str().unwrap();
        let points = table.lines().filter_map(|l| l.split(' ').nth(1)).filter(|m| m.starts_with(here));
        points.map(str::to_owned).collect()
    }

    fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), Vec::<String>::new());
        assert_eq!(self.loops(), Vec::<String>::new());
        assert_eq!(fs::read_dir(self.base()).map_or(0, Iterator::count), 0, "the run directory remains");
    }

    /// Loop devices on files of this place.
    fn loops(&self) -> Vec<String> {
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
struct Server {
    stopper: Stopper,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Server {
    fn start(request: OpenRequest) -> Self {
        let opened = Opened::start(request).unwrap_or_else(|e| panic!("{e}"));
        let stopper = opened.stopper();
        Server { stopper, thread: Some(std::thread::spawn(move || opened.wait())) }
    }

    /// Asks until it ends: something on the machine may look into the mount at the wrong moment.
    fn stop(mut self) -> Result<()> {
        wait_until("the end of the server", || {
            self.stopper.request();
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.thread.as_ref().is_none_or(JoinHandle::is_finished)
        });
        self.ended()
    }

    fn ended(&mut self) -> Result<()> {
        self.thread.take().unwrap().join().unwrap()
    }
}

/// A child process that is ended with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Bytes that differ everywhere.
fn pattern(len: usize) -> Vec<u8> {
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

#[test]
fn raw_file_takes_and_gives_bytes() {
    needs!(false);
    let place = Place::new();
    let disk = Arc::new(MemoryDisk::new(8));
    let server = place.raw(&disk);
    let file = place.mountpoint().join("disk");
    let source = place.dir.path().join("source");
    let copy = place.dir.path().join("copy");
    let bytes = pattern(8 << 20);
    fs::write(&source, &bytes).unwrap();

    run("cp", &[text(&source), text(&file)]);
    run("dd", &[&format!("if={}", text(&file)), &format!("of={}", text(&copy)), "bs=12345"]);
    assert!(fs::read(&copy).unwrap() == bytes);

    let handle = File::options().read(true).write(true).open(&file).unwrap();
    handle.write_all_at(b"odd place", 4093).unwrap();
    let mut back = [0; 13];
    handle.read_exact_at(&mut back, 4091).unwrap();
    assert_eq!((&back[2..11], back[0], back[12]), (&b"odd place"[..], bytes[4091], bytes[4103]));
    handle.sync_all().unwrap();
    assert_eq!(disk.unflushed.load(Ordering::SeqCst), 0);

    let end = 8 << 20;
    assert_eq!(handle.metadata().unwrap().len(), end);
    assert_eq!(handle.write_at(&[1; 100], end - 10).unwrap(), 10);
    assert_eq!(handle.write_at(&[1], end).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(handle.read_at(&mut back, end - 4).unwrap(), 4);
    assert_eq!(handle.read_at(&mut back, end + 4).unwrap(), 0);
    assert_eq!(handle.set_len(5).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert!(File::create(place.mountpoint().join("other")).is_err());
    drop(handle);
    assert!(
        fs::read_to_string(place.mountpoint().join("status")).unwrap().starts_with("size 8388608 bytes\n")
    );
    let names: Vec<_> = fs::read_dir(place.mountpoint()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["disk", "status"]);

    server.stop().unwrap();
    assert_eq!(disk.closes.load(Ordering::SeqCst), 1);
    place.assert_nothing_left();
}

#[test]
fn holes_are_punched_and_found() {
    needs!(false);
    let place = Place::new();
    let disk = Arc::new(MemoryDisk::new(8));
    let server = place.raw(&disk);
    let path = place.mountpoint().join("disk");
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&pattern(3 << 20), 2 << 20).unwrap();
    assert_eq!(seek(&file, 0, libc::SEEK_DATA), 2 << 20);
    assert_eq!(seek(&file, 0, libc::SEEK_HOLE), 0);
    assert_eq!(seek(&file, (2 << 20) + 5, libc::SEEK_HOLE), 5 << 20);
    assert_eq!(seek(&file, 5 << 20, libc::SEEK_DATA), -1);

    run("fallocate", &["--punch-hole", "--offset", "2097153", "--length", "1048575", text(&path)]);
    assert_eq!(disk.discarded.load(Ordering::SeqCst), 255);
    run("fallocate", &["--zero-range", "--offset", "3145728", "--length", "1048576", text(&path)]);
    let mut expected = pattern(3 << 20);
    expected[1..2 << 20].fill(0);
    let mut got = vec![0; 3 << 20];
    file.seek(SeekFrom::Start(2 << 20)).unwrap();
    file.read_exact(&mut got).unwrap();
    assert!(got == expected);
    assert_eq!(seek(&file, 3 << 20, libc::SEEK_DATA), 4 << 20);
    let plain = Command::new("fallocate").args(["--length", "4096", text(&path)]).output().unwrap();
    assert!(!plain.status.success());
    file.flush().unwrap();
    drop(file);
    server.stop().unwrap();
    place.assert_nothing_left();
}

fn seek(file: &File, offset: i64, whence: i32) -> i64 {
    let at = match whence {
        libc::SEEK_DATA => rustix::fs::SeekFrom::Data(offset as u64),
        _ => rustix::fs::SeekFrom::Hole(offset as u64),
    };
    rustix::fs::seek(file, at).map_or(-1, |n| n as i64)
}

#[test]
fn read_only_refuses_writes() {
    needs!(false);
    let place = Place::new();
    let mut request = place.request(&Arc::new(MemoryDisk::new(1)));
    (request.raw, request.read_only) = (true, true);
    let server = Server::start(request);
    let path = place.mountpoint().join("disk");
    let refused = File::options().write(true).open(&path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read(&path).unwrap(), vec![0; 1 << 20]);
    server.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn read_error_becomes_an_input_output_error() {
    needs!(false);
    let place = Place::new();
    let disk = Arc::new(MemoryDisk::new(1));
    let said = Arc::new(Mutex::new(Vec::new()));
    let mut request = place.request(&disk);
    request.raw = true;
    let log = Arc::clone(&said);
    request.log = Arc::new(move |e: &Error| log.lock().unwrap().push(e.to_string()));
    let server = Server::start(request);
    disk.fail_reads.store(true, Ordering::SeqCst);
    let error = fs::read(place.mountpoint().join("disk")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(said.lock().unwrap()[0], "read: block 0 does not verify");
    let status = fs::read_to_string(place.mountpoint().join("status")).unwrap();
    assert!(!status.contains("failed_requests 0 "), "{status}");
    server.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn file_system_keeps_a_tree() {
    needs!(true);
    let place = Place::new();
    let disk = Arc::new(MemoryDisk::new(512));
    let at = place.mountpoint();
    let tree = at.join("tree");

    let server = place.ext4(&disk, true);
    assert_eq!(running(Some(&place.base())).unwrap()[0].mountpoint, at.canonicalize().unwrap());
    run("cp", &["-a", "/usr/share/doc", text(&tree)]);
    File::open(&at).unwrap().sync_all().unwrap();
    assert!(disk.flushes.load(Ordering::SeqCst) > 0);
    server.stop().unwrap();
    place.assert_nothing_left();
    assert!(!tree.exists());

    let server = place.ext4(&disk, false);
    run("diff", &["--no-dereference", "-r", "/usr/share/doc", text(&tree)]);
    server.stop().unwrap();
    place.assert_nothing_left();

    let mut request = place.request(&disk);
    request.read_only = true;
    let server = Server::start(request);
    let refused = File::create(at.join("new")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(place.close().unwrap(), Closed::Cleanly);
    drop(server);
    place.assert_nothing_left();
    assert_eq!(disk.closes.load(Ordering::SeqCst), 3);
}

#[test]
fn trims_arrive_as_discards() {
    needs!(true);
    let place = Place::new();
    let disk = Arc::new(MemoryDisk::new(256));
    let server = place.ext4(&disk, true);
    let file = place.mountpoint().join("big");
    fs::write(&file, vec![7; 64 << 20]).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    fs::remove_file(&file).unwrap();
    run("sync", &["--file-system", text(&place.mountpoint())]);
    let before = disk.discarded.load(Ordering::SeqCst);
    run("fstrim", &[text(&place.mountpoint())]);
    let blocks = disk.discarded.load(Ordering::SeqCst) - before;
    assert!(blocks >= (64 << 20) / 4096, "{blocks} blocks discarded");
    let counters = status(&place.mountpoint(), Some(&place.base())).unwrap();
    assert_eq!(counters["items"][0]["value"], before + blocks);
    server.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn busy_file_system_stays_and_names_its_user() {
    needs!(true);
    let place = Place::new();
    let disk = Arc::new(MemoryDisk::new(64));
    let mut server = place.ext4(&disk, true);
    let mut user = Command::new("cat");
    user.current_dir(place.mountpoint()).stdin(Stdio::piped());
    let user = Process(user.spawn().unwrap());

    let error = place.close().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains(&format!("in use by cat (process {})", user.0.id())), "{error}");
    let flushes = disk.flushes.load(Ordering::SeqCst);
    server.stopper.request();
    wait_until("a flush, though it is busy", || disk.flushes.load(Ordering::SeqCst) > flushes);
    fs::write(place.mountpoint().join("still"), b"served").unwrap();
    drop(user);
    // The stop that came while the file system was busy may yet be pending, and then ends the server first.
    match place.close() {
        Ok(Closed::Cleanly) => {}
        Err(e) if e.kind() == Kind::NotFound => {}
        other => panic!("{other:?}"),
    }
    server.ended().unwrap();
    assert_eq!(disk.closes.load(Ordering::SeqCst), 1);
    place.assert_nothing_left();
}

#[test]
fn plain_umount_ends_the_server() {
    needs!(true);
    let place = Place::new();
    let disk = Arc::new(MemoryDisk::new(64));
    let mut server = place.ext4(&disk, true);
    fs::write(place.mountpoint().join("file"), b"kept").unwrap();
    run("umount", &[text(&place.mountpoint())]);
    server.ended().unwrap();
    place.assert_nothing_left();

    let mut server = place.raw(&disk);
    run("umount", &[text(&place.mountpoint())]);
    server.ended().unwrap();
    place.assert_nothing_left();

    let server = place.ext4(&disk, false);
    assert_eq!(fs::read(place.mountpoint().join("file")).unwrap(), b"kept");
    server.stop().unwrap();
    place.assert_nothing_left();
}

#[test]
fn failure_to_close_the_disk_reaches_whoever_closes() {
    needs!(true);
    let place = Place::new();
    let disk = Arc::new(MemoryDisk::new(64));
    let mut server = place.ext4(&disk, true);
    disk.fail_close.store(true, Ordering::SeqCst);
    let error = place.close().unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (Kind::FailStop, "the medium failed at block 7"));
    assert_eq!(server.ended().unwrap_err().kind(), Kind::FailStop);
    place.assert_nothing_left();
}

#[test]
fn refusals_say_what_to_do() {
    needs!(true);
    let place = Place::new();
    let disk = Arc::new(MemoryDisk::new(64));
    let refused = |change: &dyn Fn(&mut OpenRequest)| {
        let mut request = place.request(&disk);
        change(&mut request);
        let error = Opened::start(request).err().expect("a refusal");
        (error.kind(), error.to_string())
    };
    let says = |(kind, words): (Kind, String), wanted: Kind, part: &str| {
        assert!(kind == wanted && words.contains(part), "{kind:?}: {words}");
    };
    says(refused(&|_| {}), Kind::NotFound, "--mkfs ext4");
    says(refused(&|r| r.mountpoint.push("missing")), Kind::NotFound, "mkdir -p");
    says(refused(&|r| r.mountpoint = "/proc/version".into()), Kind::Usage, "expected: a directory");
    says(refused(&|r| r.mountpoint = "/proc".into()), Kind::Busy, "mounted there already");
    says(refused(&|r| r.mkfs = Some("../sh".into())), Kind::Usage, "../sh");
    says(refused(&|r| r.mkfs = Some("nosuchfs".into())), Kind::NotFound, "mkfs.nosuchfs");
    says(refused(&|r| (r.raw, r.mkfs) = (true, Some("ext4".into()))), Kind::Usage, "--raw");
    disk.fail_reads.store(true, Ordering::SeqCst);
    says(refused(&|r| r.mkfs = Some("ext4".into())), Kind::Corrupt, "does not verify");
    disk.fail_reads.store(false, Ordering::SeqCst);
    place.assert_nothing_left();

    let server = place.ext4(&disk, true);
    says(refused(&|_| {}), Kind::Busy, "lacuna close");
    server.stop().unwrap();
    says(refused(&|r| r.mkfs = Some("xfs".into())), Kind::Usage, "ext4 already on the disk");
    let error = place.close().unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    place.assert_nothing_left();
}

#[test]
fn unknown_data_is_not_overwritten() {
    needs!(true);
    let place = Place::new();
    let disk = Arc::new(MemoryDisk::new(64));
    let mkfs = || {
        let mut request = place.request(&disk);
        request.mkfs = Some("ext4".to_owned());
        Opened::start(request).err().expect("a refusal").to_string()
    };
    // Written and given back again, and only in part: blank. One byte further on: not.
    disk.write(BlockAddr(5000), &pattern(8192)).unwrap();
    disk.discard(BlockAddr(5000), 2).unwrap();
    let mut block = vec![0; 4096];
    block[77] = 1;
    disk.write(BlockAddr(9000), &block).unwrap();
    let said = mkfs();
    assert!(said.contains("data of no known kind from byte 36864077 on"), "{said}");
    place.assert_nothing_left();

    // The remedy in the words of the error.
    let server = place.raw(&disk);
    let file = place.mountpoint().join("disk");
    let line = said.split("`fallocate ").nth(1).unwrap().split('`').next().unwrap();
    let line = line.replace("MOUNTPOINT/disk", text(&file));
    run("fallocate", &line.split(' ').collect::<Vec<_>>());
    server.stop().unwrap();
    place.ext4(&disk, true).stop().unwrap();
    place.assert_nothing_left();
}

/// The example that serves a disk from a process of its own. It is built along with the tests.
fn memory_server() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let path = test.parent()?.parent()?.join("examples/memory_server");
    path.exists().then_some(path)
}

#[test]
fn server_in_the_background_closes_and_what_a_dead_one_leaves_is_cleared() {
    needs!(true);
    let Some(program) = memory_server() else {
        skipped("the example memory_server is not built");
        return;
    };
    let place = Place::new();
    let start = |more: &[&str]| {
        let (base, at) = (place.base(), place.mountpoint());
        Command::new(&program).args([text(&base), text(&at)]).args(more).arg("background").output().unwrap()
    };
    let failed = start(&[]);
    assert_eq!(failed.status.code(), Some(i32::from(Kind::NotFound.exit_code())));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("--mkfs ext4"));
    place.assert_nothing_left();

    assert!(start(&["mkfs=ext4"]).status.success());
    fs::write(place.mountpoint().join("file"), b"x").unwrap();
    assert_eq!(start(&["mkfs=ext4"]).status.code(), Some(i32::from(Kind::Busy.exit_code())));
    assert_eq!(place.close().unwrap(), Closed::Cleanly);
    place.assert_nothing_left();

    // Dead, and in use all the same.
    let kill = |started: &std::process::Output| {
        assert!(started.status.success());
        let number = String::from_utf8_lossy(&started.stdout).trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(number).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    };
    let started = start(&["mkfs=ext4"]);
    let mut user = Command::new("cat");
    let user = Process(user.current_dir(place.mountpoint()).stdin(Stdio::piped()).spawn().unwrap());
    kill(&started);
    let mut busy = String::new();
    wait_until("the end of the server", || {
        let error = place.close().unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        busy = error.to_string();
        busy.contains("in use by")
    });
    assert!(busy.contains(&format!("cat (process {})", user.0.id())), "{busy}");
    drop(user);

    // Someone unmounts the dead file system by hand; a new server clears the rest away.
    run("umount", &[text(&place.mountpoint())]);
    let again = start(&["mkfs=ext4"]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(place.close().unwrap(), Closed::Cleanly);
    place.assert_nothing_left();

    for mode in ["mkfs=ext4", "raw"] {
        kill(&start(&[mode]));
        assert_eq!(wait_closed(&place), Closed::AfterCrash);
        place.assert_nothing_left();
    }
}

/// Closes after a kill. Until the kernel has finished with the dead process, the server seems to be busy.
fn wait_closed(place: &Place) -> Closed {
    let mut closed = None;
    wait_until("the end of the server", || match place.close() {
        Ok(how) => closed.insert(how) == &how,
        Err(e) if e.kind() == Kind::Busy => false,
        Err(e) => panic!("{e}"),
    });
    closed.unwrap()
}

/// Waits until something that must happen has happened.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("never happened: {what}");
}
