//! Everyday use: listing and watching open disks, closing all of them, diagnosing a disk, and
//! erasing it.

use crate::harness::{CHEAP, RunOutput, Scene, Signal, Terminal, can_mount, noise, send, wait_until};
use crate::nbd_client::Client;
use rustix::process::geteuid;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

/// The magic number at the begin of every copy of a header.
const MAGIC: &[u8] = b"LACUNA\x00\x01";

/// A scene with a mount namespace and a run directory of its own, as on a machine without other
/// open disks.
pub(crate) struct IsolatedScene {
    pub(crate) scene: Scene,
    keeper: Child,
}

impl IsolatedScene {
    /// Returns `None`, with a message, where mounting is impossible.
    pub(crate) fn new() -> Option<IsolatedScene> {
        if !can_mount("/dev/loop-control") || !can_mount("/dev/fuse") || !geteuid().is_root() {
            return None;
        }
        let alone = "mkdir -p /run/lacuna && mount -t tmpfs -o mode=700 lacuna-test /run/lacuna && echo ready && exec cat";
        let mut keeper = Command::new("unshare");
        keeper.args(["-m", "--propagation", "private", "sh", "-c", alone]);
        let mut keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(keeper.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        Some(IsolatedScene { scene: Scene::new(), keeper })
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-m", "-t", &self.keeper.id().to_string(), "sh", "-c", "cd \"$0\" && exec \"$@\""]);
        command.arg(self.scene.path("")).args(words).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", self.scene.path("state")).env_remove("LISTEN_FDS");
        command
    }

    fn run(&self, words: &[&str]) -> RunOutput {
        self.command(words).output().unwrap().into()
    }

    pub(crate) fn lacuna(&self, args: &[&str]) -> RunOutput {
        self.run(&[&[env!("CARGO_BIN_EXE_lacuna")], args].concat())
    }

    fn keyed(&self, args: &[&str]) -> RunOutput {
        self.lacuna(&[args, &["--key-file", "key"]].concat()).code(0)
    }

    fn list(&self) -> String {
        self.lacuna(&["list"]).code(0).stdout
    }

    pub(crate) fn counter(&self, target: &str, name: &str) -> u64 {
        let status = self.lacuna(&["status", target, "--json"]).code(0).json();
        let items = status["servers"][0]["items"].as_array().unwrap().clone();
        items.iter().find(|item| item["name"] == name).unwrap_or_else(|| panic!("{items:?}"))["value"]
            .as_u64()
            .unwrap()
    }

    /// Opens a disk, a vault and a second disk: mounted, mounted, and served.
    fn with_three() -> Option<IsolatedScene> {
        let apart = IsolatedScene::new()?;
        ["mnt", "files"].iter().for_each(|dir| fs::create_dir(apart.scene.path(dir)).unwrap());
        apart.scene.create("disk.img", &["--size", "64M"]).code(0);
        apart.scene.create("other.img", &["--size", "64M"]).code(0);
        apart.keyed(&[&["vault", "init", "v"][..], &CHEAP].concat());
        assert_eq!(apart.list(), "nothing is open\n");
        apart.keyed(&["open", "disk.img", "mnt", "--mkfs", "ext4"]);
        apart.keyed(&["open", "v", "files"]);
        let serve = ["serve", "other.img", "--socket", "nbd.sock"];
        apart.keyed(&[&serve[..], &["--fork", "--pid-file", "pid", "--no-keeper"]].concat());
        Some(apart)
    }
}

impl Drop for IsolatedScene {
    fn drop(&mut self) {
        let _ = self.lacuna(&["-q", "close", "--all", "--deleted"]);
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

#[test]
fn open_disks_are_listed_watched_and_closed_together() {
    let Some(apart) = IsolatedScene::with_three() else { return };
    let list = apart.list();
    let line = |name: &str| {
        list.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{list}")).to_owned()
    };
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(
        line("/disk.img ").contains(" sealed ")
            && line("/disk.img ").contains("/mnt ")
            && line("/v ").contains(" vault ")
    );
    assert!(line("/other.img ").contains("nbd+unix:///?socket=") && line("/other.img ").contains(" pending"));
    let open = apart.lacuna(&["list", "--json"]).code(0).json()["open"].as_array().unwrap().clone();
    assert!(
        open.iter().all(|one| one["since"].as_u64() > Some(1_700_000_000) && one["died"] == false),
        "{open:?}"
    );

    apart
        .run(&[
            "sh",
            "-c",
            "head -c 3000000 /dev/urandom >mnt/f && cp mnt/f files/f && sync -f mnt files && cat files/f >/dev/null",
        ])
        .code(0);
    assert!(apart.counter("mnt", "bytes_written") >= 3_000_000);
    assert!(apart.counter("files", "bytes_written") >= 3_000_000);

    let short = apart.lacuna(&["status", "disk.img"]).code(0).stdout;
    assert!(
        short.lines().count() <= 12 && short.contains("written") && !short.contains("journal batches"),
        "{short}"
    );
    assert!(apart.lacuna(&["-v", "status", "disk.img"]).code(0).stdout.contains("journal batches"));
    let watched = apart.lacuna(&["status", "--watch", "--count", "2", "--interval", "0.1"]).code(0).stdout;
    assert_eq!(watched.lines().count(), 6, "{watched}");
    assert!(watched.lines().all(|line| line.contains(": read ")) && !watched.contains('\x1b'), "{watched}");
    assert!(watched.lines().skip(3).all(|line| line.contains("B/s, ")), "{watched}");

    // A disk in use does not keep the other disks open, and is named.
    let mut user = apart.command(&["sh", "-c", "cd mnt && echo there && exec sleep 1000"]);
    let mut user = user.stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(user.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    let refused = apart.lacuna(&["close", "--all"]).code(5);
    assert!(refused.stderr.contains("/mnt"), "{}", refused.stderr);
    user.kill().unwrap();
    user.wait().unwrap();
    let left = apart.list();
    assert!(left.lines().count() == 1 && left.contains("/disk.img "), "{left}");
    assert!(!apart.scene.path("pid").exists() && !apart.scene.path("nbd.sock").exists());
    apart.lacuna(&["close", "--all"]).code(0);
    assert_eq!(apart.lacuna(&["close", "--all"]).code(0).stdout, "nothing is open\n");
    apart.keyed(&["check", "disk.img"]);
    apart.lacuna(&["close", "mnt", "--all"]).code(1);
}

#[test]
fn close_all_spares_a_disk_with_a_deleted_file() {
    let Some(apart) = IsolatedScene::with_three() else { return };
    for file in ["disk.img", "other.img"] {
        fs::remove_file(apart.scene.path(file)).unwrap();
    }
    let said = apart.lacuna(&["close", "--all"]).code(20).stderr;
    for file in ["disk.img", "other.img"] {
        let path = apart.scene.path(file).canonicalize().unwrap_or(apart.scene.path(file));
        assert!(said.contains(&format!("lacuna close --deleted {}", path.display())), "{said}");
    }
    assert_eq!(apart.list().lines().count(), 2, "{}", apart.list());
    apart.lacuna(&["close", "--deleted", "disk.img"]).code(0);
    apart.lacuna(&["close", "--all", "--deleted"]).code(0);
    assert_eq!(apart.list(), "nothing is open\n");
}

#[test]
fn a_stopped_or_dead_server_is_listed() {
    let Some(apart) = IsolatedScene::with_three() else { return };
    let served = fs::read_to_string(apart.scene.path("pid")).unwrap().trim().to_owned();
    let open = apart.lacuna(&["list", "--json"]).code(0).json();
    let mounted = open["open"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["format"] == "sealed" && one["front"] == "fuse");
    send(Signal::KILL, mounted.unwrap()["pid"].clone());
    let list = apart.list();
    assert!(list.contains("its server died; `lacuna close /"), "{list}");
    send(Signal::STOP, &served);
    let lacuna = env!("CARGO_BIN_EXE_lacuna");
    let listing = apart.command(&[lacuna, "list"]).stdout(Stdio::piped()).spawn().unwrap();
    let closed = apart.lacuna(&["close", "--all"]);
    let named = apart.lacuna(&["close", "other.img"]);
    let list = RunOutput::from(listing.wait_with_output().unwrap()).code(0).stdout;
    send(Signal::CONT, &served);
    assert!(list.contains(&format!("does not answer (process {served})")), "{list}");
    // Dead servers are cleaned up, the vault is closed, and the failure names a remedy.
    for closed in [closed, named] {
        assert!(closed.code(20).stderr.contains(&format!("kill -CONT {served}")));
    }
    apart.lacuna(&["close", "--all"]).code(0);
    assert_eq!(apart.list(), "nothing is open\n");
}

#[test]
fn status_watch_fits_80_by_24_and_ends_with_the_disk() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = scene.serve(&[]);
    let watch = |terminal: &Terminal| {
        terminal.resize(80, 24);
        let mut watch = scene.command(&["status", "disk.img", "--watch", "--interval", "0.1"]);
        watch.env("TERM", "xterm").stdout(terminal.stdio()).spawn().unwrap()
    };
    let terminal = Terminal::new();
    let seen = terminal.collect_output();
    let mut watching = watch(&terminal);
    wait_until("the first screen", || seen.lock().unwrap().contains("in flight"));
    let mut client = Client::connect(&serving.socket).unwrap();
    client.write_at(0, &noise(1, 1 << 20)).unwrap();
    wait_until("a speed", || seen.lock().unwrap().contains("MiB/s"));
    drop(client);
    assert_eq!(serving.stop(), 0);
    assert!(watching.wait().unwrap().success());
    wait_until("the end", || seen.lock().unwrap().contains("the watched disks are closed"));
    let seen = seen.lock().unwrap();
    let screens: Vec<&str> = seen.split("\x1b[H").skip(1).collect();
    assert!(screens.len() > 1 && seen.contains("\x1b[?25h\x1b[?1049l"));
    for screen in screens {
        let lines: Vec<&str> = screen.split("\x1b[J").next().unwrap().split("\r\n").collect();
        let width = |line: &&str| line.replace("\x1b[K", "").chars().count();
        assert!(lines.len() <= 24 && lines.iter().map(width).max() <= Some(80), "{lines:?}");
    }

    let serving = scene.serve(&[]);
    let terminal = Terminal::new();
    let seen = terminal.collect_output();
    let mut watching = watch(&terminal);
    wait_until("a screen", || seen.lock().unwrap().contains("in flight"));
    send(Signal::INT, watching.id());
    assert!(watching.wait().unwrap().success());
    wait_until("the cursor", || seen.lock().unwrap().contains("\x1b[?25h"));
    drop(serving);
}

/// The findings of `doctor` with the state "wrong"; checks its exit code.
fn wrong(scene: &Scene, location: &str, code: i32) -> Vec<String> {
    let json = scene.lacuna(&["doctor", location, "--json"]).code(code).json();
    assert_eq!(json["healthy"], code == 0);
    let findings = json["findings"].as_array().unwrap();
    let wrong = findings.iter().filter(|finding| finding["state"] == "wrong");
    wrong.map(|finding| format!("{} -> {}", finding["found"], finding["remedy"])).collect()
}

#[test]
fn doctor_reports_problems_with_advice() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    assert!(wrong(&scene, "disk.img", 0).is_empty());
    let words = scene.lacuna(&["doctor", "disk.img"]).code(0).stdout;
    assert!(words.contains("all 3 copies are whole") && words.contains("open nowhere"), "{words}");
    let serving = scene.serve(&[]);
    assert!(scene.lacuna(&["doctor", "disk.img"]).code(0).stdout.contains("open at nbd+unix"));
    assert_eq!(serving.stop(), 0);

    let file = fs::OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    file.write_all_at(&[0; 16], 524_288 + 3000).unwrap();
    let report = wrong(&scene, "disk.img", 10);
    assert!(
        report[0].contains("2 of 3 copies") && report[0].contains("`lacuna header repair disk.img`"),
        "{report:?}"
    );
    scene.lacuna(&["header", "repair", "disk.img", "--key-file", "key"]).code(0);
    assert!(wrong(&scene, "disk.img", 0).is_empty());
    file.set_len(8 << 20).unwrap();
    assert!(wrong(&scene, "disk.img", 10).iter().any(|report| report.contains("cut short")));
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[1; 1 << 20], 0).unwrap();
    assert!(wrong(&scene, "disk.img", 4)[0].contains("header restore"));
    assert!(wrong(&scene, "missing.img", 4)[0].contains("does not exist"));
    std::os::unix::fs::symlink("gone", scene.path("link")).unwrap();
    assert!(wrong(&scene, "link", 4)[0].contains("a symbolic link"));

    scene.lacuna(&[&["vault", "init", "v", "--key-file", "key"][..], &CHEAP].concat()).code(0);
    assert!(wrong(&scene, "v", 0).is_empty());
    fs::remove_file(scene.path("v/super.0")).unwrap();
    assert!(wrong(&scene, "v", 10)[0].contains("missing in the directory: super.0"));
    assert_eq!(wrong(&scene, ".", 4).len(), 1);
    fs::remove_file(scene.path("v/lacuna.vault")).unwrap();
    assert!(wrong(&scene, "v", 4)[0].contains("the files of a vault"));
}

#[test]
fn doctor_output_does_not_depend_on_hidden_levels() {
    let scene = Scene::new();
    fs::write(scene.path("deep"), "battery staple").unwrap();
    let shape = ["--format", "deniable", "--size", "128M"];
    scene.create("a.img", &shape).code(0);
    scene.create("b.img", &[&shape[..], &["--levels", "2", "--key-file", "deep"]].concat()).code(0);
    let report = |disk: &str| {
        let json = scene.lacuna(&["doctor", disk, "--json"]).code(0).json();
        let findings = json["findings"].as_array().unwrap().clone();
        let cut = |finding: serde_json::Value| {
            let found =
                finding["found"].as_str().unwrap().replace(disk, "").split("UUID").next().unwrap().to_owned();
            // The free space of the host file system may change between the runs.
            if finding["check"] == "space" { String::new() } else { found }
        };
        findings.into_iter().map(cut).collect::<Vec<_>>()
    };
    assert_eq!(report("a.img"), report("b.img"));
}

/// Number of occurrences of the header's magic number in a file, plain or, as in the file of a
/// simulated chip, with all bits inverted.
fn copies_in(scene: &Scene, name: &str) -> usize {
    let inverted: Vec<u8> = MAGIC.iter().map(|byte| !byte).collect();
    let bytes = fs::read(scene.path(name)).unwrap();
    bytes.windows(MAGIC.len()).filter(|at| *at == MAGIC || *at == inverted).count()
}

#[test]
fn erase_leaves_no_copy_of_the_header() {
    let scene = Scene::with_disk(&["--size", "32M"]);
    scene.lacuna(&["resize", "disk.img", "--size", "64M", "--key-file", "key"]).code(0);
    assert_eq!(copies_in(&scene, "disk.img"), 3, "the former last copy is gone");
    scene.lacuna(&["header", "backup", "disk.img", "disk.hdr"]).code(0);
    let mut serving = scene.serve(&[]);
    Client::connect(&serving.socket).unwrap().write_at(0, &noise(1, 4096)).unwrap();
    scene.lacuna(&["erase", "disk.img", "--yes"]).code(5);
    assert!(serving.uri.contains("socket"));
    serving.signal(Signal::TERM);
    scene.wait_until_free("disk.img");
    serving.kill();
    // Simulates a medium that ended here before it grew.
    let file = fs::OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    file.write_all_at(&fs::read(scene.path("disk.hdr")).unwrap(), 20 << 20).unwrap();

    assert!(scene.lacuna(&["erase", "disk.img"]).code(1).stderr.contains("--yes"));
    let erased = scene.lacuna(&["erase", "disk.img", "--yes"]).code(0);
    assert!(
        erased.stdout.contains("before it grew") && erased.stderr.contains("backups of the header"),
        "{}",
        erased.stderr
    );
    assert_eq!(copies_in(&scene, "disk.img"), 0);
    scene.lacuna(&["info", "disk.img"]).code(4);
    assert!(scene.lacuna(&["erase", "disk.img", "--yes"]).code(4).stderr.contains("no header"));
    // The data is untouched: a backup of the header opens it.
    scene.lacuna(&["header", "restore", "disk.img", "disk.hdr", "--key-file", "key", "--yes"]).code(0);
    let check = scene.lacuna(&["check", "disk.img", "--key-file", "key", "--json"]).code(0).json();
    assert_eq!(check["good"], 1);

    scene.create("nand:chip.img", &["--size", "32M"]).code(0);
    assert!(copies_in(&scene, "chip.img") >= 3);
    scene.lacuna(&["erase", "nand:chip.img", "--yes"]).code(0);
    assert_eq!(copies_in(&scene, "chip.img"), 0);

    scene.lacuna(&[&["vault", "init", "v", "--key-file", "key"][..], &CHEAP].concat()).code(0);
    assert!(scene.lacuna(&["erase", "v", "--yes"]).code(0).stderr.contains("lacuna.vault"));
    assert_eq!(copies_in(&scene, "v/lacuna.vault"), 0);
    scene.lacuna(&["vault", "check", "v", "--key-file", "key"]).code(4);
}

/// The last partition of a device ends with the device, so its last header copy is where a last
/// copy of the whole device would be.
#[test]
fn a_disk_in_the_last_partition_is_not_taken_for_the_whole_device() {
    let scene = Scene::with_disk(&["--size", "32M"]);
    let disk = fs::read(scene.path("disk.img")).unwrap();
    fs::write(scene.path("whole.img"), [noise(1, 2 << 20), disk].concat()).unwrap();
    let before = fs::read(scene.path("whole.img")).unwrap();
    let refused = scene.lacuna(&["erase", "whole.img", "--yes"]).code(1);
    assert!(refused.stderr.contains("name the partition"), "{}", refused.stderr);
    assert!(fs::read(scene.path("whole.img")).unwrap() == before);

    let mut terminal = Terminal::new();
    let mut command = scene.command(&["erase", "whole.img"]);
    let mut child =
        command.stdin(terminal.stdio()).stdout(Stdio::null()).stderr(terminal.stdio()).spawn().unwrap();
    terminal.types("yes");
    assert!(child.wait().unwrap().success());
    drop(command);
    assert!(terminal.output().contains("Only the last copy"));
    let after = fs::read(scene.path("whole.img")).unwrap();
    let end = before.len() - (64 << 10);
    assert!(after[..end] == before[..end] && copies_in(&scene, "whole.img") == 2);
}
