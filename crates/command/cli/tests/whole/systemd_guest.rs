//! Disks in fstab and in units of a Debian that really boots, with systemd, in an emulated machine:
//! see `scripts/systemd-guest.sh`. A boot takes most of a minute, so this test runs in `make
//! test-long` only.

use crate::harness::{Scene, can_mount_ext4, is_program_available, skip_unless, skipped};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// How each boot ends.
const ENDS: [&str; 11] = ["off", "off", "cut", "off", "cut", "off", "off", "cut", "off", "off", "hung"];

/// The disks of the guest, starting with `vdb`, each with its QEMU options.
const DISKS: [(&str, &str); 7] = [
    ("boot", ""),
    ("auto", ""),
    ("private", ""),
    // Writing 4 MiB of unsynced data takes seconds.
    ("slow", ",throttling.bps-write=1048576"),
    // After a burst of at most 4 MiB it accepts one byte per second.
    ("hung", ",throttling.bps-write=1,throttling.bps-write-max=4194304"),
    ("served", ""),
    // It has a deeper level.
    ("store", ""),
];

/// Mounts a disk with levels: its level 0 alone (`one`), or the deeper one too (`both`).
const STORE: &str = "\
[Service]
Type=notify
EnvironmentFile=/etc/lacuna/%i.store
ExecStart=/usr/bin/lacuna open --foreground /dev/vdh $WHERE --key-file ${KEY}
KillMode=mixed
TimeoutStopSec=90s
";

const FSTAB: &str = "\
/dev/vdb /srv/boot lacuna keyfile=/etc/lacuna/key 0 0
/dev/vdc /srv/auto lacuna keyfile=/etc/lacuna/key,noauto,x-systemd.automount,x-systemd.idle-timeout=5s 0 0
/dev/vde /srv/slow lacuna keyfile=/etc/lacuna/key,nofail,x-systemd.mount-timeout=2min 0 0
/dev/vdf /srv/hung lacuna keyfile=/etc/lacuna/key,noauto,x-systemd.mount-timeout=15s 0 0
";

/// The unit that runs the script of a test when the guest has booted.
pub(crate) const ACT: &str = "\
[Unit]
After=multi-user.target
[Service]
ExecStart=/guest/act
KillMode=process
";

pub(crate) fn script() -> Command {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/systemd-guest.sh"))
}

/// Makes the files that are laid over the guest's root.
fn lay_out(tree: &Path) {
    let file = |path: &str, text: &str| {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let program =
        |path: &str| fs::set_permissions(tree.join(path), fs::Permissions::from_mode(0o755)).unwrap();
    file("etc/fstab", FSTAB);
    file("etc/lacuna/key", "correct horse\n");
    file("etc/lacuna/private.conf", "LOCATION=/dev/vdd\nMOUNTPOINT=/srv/private\nOPTIONS=cache=16M\n");
    file("etc/lacuna/asked.conf", "LOCATION=/dev/vdg\nMOUNTPOINT=/srv/served\nOPTIONS=cache=16M\n");
    file("etc/lacuna/served.conf", "LOCATION=/dev/vdg\nOPTIONS=--key-file /etc/lacuna/key\n");
    file("etc/lacuna/deep", "battery staple\n");
    file("etc/lacuna/one.store", "WHERE=/srv/store\nKEY=/etc/lacuna/key\n");
    file("etc/lacuna/both.store", "WHERE=/srv/store /srv/other\nKEY=/etc/lacuna/deep\n");
    file("etc/systemd/system/store@.service", STORE);
    // The timeout for hanging services is shorter than usual.
    file("etc/systemd/system.conf.d/guest.conf", "[Manager]\nDefaultTimeoutStopSec=15s\n");
    file("etc/systemd/system/act.service", ACT);
    let wants = tree.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    symlink("../act.service", wants.join("act.service")).unwrap();
    file("guest/act", include_str!("systemd_guest.sh"));
    program("guest/act");
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/systemd");
    let of_dir =
        |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let (drop_ins, mut files): (Vec<_>, Vec<_>) = of_dir(&units).into_iter().partition(|path| path.is_dir());
    files.extend(drop_ins.iter().flat_map(|dir| of_dir(dir)));
    for unit in files {
        let name = unit.strip_prefix(&units).unwrap().display();
        file(&format!("usr/lib/systemd/system/{name}"), &fs::read_to_string(&unit).unwrap());
    }
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    fs::create_dir_all(tree.join("usr/sbin")).unwrap();
    let binary = tree.join("usr/bin/lacuna");
    let stripped = Command::new("strip").arg("-o").arg(&binary).arg(env!("CARGO_BIN_EXE_lacuna")).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(env!("CARGO_BIN_EXE_lacuna"), &binary).unwrap();
    }
    program("usr/bin/lacuna");
    for helper in ["mount.lacuna", "umount.lacuna"] {
        symlink("../bin/lacuna", tree.join("usr/sbin").join(helper)).unwrap();
    }
    for dir in DISKS.map(|(disk, _)| disk).into_iter().chain(["other", "chip"]) {
        fs::create_dir_all(tree.join("srv").join(dir)).unwrap();
    }
}

/// Makes a disk with a file system on each of its levels.
fn make(scene: &Scene, name: &str) {
    if name == "store.img" {
        let shape = ["--size", "256M", "--format", "deniable", "--levels", "2", "--key-file", "deep"];
        scene.create(name, &shape).code(0);
        scene.lacuna(&["open", name, "mnt", "other", "--key-file", "deep", "--mkfs", "ext4"]).code(0);
        scene.lacuna(&["close", name, "--wait"]).code(0);
        return scene.wait_until_free(name);
    }
    scene.create(name, &["--size", "64M", "--preallocate"]).code(0);
    scene.lacuna(&["open", name, "mnt", "--key-file", "key", "--mkfs", "ext4"]).code(0);
    scene.lacuna(&["close", "mnt"]).code(0);
}

/// Makes a disk with a file system on a simulated chip, in a file that is laid over the guest's
/// root.
fn make_chip(scene: &Scene) {
    let location = "nand:tree/guest/chip.img";
    scene.create(location, &["--size", "8M"]).code(0);
    scene.lacuna(&["open", location, "mnt", "--key-file", "key", "--mkfs", "ext4"]).code(0);
    scene.lacuna(&["close", "mnt"]).code(0);
    scene.wait_until_free(location);
}

/// A running guest, ended on drop.
pub(crate) struct Guest {
    machine: Child,
    console: BufReader<ChildStdout>,
    said: String,
}

impl Guest {
    /// Boots the guest that was packed in `dir`, with these disks and their options.
    pub(crate) fn boot(dir: &Path, parameters: &str, disks: &[String]) -> Guest {
        let mut boot = script();
        boot.arg("boot").arg(dir).arg(parameters).args(disks);
        let mut machine = boot.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let console = BufReader::new(machine.stdout.take().unwrap());
        Guest { machine, console, said: String::new() }
    }

    fn line(&mut self) -> Option<String> {
        let mut bytes = Vec::new();
        self.console.read_until(b'\n', &mut bytes).unwrap();
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        (!bytes.is_empty()).then(|| {
            let _ = writeln!(self.said, "{line}");
            line
        })
    }

    /// Waits until the guest prints a line with `words`; panics if it ends before.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, words: &str) {
        loop {
            match self.line() {
                Some(line) if line.contains(words) => return,
                Some(_) => {}
                None => panic!("the guest ended without printing {words:?}; its console:\n{}", self.said),
            }
        }
    }
}

/// Cuts its power, if it still runs.
impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.machine.kill();
        let _ = self.machine.wait();
        // The console is closed when the last of the guest's processes has ended. Until then QEMU
        // may hold the disks.
        let _ = std::io::copy(&mut self.console, &mut std::io::sink());
    }
}

#[test]
fn disks_are_mounted_after_every_boot() {
    if std::env::var("LACUNA_SHARE").as_deref() != Ok("all") {
        return skipped("disks in a system that boots: `make test-long` boots it");
    }
    skip_unless!(can_mount_ext4() && is_program_available("qemu-img"));
    let why = String::from_utf8(script().arg("missing").output().unwrap().stdout).unwrap();
    skip_unless!(why.is_empty(), why.trim());
    let scene = Scene::new();
    ["mnt", "other"].iter().for_each(|dir| fs::create_dir(scene.path(dir)).unwrap());
    fs::write(scene.path("deep"), "battery staple").unwrap();
    let mut disks = Vec::new();
    for (name, options) in DISKS {
        let name = format!("{name}.img");
        make(&scene, &name);
        disks.push(format!("{}{options}", scene.path(&name).display()));
    }
    lay_out(&scene.path("tree"));
    make_chip(&scene);
    assert!(script().arg("pack").arg(scene.path("")).arg(scene.path("tree")).status().unwrap().success());

    let mut before = "none";
    for (boot, end) in (1..).zip(ENDS) {
        let parameters = format!("guest.boot={boot} guest.before={before} guest.end={end}");
        let mut guest = Guest::boot(&scene.path(""), &parameters, &disks);
        guest.wait_for(&format!("guest: boot {boot} is good"));
        match end {
            "cut" => {}
            // Soon after, or when the timeout of the hanging service has passed.
            _ => guest.wait_for("reboot: Power down"),
        }
        drop(guest);
        before = end;
    }
}
