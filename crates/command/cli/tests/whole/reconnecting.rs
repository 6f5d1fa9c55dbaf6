//! Clients that reconnect by themselves, while the servers of a keeper are killed. Those of QEMU
//! (`reconnect-delay`) are `qemu-io`, fio through `qemu-nbd`, and a mounted ext4 on a file of
//! `qemu-storage-daemon`. libnbd does not reconnect, and neither does fio's NBD engine, which uses
//! it. nbdkit's `retry` filter connects libnbd again and repeats the request.
//!
//! `LACUNA_KILLS` sets how often each test kills a server. By default all tests together do so 50
//! times.

use crate::clients::has_fio_with_nbd;
use crate::harness::{
    CloseOnDrop, Device, Scene, Serving, Signal, can_mount_ext4, noise, send, skip_unless, skipped,
    wait_until,
};
use crate::keeper::{serve_kept, server_of, verify_all};
use crate::nbd_client::Client;
use crate::write_verifier::{WriteVerifier, Xorshift};
use lacuna_testkit::{env_number, is_program_available};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How `qemu-io` says that a command is done.
const PROMPT: &str = "qemu-io> ";

/// Kills the present server, which serves clients, and waits for the next process.
pub(crate) fn kill_server(serving: &Serving) {
    // A server that dies before it accepts clients counts as one that failed.
    drop(Client::connect(&serving.socket).unwrap());
    let server = server_of(serving.process()).expect("a server");
    send(Signal::KILL, server);
    wait_until("the next server", || server_of(serving.process()).is_some_and(|now| now != server));
}

/// Kills servers one after the other, each some time after the last one.
fn kill_servers(serving: &Serving, kills: u64) {
    let mut dice = Xorshift(env_number("LACUNA_SEED", 1) * 7919 + kills);
    for _ in 0..kills {
        thread::sleep(Duration::from_millis(20 + dice.below(200)));
        kill_server(serving);
    }
}

/// QEMU's options for a client of this server.
fn blockdev(serving: &Serving) -> String {
    format!("driver=nbd,server.type=unix,server.path={},reconnect-delay=60", serving.socket.display())
}

/// A program in the background, which ends with the test.
struct Background(Child);

impl Background {
    fn start(command: &mut Command) -> Background {
        Background(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// Ends it as a service manager would.
    fn stop(mut self) {
        send(Signal::TERM, self.0.id());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A `qemu-io` that executes one command after the other.
struct QemuIo {
    child: Child,
    commands: ChildStdin,
    said: ChildStdout,
}

impl QemuIo {
    fn start(serving: &Serving) -> QemuIo {
        let mut command = Command::new("qemu-io");
        command.args(["--image-opts", &blockdev(serving)]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (commands, said) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut qemu_io = QemuIo { child, commands, said };
        qemu_io.until_prompt();
        qemu_io
    }

    /// Its output up to the next prompt.
    fn until_prompt(&mut self) -> String {
        let mut said = Vec::new();
        while !said.ends_with(PROMPT.as_bytes()) {
            let mut byte = [0];
            self.said.read_exact(&mut byte).unwrap();
            said.push(byte[0]);
        }
        String::from_utf8_lossy(&said).into_owned()
    }

    #[track_caller]
    fn run(&mut self, command: &str, done: &str) {
        writeln!(self.commands, "{command}").unwrap();
        let said = self.until_prompt();
        assert!(said.contains(done) && !said.contains("failed"), "{command}: {said}");
    }

    /// Writes 64 KiB of one pattern in a slot.
    #[track_caller]
    fn write(&mut self, slot: u64, pattern: u8) {
        self.run(&format!("write -P {pattern} {}k 64k", slot * 64), "wrote 65536/65536");
    }

    #[track_caller]
    fn verify(&mut self, slot: u64, pattern: u8) {
        self.run(&format!("read -P {pattern} {}k 64k", slot * 64), "read 65536/65536");
    }
}

impl Drop for QemuIo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn qemu_goes_on_and_finds_all_that_it_wrote_after_the_death_of_servers() {
    skip_unless!(is_program_available("qemu-io"));
    let kills = env_number("LACUNA_KILLS", 14);
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = serve_kept(&scene, &[]);
    let mut qemu_io = QemuIo::start(&serving);
    let mut dice = Xorshift(env_number("LACUNA_SEED", 1) + 1);
    let mut patterns = [0; 16];
    for kill in 0..kills {
        // Two writes that no flush follows: one before the death of the server, and one after it,
        // which QEMU holds back until there is another server.
        for dies_after in [true, false] {
            let (slot, pattern) = (dice.below(16), 1 + dice.below(255) as u8);
            qemu_io.write(slot, pattern);
            patterns[slot as usize] = pattern;
            if dies_after {
                kill_server(&serving);
            }
        }
        if kill % 4 == 3 {
            qemu_io.run("flush", "");
        }
        (0..).zip(patterns).for_each(|(slot, pattern)| qemu_io.verify(slot, pattern));
    }
    drop(qemu_io);
    assert_eq!(serving.stop(), 0);
    let serving = scene.serve(&[]);
    let mut client = Client::connect(&serving.socket).unwrap();
    for (slot, pattern) in (0..).zip(patterns) {
        assert!(client.read_at(slot * (64 << 10), 64 << 10).unwrap() == [pattern; 64 << 10], "slot {slot}");
    }
}

#[test]
fn fio_verifies_its_writes_while_servers_die() {
    skip_unless!(is_program_available("qemu-nbd") && is_program_available("fio") && has_fio_with_nbd());
    let kills = env_number("LACUNA_KILLS", 12);
    let scene = Scene::with_disk(&["--size", "64M", "--cipher", "gcm"]);
    let serving = serve_kept(&scene, &["--cache", "4M"]);
    let proxy = scene.path("proxy.sock");
    let mut command = Command::new("qemu-nbd");
    command.args(["--image-opts", "--persistent", "--shared=8", "--socket"]).arg(&proxy);
    let reconnecting = Background::start(command.arg(blockdev(&serving)));
    wait_until("the socket of qemu-nbd", || UnixStream::connect(&proxy).is_ok());
    let uri = format!("--uri=nbd+unix:///?socket={}", proxy.display());
    thread::scope(|scope| {
        let killer = scope.spawn(|| kill_servers(&serving, kills));
        // Each round has other contents than the one before.
        for round in 1.. {
            let (seed, last) = (format!("--randseed={round}"), killer.is_finished());
            let job = ["--name=verify", "--ioengine=nbd", &uri, "--rw=randwrite", "--bs=4k", "--size=24m"];
            let more = ["--verify=crc32c", "--do_verify=1", "--iodepth=16", "--end_fsync=1", &seed];
            scene.tool("fio", &[&job[..], &more].concat());
            if last {
                break;
            }
        }
    });
    reconnecting.stop();
    assert_eq!(serving.stop(), 0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
}

/// Kills servers, each after it has acknowledged writes of every client.
fn kill_busy_servers(serving: &Serving, acknowledged: &[AtomicU64], kills: u64) {
    let mut dice = Xorshift(env_number("LACUNA_SEED", 1) * 7919 + kills);
    let counts = || acknowledged.iter().map(|count| count.load(Ordering::Relaxed));
    for _ in 0..kills {
        // Of these, the last server may have acknowledged one for each client.
        let more = 5 + dice.below(100);
        let enough: Vec<u64> = counts().map(|count| count + more).collect();
        wait_until("writes of every client", || counts().zip(&enough).all(|(now, enough)| now >= *enough));
        kill_server(serving);
    }
}

#[test]
fn clients_of_libnbd_go_on_and_find_all_that_they_wrote_after_the_death_of_servers() {
    let missing = "the nbdkit of this machine lacks the plugin `nbd` or the filter `retry`";
    skip_unless!(says("nbdkit", &["--filter=retry", "nbd", "--dump-plugin"], "libnbd_version=", missing));
    let kills = env_number("LACUNA_KILLS", 12);
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = serve_kept(&scene, &["--cache", "4M"]);
    let proxy = scene.path("proxy.sock");
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--filter=retry", "--unix"]).arg(&proxy);
    command.args(["nbd", "retries=60", "retry-delay=1", "retry-exponential=no"]);
    let reconnecting = Background::start(command.arg(format!("socket={}", serving.socket.display())));
    wait_until("the socket of nbdkit", || UnixStream::connect(&proxy).is_ok());
    // The filter repeats requests, but no first connection: all are made before a server dies.
    let clients = [(); 3].map(|()| Client::connect(&proxy).unwrap());
    let mut writers = [0..2000, 2000..4000, 4000..6000].map(|blocks| WriteVerifier::new("", blocks, 200));
    writers.iter_mut().for_each(WriteVerifier::keep_acknowledged);
    let (acknowledged, ends) = ([0; 3].map(AtomicU64::new), AtomicBool::new(false));
    thread::scope(|scope| {
        for (((mut client, writer), count), at) in
            clients.into_iter().zip(&mut writers).zip(&acknowledged).zip(1..)
        {
            let ends = &ends;
            let mut dice = Xorshift(env_number("LACUNA_SEED", 1) * 1000 + at);
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    writer.write(&mut client, &mut dice).unwrap();
                    count.fetch_add(1, Ordering::Relaxed);
                    if dice.below(50) == 0 {
                        writer.verify(&mut client, "while servers die");
                    }
                }
                writer.verify(&mut client, "after the last death");
            });
        }
        let killed = scope.spawn(|| kill_busy_servers(&serving, &acknowledged, kills)).join();
        ends.store(true, Ordering::Relaxed);
        killed.unwrap();
    });
    reconnecting.stop();
    assert_eq!(serving.stop(), 0);
    let serving = scene.serve(&[]);
    verify_all(&serving.socket, &mut writers, "closed");
    assert_eq!(serving.stop(), 0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
}

/// A directory with a mount, which is unmounted when the test ends.
struct Mount(PathBuf);

impl Mount {
    fn unmount(self) {
        assert!(Command::new("umount").arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        let _ = unmount.args(["--quiet", "--lazy"]).arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// Writes, renames, syncs and deletes files until `ends`. Returns the contents that must be there,
/// by name.
fn use_files(dir: &Path, ends: impl Fn() -> bool) -> Vec<Option<(u64, usize)>> {
    let mut dice = Xorshift(env_number("LACUNA_SEED", 1) + 77);
    let mut files = vec![None; 40];
    for number in 1.. {
        let at = dice.below(40) as usize;
        let path = dir.join(format!("f{at}"));
        if dice.below(5) == 0 && files[at].take().is_some() {
            fs::remove_file(&path).unwrap();
        } else {
            let (new, len) = (dir.join("new"), dice.below(200 << 10) as usize);
            let mut file = fs::File::create(&new).unwrap();
            file.write_all(&noise(number, len)).unwrap();
            if dice.below(3) == 0 {
                file.sync_all().unwrap();
            }
            fs::rename(&new, &path).unwrap();
            files[at] = Some((number, len));
        }
        if ends() {
            break;
        }
    }
    files
}

fn assert_files(dir: &Path, files: &[Option<(u64, usize)>]) {
    for (at, file) in files.iter().enumerate() {
        let path = dir.join(format!("f{at}"));
        match file {
            Some((number, len)) => assert!(fs::read(&path).unwrap() == noise(*number, *len), "f{at}"),
            None => assert!(!path.exists(), "f{at}"),
        }
    }
}

/// Whether `qemu-storage-daemon` can be run, and shows disks as files; prints a message if not.
fn has_fuse_of_qemu() -> bool {
    let missing = "the qemu-storage-daemon of this machine has no FUSE";
    says("qemu-storage-daemon", &["--help"], "--export [type=]fuse", missing)
}

/// Whether a program can be run, and its output contains `words`; prints `missing` if it does not.
fn says(program: &str, args: &[&str], words: &str, missing: &str) -> bool {
    if !is_program_available(program) {
        return false;
    }
    let output = Command::new(program).args(args).output().unwrap().stdout;
    let says_so = String::from_utf8_lossy(&output).contains(words);
    if !says_so {
        skipped(missing);
    }
    says_so
}

#[test]
fn a_mounted_ext4_sees_no_error_while_servers_die() {
    skip_unless!(can_mount_ext4() && has_fuse_of_qemu());
    let kills = env_number("LACUNA_KILLS", 12);
    let scene = Scene::with_disk(&["--size", "96M"]);
    let serving = serve_kept(&scene, &[]);
    fs::write(scene.path("file"), "").unwrap();
    let file = Mount(scene.path("file"));
    let mut command = Command::new("qemu-storage-daemon");
    command
        .arg("--blockdev")
        .arg(format!("node-name=disk,{}", blockdev(&serving)))
        .arg("--export")
        .arg(format!("type=fuse,id=file,node-name=disk,writable=on,mountpoint={}", file.0.display()));
    let daemon = Background::start(&mut command);
    wait_until("the file of the disk", || fs::metadata(&file.0).is_ok_and(|about| about.len() == 96 << 20));
    scene.tool("mkfs.ext4", &["-q", "-F", "file"]);
    let device = Device::over(&scene, &["file"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    scene.tool("mount", &["-t", "ext4", &device.0, "mnt"]);
    let mount = Mount(scene.path("mnt"));
    let files = thread::scope(|scope| {
        let killer = scope.spawn(|| kill_servers(&serving, kills));
        use_files(&mount.0, || killer.is_finished())
    });
    assert_files(&mount.0, &files);
    let name = device.0.trim_start_matches("/dev/");
    let errors = fs::read_to_string(format!("/sys/fs/ext4/{name}/errors_count")).unwrap();
    assert_eq!(errors.trim(), "0");
    mount.unmount();
    scene.tool("e2fsck", &["-f", "-n", &device.0]);
    drop(device);
    daemon.stop();
    drop(file);
    assert_eq!(serving.stop(), 0);
    // All of it is on the medium.
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    scene.lacuna(&["open", "disk.img", "mnt", "--key-file", "key"]).code(0);
    assert_files(&scene.path("mnt"), &files);
    scene.lacuna(&["close", "mnt"]).code(0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
}
