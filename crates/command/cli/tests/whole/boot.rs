//! Disks started and ended by programs: mount(8), systemd and its notifications, and the idle
//! timeout.

use crate::harness::{
    CHEAP, CloseOnDrop, Scene, Signal, can_mount, can_mount_ext4, send, skip_unless, skipped, wait_until,
};
use crate::keys::answering;
use rustix::process::geteuid;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The links exist only once per machine.
static LINKS_LOCK: Mutex<()> = Mutex::new(());

/// Links to a program where mount(8) looks for its helpers. They are removed on drop.
pub(crate) struct HelperLinks {
    links: Vec<PathBuf>,
    _turn: MutexGuard<'static, ()>,
}

impl HelperLinks {
    pub(crate) fn link(program: &str) -> Option<HelperLinks> {
        let mut helpers = HelperLinks {
            links: Vec::new(),
            _turn: LINKS_LOCK.lock().unwrap_or_else(PoisonError::into_inner),
        };
        for name in ["mount.lacuna", "umount.lacuna"] {
            let link = Path::new("/sbin").join(name);
            if !link.exists() {
                // A link that a killed test run left.
                let _ = fs::remove_file(&link);
            }
            if let Err(e) = std::os::unix::fs::symlink(program, &link) {
                skipped(&format!("{} cannot be made: {e}", link.display()));
                return None;
            }
            helpers.links.push(link);
        }
        Some(helpers)
    }
}

impl Drop for HelperLinks {
    fn drop(&mut self) {
        self.links.iter().for_each(|link| _ = fs::remove_file(link));
    }
}

fn in_use(scene: &Scene, disk: &str) -> bool {
    scene.lacuna(&["info", disk, "--json"]).json()["medium"]["in_use"] == true
}

/// Runs a program of the system; returns its exit code and its output.
fn run(scene: &Scene, program: &str, args: &[&str]) -> (i32, String) {
    let output = Command::new(program).args(args).current_dir(scene.path("")).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn mount_and_umount_find_their_helpers() {
    skip_unless!(can_mount_ext4());
    let Some(_helpers) = HelperLinks::link(env!("CARGO_BIN_EXE_lacuna")) else { return };
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    scene.lacuna(&["open", "disk.img", "mnt", "--key-file", "key", "--mkfs", "ext4"]).code(0);
    scene.lacuna(&["close", "mnt"]).code(0);

    let key = scene.path("key").display().to_string();
    let options = format!("rw,noatime,nofail,_netdev,x-systemd.automount,cache=8M,keyfile={key}");
    assert_eq!(
        run(&scene, "mount", &["-t", "lacuna", "disk.img", "mnt", "-o", &options]),
        (0, String::new())
    );
    let (_, shown) = run(&scene, "findmnt", &["-no", "FSTYPE,OPTIONS", "mnt"]);
    assert!(shown.starts_with("ext4") && shown.contains("noatime"), "{shown}");
    // `mount -a` does not know that it is already mounted.
    assert_eq!(
        run(&scene, "mount", &["-t", "lacuna", "disk.img", "mnt", "-o", &options]),
        (0, String::new())
    );
    // It takes writes, and so is no read-only mount.
    for only_read in [["-o", "ro"], ["-r", "-n"]] {
        let (code, said) = run(&scene, "mount.lacuna", &[["disk.img", "mnt"], only_read].concat());
        assert!(code == 32 && said.contains("mounted there for writing"), "{code} {said}");
    }
    fs::write(scene.path("mnt/file"), b"written").unwrap();
    let held = fs::File::open(scene.path("mnt/file")).unwrap();
    let (code, said) = run(&scene, "umount", &["mnt"]);
    assert!(code == 32 && said.contains("in use by"), "{code} {said}");
    drop(held);
    // The shell in the directory is named, and not the programs that it runs to unmount.
    let (code, said) = run(&scene, "sh", &["-c", "cd mnt && umount \"$PWD\"; exit $?"]);
    assert!(code == 32 && said.contains("in use by sh (process "), "{code} {said}");
    assert!(!said.contains("umount (process") && !said.contains("umount.lacuna (process"), "{said}");
    assert_eq!(run(&scene, "umount", &["mnt"]), (0, String::new()));
    // `umount` waited for the server, which has released the disk.
    assert!(!in_use(&scene, "disk.img"));

    // As in fstab, and read-only.
    let at = scene.path("mnt").display().to_string();
    let line = format!("{} {at} lacuna noauto,ro,user,keyfile={key} 0 0\n", scene.path("disk.img").display());
    fs::write(scene.path("fstab"), line).unwrap();
    let fstab = scene.path("fstab").display().to_string();
    assert_eq!(run(&scene, "mount", &["--fstab", &fstab, &at]).0, 0);
    assert_eq!(fs::read(scene.path("mnt/file")).unwrap(), b"written");
    assert!(fs::write(scene.path("mnt/file"), b"more").is_err());
    // mount(8) says `rw` whenever it was not told `ro`.
    assert_eq!(run(&scene, "mount.lacuna", &["disk.img", "mnt", "-o", "rw"]), (0, String::new()));
    let (code, said) = run(&scene, "mount.lacuna", &["disk.img", "mnt", "-o", "remount,rw"]);
    assert!(code == 32 && said.contains("cannot remount"), "{code} {said}");
    assert_eq!(run(&scene, "umount", &["--lazy", "mnt"]).0, 0);
    scene.wait_until_free("disk.img");

    // A raw mount: a file. umount(8) calls no helper there.
    let raw = format!("raw,keyfile={key}");
    assert_eq!(run(&scene, "mount", &["-t", "lacuna", "disk.img", "mnt", "-o", &raw]).0, 0);
    assert_eq!(fs::metadata(scene.path("mnt/disk")).unwrap().len(), 64 << 20);
    assert_eq!(run(&scene, "umount", &["mnt"]), (0, String::new()));
    scene.wait_until_free("disk.img");
}

#[test]
fn a_helper_refuses_what_it_cannot_mount_and_explains_itself() {
    skip_unless!(can_mount("/dev/loop-control") && can_mount("/dev/fuse"));
    let Some(_helpers) = HelperLinks::link(env!("CARGO_BIN_EXE_lacuna")) else { return };
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    fs::write(scene.path("wrong"), b"wrong").unwrap();
    for (options, expected) in
        [("keyfile=wrong", 32), ("keyfile=none", 1), ("keyfil=wrong", 1), ("raw=1", 1), ("credential=x", 1)]
    {
        let (code, said) = run(&scene, "mount.lacuna", &["disk.img", "mnt", "-o", options]);
        assert!(code == expected && said.starts_with("lacuna: "), "{options}: {code} {said}");
    }
    // Messages name options as the user wrote them.
    for (options, words) in [
        ("cover_timeout=5,keyfile=key", "cannot use cover_timeout here"),
        ("cover_timeout=x", "for 'cover_timeout="),
        ("raw,via=loop", "'raw'"),
    ] {
        let (code, said) = run(&scene, "mount.lacuna", &["disk.img", "mnt", "-o", options]);
        assert!(code == 1 && said.contains(words) && !said.contains("--"), "{options}: {code} {said}");
    }
    let (code, said) = run(&scene, "mount.lacuna", &["disk.img", "missing", "-o", "keyfile=key"]);
    assert!(code == 32 && said.contains("mkdir -p missing") && !scene.path("missing").exists(), "{said}");
    for helper in ["mount.lacuna", "umount.lacuna"] {
        let (code, said) = run(&scene, helper, &["--help"]);
        assert!(code == 0 && said.starts_with(&format!("Usage: {helper} ")), "{said}");
    }
}

/// The notifications of a server to its service manager until it ended.
fn notifications(
    scene: &Scene,
    command: &mut Command,
    mut when_ready: impl FnMut(&mut Child),
) -> Vec<String> {
    let at = scene.path("notify");
    let socket = UnixDatagram::bind(&at).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    command.env("NOTIFY_SOCKET", &at).env("WATCHDOG_USEC", "3000000").stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut messages = Vec::new();
    let receive = |messages: &mut Vec<String>| {
        let mut bytes = [0; 4096];
        let len = socket.recv(&mut bytes).expect("the server tells something");
        messages.extend(String::from_utf8_lossy(&bytes[..len]).lines().map(str::to_owned));
    };
    while !messages.iter().any(|line| line == "READY=1") {
        receive(&mut messages);
    }
    while !messages.iter().any(|line| line == "WATCHDOG=1") {
        receive(&mut messages);
    }
    assert!(!messages.iter().any(|line| line == "STOPPING=1"));
    when_ready(&mut child);
    while !messages.iter().any(|line| line == "STOPPING=1") {
        receive(&mut messages);
    }
    assert!(child.wait().unwrap().success());
    fs::remove_file(at).unwrap();
    messages
}

#[test]
fn a_service_manager_gets_notifications() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    // The passphrase also comes from the service manager.
    fs::create_dir(scene.path("credentials")).unwrap();
    fs::copy(scene.path("key"), scene.path("credentials/lacuna.passphrase")).unwrap();
    let with_credential = |args: &[&str]| {
        let mut command = scene.command(args);
        command.env("CREDENTIALS_DIRECTORY", scene.path("credentials"));
        command
    };
    let stop = |child: &mut Child| send(Signal::TERM, child.id());
    let mut serve = with_credential(&["serve", "disk.img", "--socket", "nbd.sock"]);
    let heard = notifications(&scene, &mut serve, stop);
    assert!(
        heard.contains(&"STATUS=open".to_owned()) && heard.contains(&"STATUS=closing".to_owned()),
        "{heard:?}"
    );
    skip_unless!(can_mount("/dev/fuse"));
    fs::create_dir(scene.path("mnt")).unwrap();
    let mut open = with_credential(&["open", "disk.img", "mnt", "--raw", "--foreground"]);
    notifications(&scene, &mut open, |child| {
        assert_eq!(fs::metadata(scene.path("mnt/disk")).unwrap().len(), 64 << 20);
        stop(child);
    });
    assert!(!in_use(&scene, "disk.img"));
}

#[test]
fn an_idle_disk_is_closed_after_its_timeout() {
    let scene = Scene::with_disk(&["--size", "16M"]);
    let idle = ["--key-file", "key", "--idle-timeout", "1s"];
    let serve = ["serve", "disk.img", "--socket", "nbd.sock"];
    scene.lacuna(&[&serve[..], &idle].concat()).code(0);
    scene.lacuna(&["open", "disk.img", "mnt", "--idle-timeout", "0", "--key-file", "key"]).code(1);
    skip_unless!(can_mount("/dev/fuse"));
    scene.create("other.img", &["--size", "16M"]).code(0);
    for at in ["mnt", "other"] {
        fs::create_dir(scene.path(at)).unwrap();
    }
    let _closing = (CloseOnDrop(&scene, &["mnt"]), CloseOnDrop(&scene, &["other"]));
    scene.lacuna(&[&["open", "disk.img", "mnt", "--raw"][..], &idle].concat()).code(0);
    let held = fs::File::open(scene.path("mnt/disk")).unwrap();
    scene.lacuna(&[&["open", "other.img", "other", "--raw"][..], &idle].concat()).code(0);
    scene.wait_until_free("other.img");
    assert!(in_use(&scene, "disk.img"));
    drop(held);
    wait_until("the end of the idle server", || !in_use(&scene, "disk.img"));
    // A server with a deleted file stays longer than its idle timeout, because its data would be
    // lost.
    let idle_later = ["--key-file", "key", "--idle-timeout", "3s"];
    scene.lacuna(&[&["open", "disk.img", "mnt", "--raw"][..], &idle_later].concat()).code(0);
    fs::remove_file(scene.path("disk.img")).unwrap();
    for _ in 0..4 {
        scene.lacuna(&[&["open", "other.img", "other", "--raw"][..], &idle].concat()).code(0);
        scene.wait_until_free("other.img");
    }
    assert!(scene.path("mnt/disk").exists());
    scene.lacuna(&["close", "mnt", "--deleted"]).code(0);
    // The same for a disk served over NBD.
    scene.create("served.img", &["--size", "16M"]).code(0);
    let serve = ["serve", "served.img", "--socket", "served.sock", "--fork", "--pid-file", "pid"];
    scene.lacuna(&[&serve[..], &idle_later].concat()).code(0);
    fs::remove_file(scene.path("served.img")).unwrap();
    for _ in 0..4 {
        scene.lacuna(&[&["open", "other.img", "other", "--raw"][..], &idle].concat()).code(0);
        scene.wait_until_free("other.img");
    }
    assert!(scene.path("pid").exists());
    scene.lacuna(&["close", "served.img", "--deleted"]).code(0);
}

/// Checks `user` in fstab and the options that mount(8) documents, as passed to the helper.
#[test]
fn a_vault_is_mounted_with_the_options_of_fstab() {
    skip_unless!(can_mount("/dev/fuse"));
    let Some(_helpers) = HelperLinks::link(env!("CARGO_BIN_EXE_lacuna")) else { return };
    let scene = Scene::new();
    fs::create_dir(scene.path("mnt")).unwrap();
    scene.lacuna(&[&["vault", "init", "v", "--key-file", "key"][..], &CHEAP].concat()).code(0);
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    let key = scene.path("key").display().to_string();
    let mount = |options: &str| {
        let options = format!("rw,{options},noauto,user,keyfile={key}");
        run(&scene, "mount.lacuna", &["v", "mnt", "-o", &options])
    };
    let (code, said) = mount("noatime");
    assert!(code == 1 && said.contains("the mount option noatime"), "{code} {said}");
    let (code, said) = mount("noexec,nosuid,nodev,relatime,symfollow");
    // Only the first opening on a machine says more than nothing: it cannot tell an old copy.
    assert!(
        code == 0 && said.lines().count() == 1 && said.contains("first time on this computer"),
        "{code} {said}"
    );
    let (_, shown) = run(&scene, "findmnt", &["-no", "OPTIONS", "mnt"]);
    assert!(shown.contains("noexec") && shown.contains("nosuid"), "{shown}");
    assert_eq!(run(&scene, "mount.lacuna", &["-o", &format!("keyfile={key}"), "v", "mnt"]).0, 0);
    scene.lacuna(&["-q", "close", "mnt"]).code(0);
}

#[test]
fn the_idle_timeout_spares_bind_mounts_and_refuses_levels() {
    let scene = Scene::with_disk(&["--size", "16M"]);
    scene.create("levels.img", &["--format", "deniable", "--size", "64M"]).code(0);
    let idle = ["--key-file", "key", "--idle-timeout", "1s"];
    for verb in [&["serve", "levels.img", "--socket", "nbd.sock"][..], &["open", "levels.img", "mnt"]] {
        let refused = scene.lacuna(&[verb, &idle].concat()).code(1);
        assert!(refused.stderr.contains("--idle-timeout"), "{}", refused.stderr);
    }
    skip_unless!(can_mount("/dev/fuse") && geteuid().is_root());
    for at in ["mnt", "bound"] {
        fs::create_dir(scene.path(at)).unwrap();
    }
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    scene.lacuna(&[&["open", "disk.img", "mnt", "--raw"][..], &idle].concat()).code(0);
    assert_eq!(run(&scene, "mount", &["--bind", "mnt", "bound"]).0, 0);
    std::thread::sleep(Duration::from_secs(3));
    assert!(scene.path("mnt/disk").exists() && in_use(&scene, "disk.img"));
    assert_eq!(run(&scene, "umount", &["bound"]).0, 0);
    wait_until("the end of the idle server", || !in_use(&scene, "disk.img"));
}

#[test]
fn a_signal_closes_a_disk_in_use_when_its_use_ends() {
    skip_unless!(can_mount("/dev/fuse"));
    let scene = Scene::with_disk(&["--size", "16M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    scene.lacuna(&["open", "disk.img", "mnt", "--raw", "--key-file", "key"]).code(0);
    let held = fs::File::open(scene.path("mnt/disk")).unwrap();
    let server = scene.lacuna(&["status", "mnt", "--json"]).json()["servers"][0]["pid"].take();
    send(Signal::TERM, &server);
    std::thread::sleep(Duration::from_secs(1));
    assert!(in_use(&scene, "disk.img"));
    drop(held);
    wait_until("the end", || !in_use(&scene, "disk.img"));
}

#[test]
fn a_systemd_credential_is_the_default_passphrase() {
    let scene = Scene::with_disk(&["--size", "16M"]);
    let credentials = scene.path("credentials");
    fs::create_dir(&credentials).unwrap();
    let check = |words: &[&str]| {
        let mut command = scene.command(&[&["-q", "check", "disk.img"], words].concat());
        command
            .env("CREDENTIALS_DIRECTORY", &credentials)
            .stdin(Stdio::null())
            .output()
            .unwrap()
            .status
            .code()
    };
    answering(&scene, "wrong\nwrong\nwrong\n");
    let passphrase = fs::read(scene.path("key")).unwrap();
    for (content, alone) in [(&passphrase[..], 0), (b"wrong", 2)] {
        fs::write(credentials.join("lacuna.passphrase"), content).unwrap();
        assert_eq!(check(&[]), Some(alone));
        assert_eq!(check(&["--key-file", "key"]), Some(0));
        assert_eq!(check(&["--askpass", "./ask"]), Some(2));
        let _ = fs::remove_file(scene.path("asked"));
    }
}
