//! Users other than root: each mounts file systems, and none can list or change another user's
//! mounts.

use crate::boot::HelperLinks;
use crate::harness::{
    CHEAP, RunOutput, Scene, Signal, can_mount, is_program_available, noise, send, skipped, wait_until,
};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Prepares a mount namespace with two more users, a vault of one of them in fstab, and a FUSE
/// device that they may open, as on an ordinary system. Run directories of the machine are covered.
const SETUP_SCRIPT: &str = "
mount --bind passwd /etc/passwd && { test ! -e /etc/fstab || mount --bind fstab /etc/fstab; } &&
mount -t tmpfs -o mode=755,dev none dev && mknod dev/fuse c 10 229 && chmod 666 dev/fuse &&
mount --bind dev/fuse /dev/fuse &&
mount -t tmpfs -o mode=1777 none /dev/shm &&
mkdir -p -m 700 /run/lacuna && mount -t tmpfs -o mode=700 none /run/lacuna &&
{ test ! -d /run/user || mount -t tmpfs -o mode=755 none /run/user; } &&
echo ready && exec sleep 1000
";

/// The users.
pub(crate) const FIRST: u32 = 64_001;
pub(crate) const SECOND: u32 = 64_002;

/// Two users with homes, in a mount namespace of their own; the first has a vault `v` in fstab.
pub(crate) struct TwoUsers {
    scene: Scene,
    namespace_keeper: Child,
    program: PathBuf,
}

impl TwoUsers {
    /// Returns `None`, with a message, if this machine lacks a requirement.
    pub(crate) fn new() -> Option<TwoUsers> {
        if !rustix::process::geteuid().is_root() {
            skipped("becoming another user needs root");
            return None;
        }
        if !can_mount("/dev/fuse")
            || !["fusermount3", "setpriv", "nsenter", "unshare"].iter().all(|p| is_program_available(p))
        {
            return None;
        }
        if !Path::new("/usr/bin/fuse2fs").exists() {
            skipped("this machine has no fuse2fs");
            return None;
        }
        let scene = Scene::new();
        fs::set_permissions(scene.path("."), fs::Permissions::from_mode(0o755)).unwrap();
        let names = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let home = |user| scene.path(&format!("home-{user}"));
        let line = |user| format!("user-{user}:x:{user}:{user}::{}:/bin/sh\n", home(user).display());
        fs::write(scene.path("passwd"), names + &line(FIRST) + &line(SECOND)).unwrap();
        let at = home(FIRST).display().to_string();
        let vault = format!("{at}/v {at}/mnt lacuna noauto,user,keyfile={at}/key 0 0\n");
        fs::write(scene.path("fstab"), vault).unwrap();
        fs::create_dir(scene.path("dev")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", SETUP_SCRIPT]).current_dir(scene.path("."));
        let holder = command.stdout(fs::File::create(scene.path("ready")).unwrap()).spawn().unwrap();
        let program = scene.path("lacuna");
        let built = env!("CARGO_BIN_EXE_lacuna");
        fs::hard_link(built, &program).or_else(|_| fs::copy(built, &program).map(drop)).unwrap();
        let mut town = TwoUsers { scene, namespace_keeper: holder, program };
        wait_until("a device that all may use", || {
            assert!(town.namespace_keeper.try_wait().unwrap().is_none(), "no device that all may use");
            fs::read_to_string(town.scene.path("ready")).unwrap() == "ready\n"
        });
        for user in [FIRST, SECOND] {
            fs::create_dir_all(town.home(user).join("mnt")).unwrap();
            fs::copy(town.scene.path("key"), town.home(user).join("key")).unwrap();
            for path in [town.home(user), town.home(user).join("mnt"), town.home(user).join("key")] {
                chown(path, Some(user), Some(user)).unwrap();
            }
        }
        Some(town)
    }

    pub(crate) fn home(&self, user: u32) -> PathBuf {
        self.scene.path(&format!("home-{user}"))
    }

    /// A command of a user, in its home, without XDG_RUNTIME_DIR.
    pub(crate) fn command(&self, user: u32, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.namespace_keeper.id())).arg("setpriv");
        let id = user.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
        command.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]).arg(self.home(user)).args(words);
        command.env_remove("XDG_RUNTIME_DIR").env("HOME", self.home(user)).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, user: u32, words: &[&str]) -> RunOutput {
        self.command(user, words).output().unwrap().into()
    }

    pub(crate) fn lacuna(&self, user: u32, args: &[&str]) -> RunOutput {
        self.run(user, &[&[self.program()][..], args].concat())
    }

    /// Runs the program as root, who has no run directory besides `/run/lacuna`.
    pub(crate) fn root(&self, args: &[&str]) -> RunOutput {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.namespace_keeper.id()))
            .arg(self.program())
            .args(args);
        command.env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null()).output().unwrap().into()
    }

    pub(crate) fn program(&self) -> &str {
        self.program.to_str().unwrap()
    }

    pub(crate) fn create(&self, user: u32) {
        let args = [&["create", "disk.img", "--size", "64M", "--key-file", "key"][..], &CHEAP].concat();
        self.lacuna(user, &args).code(0);
    }

    /// The entry of `status --json` for the only server; null without one.
    pub(crate) fn server(&self, user: u32) -> serde_json::Value {
        self.lacuna(user, &["status", "--json"]).code(0).json()["servers"].get(0).cloned().unwrap_or_default()
    }

    /// The child process of a user's server.
    fn child_of(pid: &serde_json::Value) -> u64 {
        let line = format!("PPid:\t{pid}");
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut numbers = processes.filter_map(|p| p.file_name().to_str()?.parse::<u64>().ok());
        let is_child = |n: &u64| {
            let status = fs::read_to_string(format!("/proc/{n}/status")).unwrap_or_default();
            status.lines().any(|found| found == line)
        };
        numbers.find(is_child).expect("a program that serves the file system")
    }
}

impl Drop for TwoUsers {
    fn drop(&mut self) {
        for user in [FIRST, SECOND] {
            let _ = self.lacuna(user, &["-q", "close", "--all", "--force"]);
        }
        let _ = self.namespace_keeper.kill();
        let _ = self.namespace_keeper.wait();
    }
}

pub(crate) const OPEN: [&str; 5] = ["open", "disk.img", "mnt", "--key-file", "key"];

#[test]
fn a_user_creates_opens_uses_and_closes_a_mounted_disk() {
    let Some(town) = TwoUsers::new() else { return };
    town.create(FIRST);
    let said = town.lacuna(FIRST, &[&OPEN[..], &["--via", "loop"]].concat()).code(2).stderr;
    assert!(said.contains("--via") && said.contains("root"), "{said}");
    town.lacuna(FIRST, &[&OPEN[..], &["--mkfs", "xfs"]].concat()).code(4);
    assert!(!town.scene.path("home-64001/mnt/disk").exists());
    let opened = town.lacuna(FIRST, &[&OPEN[..], &["--mkfs", "ext4"]].concat()).code(0);
    assert!(opened.stderr.is_empty(), "{}", opened.stderr);
    assert_eq!(town.server(FIRST)["via"], "fuse2fs");
    // A core dump of the program, which has files in its memory, contains no memory.
    let program = TwoUsers::child_of(&town.server(FIRST)["pid"]);
    let dumped = fs::read_to_string(format!("/proc/{program}/coredump_filter")).unwrap();
    assert_eq!(u32::from_str_radix(dumped.trim(), 16), Ok(0));
    fs::write(town.home(FIRST).join("large"), noise(3, 20 << 20)).unwrap();
    town.run(FIRST, &["ls", "mnt/lost+found"]).code(0);
    town.run(FIRST, &["sh", "-c", "mkdir mnt/d && cp large mnt/d/large && ln mnt/d/large mnt/link"]).code(0);
    let busy = town.run(FIRST, &["sh", "-c", &format!("cd mnt && exec {} close .", town.program())]).code(5);
    assert!(busy.stderr.contains("in use by"), "{}", busy.stderr);
    town.lacuna(FIRST, &["close", "mnt"]).code(0);
    town.lacuna(FIRST, &["close", "mnt"]).code(4);
    town.lacuna(FIRST, &["check", "disk.img", "--key-file", "key"]).code(0);

    town.lacuna(FIRST, &[&OPEN[..], &["--read-only"]].concat()).code(0);
    town.run(FIRST, &["cmp", "large", "mnt/link"]).code(0);
    assert_ne!(town.run(FIRST, &["touch", "mnt/new"]).code, 0);
    // The server also ends after an unmount by another program.
    town.run(FIRST, &["fusermount3", "-u", "mnt"]).code(0);
    wait_until("the end of the server", || town.server(FIRST).is_null());
    town.lacuna(FIRST, &OPEN).code(0);
    town.run(FIRST, &["rm", "-r", "mnt/d", "mnt/link"]).code(0);
    town.lacuna(FIRST, &["close", "disk.img"]).code(0);
}

#[test]
fn a_full_directory_is_refused_before_the_passphrase() {
    let Some(town) = TwoUsers::new() else { return };
    town.create(FIRST);
    town.run(FIRST, &["touch", "mnt/file"]).code(0);
    let said = town.lacuna(FIRST, &["open", "disk.img", "mnt", "--askpass", "false"]).code(1).stderr;
    assert!(said.contains("expected: an empty one, which fuse2fs needs"), "{said}");
    // lacuna's own file can be mounted over it.
    town.lacuna(FIRST, &[&OPEN[..], &["--raw"]].concat()).code(0);
    town.lacuna(FIRST, &["close", "mnt"]).code(0);
    town.run(FIRST, &["test", "-e", "mnt/file"]).code(0);
}

#[test]
fn a_user_gets_a_mount_point_that_goes_with_the_mount() {
    let Some(town) = TwoUsers::new() else { return };
    town.create(FIRST);
    let open = |options: &[&str]| {
        town.lacuna(FIRST, &[&["open", "disk.img", "made", "--key-file", "key"], options].concat())
    };
    let is_gone = || town.run(FIRST, &["test", "!", "-e", "made"]).code == 0;
    for options in [&["--mkfs", "ext4"][..], &["--raw"]] {
        open(options).code(0);
        town.lacuna(FIRST, &["close", "made"]).code(0);
        assert!(is_gone(), "{options:?}");
    }
    // Below the mount nothing can be written, also when the mount is gone without the server.
    open(&[]).code(0);
    let server = town.server(FIRST)["pid"].take();
    let program = serde_json::json!(TwoUsers::child_of(&server));
    send(Signal::KILL, &server);
    send(Signal::KILL, &program);
    wait_until("the end of the server", || town.lacuna(FIRST, &["status"]).stdout.contains("died"));
    town.run(FIRST, &["fusermount3", "-u", "-z", "made"]).code(0);
    assert_ne!(town.run(FIRST, &["touch", "made/file"]).code, 0);
    town.lacuna(FIRST, &["close", "made"]).code(0);
    assert!(is_gone());
    // A stop of the machine leaves such a directory too, and no record.
    town.run(FIRST, &["mkdir", "-m", "0", "made"]).code(0);
    open(&[]).code(0);
    town.lacuna(FIRST, &["close", "made"]).code(0);
    assert!(is_gone());
}

/// mount(8) does not pass on `$HOME`: the anchor of the vault is in the home directory from the
/// user database.
#[test]
fn a_user_mounts_a_vault_that_is_in_fstab() {
    let Some(town) = TwoUsers::new() else { return };
    if fs::metadata("/bin/mount").is_ok_and(|meta| meta.permissions().mode() & 0o4000 == 0) {
        return skipped("mount(8) of this machine is for root alone");
    }
    if fs::symlink_metadata("/etc/fstab").is_err() {
        return skipped("this machine has no fstab");
    }
    let Some(_helpers) = HelperLinks::link(town.program()) else { return };
    town.lacuna(FIRST, &[&["vault", "init", "v", "--key-file", "key"][..], &CHEAP].concat()).code(0);
    let at = town.home(FIRST).join("mnt").display().to_string();
    for use_it in ["echo written > mnt/file", "grep written mnt/file"] {
        town.run(FIRST, &["mount", &at]).code(0);
        town.run(FIRST, &["sh", "-c", use_it]).code(0);
        town.lacuna(FIRST, &["close", "mnt"]).code(0);
    }
    // Both found the anchor that `vault init` wrote, and neither created another.
    let anchors = fs::read_dir(town.home(FIRST).join(".local/state/lacuna/anchors")).unwrap();
    assert_eq!(anchors.count(), 1);
    // Another user's unreadable home is reported as a lack of permission.
    town.run(SECOND, &["mount", &at]).code(1);
}

#[test]
fn lklfuse_is_started_as_its_manual_says() {
    let Some(town) = TwoUsers::new() else { return };
    town.create(FIRST);
    // lklfuse has no package: this script records its arguments, and fuse2fs does the work.
    let bin = town.home(FIRST).join("bin");
    fs::create_dir(&bin).unwrap();
    let script = format!(
        "#!/bin/sh\necho \"$@\" > {}/said\nexec fuse2fs \"$1\" \"$2\" -f\n",
        town.home(FIRST).display()
    );
    fs::write(bin.join("lklfuse"), script).unwrap();
    fs::set_permissions(bin.join("lklfuse"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    let open = [&["env", &path, town.program()][..], &OPEN, &["--mkfs", "ext4", "--via", "lklfuse"]].concat();
    town.run(FIRST, &open).code(0);
    assert_eq!(town.server(FIRST)["via"], "lklfuse");
    let said = fs::read_to_string(town.home(FIRST).join("said")).unwrap();
    assert!(said.contains("-f -o type=ext4,fsname=") && said.contains("/fuse/disk"), "{said}");
    town.lacuna(FIRST, &["close", "mnt"]).code(0);
}

#[test]
fn fsynced_data_survives_the_kill_of_all_processes() {
    let Some(town) = TwoUsers::new() else { return };
    town.create(FIRST);
    town.lacuna(FIRST, &[&OPEN[..], &["--mkfs", "ext4"]].concat()).code(0);
    fs::write(town.home(FIRST).join("kept"), noise(4, 3 << 20)).unwrap();
    town.run(FIRST, &["dd", "if=kept", "of=mnt/kept", "bs=64k", "conv=fsync", "status=none"]).code(0);
    town.run(FIRST, &["cp", "kept", "mnt/not-synced"]).code(0);
    let server = town.server(FIRST)["pid"].take();
    let program = serde_json::json!(TwoUsers::child_of(&server));
    send(Signal::KILL, &server);
    send(Signal::KILL, &program);
    wait_until("the end of the server", || town.lacuna(FIRST, &["status"]).stdout.contains("died"));
    let said = town.lacuna(FIRST, &OPEN).code(0).stderr;
    assert!(said.contains("had died; its mount is cleared away"), "{said}");
    town.run(FIRST, &["cmp", "kept", "mnt/kept"]).code(0);

    // Only the server is killed: the mount of its program is cleaned up as well.
    send(Signal::KILL, &town.server(FIRST)["pid"]);
    wait_until("the end of the server", || town.lacuna(FIRST, &["status"]).stdout.contains("died"));
    assert!(town.lacuna(FIRST, &["close", "mnt"]).code(0).stderr.contains("died"));
    assert_eq!(town.run(FIRST, &["grep", "-c", "home-64001", "/proc/self/mountinfo"]).stdout, "0\n");

    // Only the program is killed: this is reported and repaired.
    town.lacuna(FIRST, &OPEN).code(0);
    town.run(FIRST, &["cmp", "kept", "mnt/kept"]).code(0);
    send(Signal::KILL, serde_json::json!(TwoUsers::child_of(&town.server(FIRST)["pid"])));
    wait_until("that the end of the program is told", || {
        town.server(FIRST)["last_error"].as_str().is_some_and(|said| said.contains("fuse2fs failed"))
    });
    assert_ne!(town.run(FIRST, &["touch", "mnt/nowhere"]).code, 0);
    let said = town.lacuna(FIRST, &["close", "mnt"]).code(20).stderr;
    assert!(said.contains("signal 9"), "{said}");
    town.lacuna(FIRST, &OPEN).code(0);
    town.run(FIRST, &["cmp", "kept", "mnt/kept"]).code(0);
    town.lacuna(FIRST, &["close", "mnt"]).code(0);
}

#[test]
fn users_do_not_see_mounts_of_other_users() {
    let Some(town) = TwoUsers::new() else { return };
    for user in [FIRST, SECOND] {
        town.create(user);
        town.lacuna(user, &[&OPEN[..], &["--mkfs", "ext2"]].concat()).code(0);
    }
    for (user, other) in [(FIRST, SECOND), (SECOND, FIRST)] {
        let theirs = town.lacuna(user, &["status", "--json"]).code(0).json();
        assert_eq!(theirs["servers"].as_array().unwrap().len(), 1);
        assert!(!theirs.to_string().contains(&format!("home-{other}")), "{theirs}");
        let mountpoint = town.home(other).join("mnt");
        let said = town.lacuna(user, &["close", mountpoint.to_str().unwrap()]).code(4).stderr;
        assert!(said.contains(&format!("user {other}")), "{said}");
    }
    // A disk that both users may read and write is open for one of them.
    let disk = town.home(FIRST).join("disk.img");
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o666)).unwrap();
    town.lacuna(SECOND, &["close", "mnt"]).code(0);
    let said =
        town.lacuna(SECOND, &["open", disk.to_str().unwrap(), "mnt", "--key-file", "key"]).code(5).stderr;
    assert!(said.contains("another user"), "{said}");
    // A directory that another user created in the place of the user's own run directory is not
    // trusted, and does not block the user.
    let planted = format!("/dev/shm/lacuna-{SECOND}");
    // Marks of disks that were closed well stay there.
    let clear = format!("rm -rf {planted}/closed && rmdir {planted} || test ! -e {planted}");
    wait_until("that nothing is left there", || town.run(SECOND, &["sh", "-c", &clear]).code == 0);
    town.run(FIRST, &["mkdir", &planted]).code(0);
    town.lacuna(SECOND, &["status"]).code(0);
    town.lacuna(SECOND, &["open", "disk.img", "mnt", "--key-file", "key"]).code(0);
    town.run(SECOND, &["test", "-d", &format!("{planted}-2")]).code(0);
    town.lacuna(SECOND, &["close", "mnt"]).code(0);
    town.run(FIRST, &["rmdir", &planted]).code(0);
    assert_eq!(town.server(FIRST)["via"], "fuse2fs");
    town.lacuna(FIRST, &["close", "mnt"]).code(0);
}

#[test]
fn servers_are_found_in_every_run_directory_of_the_user() {
    let Some(town) = TwoUsers::new() else { return };
    town.create(FIRST);
    // Without a login session, the run directory is in shared memory.
    town.lacuna(FIRST, &[&OPEN[..], &["--mkfs", "ext4"]].concat()).code(0);
    town.run(FIRST, &["mkdir", "-m", "700", "run"]).code(0);
    let base = format!("XDG_RUNTIME_DIR={}", town.home(FIRST).join("run").display());
    let lacuna = |args: &[&str]| town.run(FIRST, &[&["env", &base, town.program()][..], args].concat());
    let servers = || lacuna(&["status", "--json"]).code(0).json()["servers"].as_array().unwrap().len();
    assert_eq!(servers(), 1);
    let said = lacuna(&OPEN).code(5).stderr;
    assert!(said.contains("mnt"), "{said}");
    lacuna(&["close", "mnt"]).code(0);
    assert_eq!(servers(), 0);

    // No server uses a run directory that other users can change, or that is a symbolic link.
    for plant in ["mkdir -m 777 run/lacuna", "mkdir other && ln -s ../other run/lacuna"] {
        town.run(FIRST, &["sh", "-c", &format!("rm -rf run/lacuna && {plant}")]).code(0);
        lacuna(&OPEN).code(2);
        lacuna(&["status"]).code(2);
    }
}
