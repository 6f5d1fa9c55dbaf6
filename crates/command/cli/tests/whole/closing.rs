//! Messages during long operations, their recipients, and the output of `status` meanwhile.

use crate::harness::{
    CHEAP, CloseOnDrop, Scene, Signal, Terminal, can_mount, can_mount_ext4, is_program_available, noise,
    send, skip_unless, wait_until,
};
use crate::nbd_client::Client;
use lacuna_testkit::StopAtEnd;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Words that never appear in messages about a disk without levels.
const LEVEL_WORDS: [&str; 3] = ["level", "hidden", "cover"];

/// Starts a command with its standard error on a terminal; also returns the text shown.
fn on_terminal(scene: &Scene, args: &[&str]) -> (Child, Arc<Mutex<String>>, Terminal) {
    let terminal = Terminal::new();
    let seen = terminal.collect_output();
    let mut command = scene.command(args);
    command.env("TERM", "xterm").stdout(Stdio::piped()).stderr(terminal.stdio());
    (command.spawn().unwrap(), seen, terminal)
}

#[track_caller]
fn wait_for(seen: &Mutex<String>, words: &str) {
    wait_until(words, || seen.lock().unwrap().contains(words));
}

fn is_closing(scene: &Scene, target: &str) -> bool {
    let status = scene.lacuna(&["status", target, "--json"]);
    status.code == 0 && status.json()["servers"][0]["closing"] == true
}

/// A deniable disk of two levels without cover of its own.
fn hidden() -> Scene {
    hidden_in("deniable")
}

/// The same in any format with levels.
fn hidden_in(format: &str) -> Scene {
    two_levels(format, "128M", "0")
}

/// A period in milliseconds so long that the clock never beats while a test runs: a close that
/// waited for a beat would not end.
const NEVER: &str = "3600000";

/// A disk of two levels with a clock that beats every `cover` milliseconds.
pub(crate) fn slow(format: &str, cover: &str) -> Scene {
    two_levels(format, "64M", cover)
}

fn two_levels(format: &str, size: &str, cover: &str) -> Scene {
    let scene = Scene::with_levels(format, &["--size", size, "--cover", cover]);
    ["public", "hidden"].iter().for_each(|dir| fs::create_dir(scene.path(dir)).unwrap());
    scene
}

/// A number of bytes that the cover of a close carries along, and one that it does not carry but
/// the queue of the level still holds.
pub(crate) const FEW: usize = 64 << 10;
pub(crate) const MANY: usize = 7 << 20;
/// The same for `oblivious`, where the level is smaller.
const MANY_OBLIVIOUS: usize = 3 << 20;
/// A number of bytes that both together do not hold, on a disk of 128 MiB.
const MORE: usize = 16 << 20;

#[test]
fn closing_does_not_wait_for_the_clock_and_its_cover_carries_pending_data() {
    for format in ["deniable", "oblivious"] {
        let many = if format == "oblivious" { MANY_OBLIVIOUS } else { MANY };
        for (len, code) in [(FEW, 0), (many, 20)] {
            let scene = slow(format, NEVER);
            let server = scene.serve_with_key("deep");
            Client::connect_to(&server.socket, "0").unwrap().write_at(0, &noise(2, 1 << 20)).unwrap();
            let mut hidden = Client::connect_to(&server.socket, "1").unwrap();
            (0..len)
                .step_by(FEW)
                .for_each(|at| hidden.write_at(at as u64, &noise(1 + at as u64, FEW)).unwrap());
            drop(hidden);
            assert_eq!(server.stop(), code, "{format}, {len}");
            let server = scene.serve_with_key("deep");
            let read = Client::connect_to(&server.socket, "1").unwrap().read_at(0, FEW).unwrap();
            assert!(code == 20 || read == noise(1, FEW), "{format}");
            drop(server);
        }
    }
}

#[test]
fn a_terminal_is_warned_before_pending_data_is_dropped() {
    let scene = slow("deniable", NEVER);
    let serve = ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "deep"];
    let terminal = Terminal::new();
    let seen = terminal.collect_output();
    let server = scene.serve_command_logging_to(&mut scene.command(&serve), terminal.stdio());
    let mut hidden = Client::connect_to(&server.socket, "1").unwrap();
    (0..MANY).step_by(FEW).for_each(|at| hidden.write_at(at as u64, &noise(1, FEW)).unwrap());
    drop(hidden);
    server.signal(Signal::INT);
    wait_for(&seen, "of hidden levels are not on the medium");
    assert!(is_closing(&scene, "disk.img"));
    server.signal(Signal::INT);
    assert_eq!(server.wait(), 14);
    drop(terminal);
    wait_for(&seen, "they are lost");
}

#[test]
fn a_mounted_disk_is_closed_after_its_cover_with_or_without_pending_data() {
    skip_unless!(can_mount_ext4());
    let scene = slow("deniable", "1000");
    let open = ["open", "disk.img", "public", "hidden", "--key-file", "deep"];
    with_cover(&scene, &[&open[..], &["--mkfs", "ext4"]].concat());
    scene.lacuna(&["close", "disk.img", "--wait"]).code(0);
    scene.wait_until_free("disk.img");
    for (len, code) in [(FEW, 0), (MANY, 20)] {
        scene.lacuna(&open).code(0);
        fs::write(scene.path("public/file"), noise(2, FEW)).unwrap();
        fs::write(scene.path("hidden/file"), noise(1, len)).unwrap();
        // Waiting for all of it would take more than a minute.
        let said = scene.lacuna(&["close", "disk.img"]).code(code).stderr;
        assert!(!LEVEL_WORDS.iter().any(|word| said.contains(word)), "{said}");
        scene.wait_until_free("disk.img");
    }
    scene.lacuna(&open).code(0);
    assert!(fs::read(scene.path("public/file")).unwrap() == noise(2, FEW));
    fs::write(scene.path("hidden/file"), noise(1, FEW)).unwrap();
    scene.lacuna(&["close", "disk.img"]).code(0);
    scene.wait_until_free("disk.img");
}

/// Mounts both levels, with a hidden write that waits for cover. A close waits at most as long as
/// the cover timeout given here.
fn mounted_with_pending_data() -> Option<Scene> {
    if !can_mount("/dev/fuse") || !is_program_available("fusermount3") {
        return None;
    }
    let scene = hidden();
    let open =
        ["open", "disk.img", "public", "hidden", "--raw", "--key-file", "deep", "--cover-timeout", "5"];
    scene.lacuna(&open).code(0);
    let mut file = fs::OpenOptions::new().write(true).open(scene.path("hidden/disk")).unwrap();
    file.write_all(&noise(1, 1 << 20)).unwrap();
    Some(scene)
}

/// Uses level 0, if it is still there.
fn give_cover(scene: &Scene) {
    let public = fs::OpenOptions::new().write(true).open(scene.path("public/disk"));
    let _ = public.and_then(|file| file.write_all_at(&noise(2, 4 << 20), 0).and_then(|()| file.sync_all()));
}

#[test]
fn a_terminal_shows_the_wait_for_cover_and_the_deepest_level_is_closed_first() {
    let Some(scene) = mounted_with_pending_data() else { return };
    let (mut close, seen, terminal) = on_terminal(&scene, &["close", "disk.img"]);
    wait_for(&seen, "closing: waiting for cover, ");
    assert!(scene.path("public/disk").exists() && !scene.path("hidden/disk").exists());
    give_cover(&scene);
    close.wait().unwrap();
    drop(terminal);
    scene.wait_until_free("disk.img");
}

#[test]
fn an_interrupted_close_says_that_closing_goes_on() {
    let Some(scene) = mounted_with_pending_data() else { return };
    let (mut close, seen, terminal) = on_terminal(&scene, &["close", "disk.img"]);
    wait_for(&seen, "closing: waiting for cover, ");
    // The runner of the tests may ignore INT, which counts as a wish not to hear it.
    send(Signal::TERM, close.id());
    let ended = close.wait().unwrap();
    assert_eq!((ended.code(), ended.signal()), (None, Some(libc::SIGTERM)));
    drop(terminal);
    wait_for(&seen, "closing goes on where it has begun");
    wait_for(&seen, "files may go into the directories below them, unencrypted");
    // The hidden level is closed, or refuses for want of cover; then another close ends the rest.
    wait_until("the end of the closing", || {
        give_cover(&scene);
        matches!(scene.lacuna(&["close", "disk.img"]).code, 0 | 4)
    });
    scene.wait_until_free("disk.img");
}

/// The files of a vault and of a served disk lie in the file system of another disk, which is named
/// first.
#[test]
fn what_keeps_a_mount_busy_is_closed_before_it() {
    skip_unless!(can_mount_ext4());
    let scene = Scene::with_disk(&["--size", "128M"]);
    ["m", "n"].iter().for_each(|dir| fs::create_dir(scene.path(dir)).unwrap());
    scene.lacuna(&["open", "disk.img", "m", "--mkfs", "ext4", "--key-file", "key"]).code(0);
    let _closing = CloseOnDrop(&scene, &["n", "m"]);
    scene.create("m/d.img", &["--size", "16M"]).code(0);
    scene.lacuna(&[&["vault", "init", "m/v", "--key-file", "key"][..], &CHEAP].concat()).code(0);
    scene.lacuna(&["open", "m/v", "n", "--key-file", "key"]).code(0);
    let server = scene.serve_disk("m/d.img", &[]);
    scene.lacuna(&["close", "m", "n", "m/d.img"]).code(0);
    assert_eq!(server.wait(), 0);
    assert!(!scene.path("m/lost+found").exists());
    scene.wait_until_free("disk.img");
}

#[test]
fn a_level_unmounted_by_hand_counts_as_closed() {
    skip_unless!(can_mount("/dev/fuse") && is_program_available("fusermount3"));
    let scene = slow("deniable", "20");
    let open = ["open", "disk.img", "public", "hidden", "--raw", "--key-file", "deep"];
    for by_hand in ["public", "hidden"] {
        scene.lacuna(&open).code(0);
        let hidden = fs::OpenOptions::new().write(true).open(scene.path("hidden/disk")).unwrap();
        hidden.write_all_at(&noise(1, FEW), 0).unwrap();
        drop(hidden);
        scene.tool("fusermount3", &["-u", by_hand]);
        scene.lacuna(&["close", "disk.img"]).code(0);
        scene.wait_until_free("disk.img");
    }
}

#[test]
fn a_log_does_not_show_the_wait_for_cover() {
    let Some(scene) = mounted_with_pending_data() else { return };
    let close = scene.command(&["close", "disk.img"]).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the close of the hidden level", || !scene.path("hidden/disk").exists());
    wait_until("more than a moment", {
        let began = Instant::now();
        move || began.elapsed().as_secs() >= 2
    });
    give_cover(&scene);
    let said = close.wait_with_output().unwrap().stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(!LEVEL_WORDS.iter().any(|word| said.contains(word)) && !said.contains("closing"), "{said}");
    scene.wait_until_free("disk.img");
}

/// Runs a command while the file system of level 0 is used, until it succeeds: on a busy machine
/// the cover can come too late. Fails after three minutes.
pub(crate) fn with_cover(scene: &Scene, args: &[&str]) {
    let began = Instant::now();
    while_level_0_is_used(scene, || {
        loop {
            let ran = scene.lacuna(args);
            if ran.code == 0 {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(180), "{args:?}: {}", ran.stderr);
        }
    });
}

fn while_level_0_is_used(scene: &Scene, work: impl FnOnce()) {
    let (done, file) = (AtomicBool::new(false), scene.path("public/cover"));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Level 0 is mounted before the other levels, and unmounted after them.
                let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&file);
                let _ = file
                    .and_then(|file| file.write_all_at(&noise(3, 1 << 20), 0).and_then(|()| file.sync_all()));
                thread::sleep(Duration::from_millis(50));
            }
        });
        let _stop = StopAtEnd(&done);
        work();
    });
}

#[test]
fn a_hidden_file_system_without_cover_stays_open_and_loses_nothing() {
    skip_unless!(can_mount_ext4());
    ["deniable", "oblivious"].into_iter().for_each(stays_open_and_loses_nothing);
}

fn stays_open_and_loses_nothing(format: &str) {
    let scene = hidden_in(format);
    // ext4 initialises inode tables in the background; these writes would wait for cover too, and
    // delay the writes of the test.
    let quiet = ["--mount-options", "noinit_itable"];
    let open = ["open", "disk.img", "public", "hidden", "--key-file", "deep"];
    let open = [&open[..], &quiet, &["--cover-timeout"]].concat();
    // Two timeouts: one for operations that must get cover even on a busy machine, one for
    // operations that must get none.
    let (patiently, shortly) = ([&open[..], &["60"]].concat(), [&open[..], &["2"]].concat());
    // With `--force`: a first attempt without cover may leave an incomplete file system.
    with_cover(&scene, &[&patiently[..], &["--mkfs", "ext4", "--force"]].concat());
    with_cover(&scene, &["close", "hidden"]);
    scene.lacuna(&["close", "disk.img"]).code(0);
    scene.wait_until_free("disk.img");
    with_cover(&scene, &shortly);
    // The hidden level needs level 0. The cover of this close carries along the data pending by
    // now.
    let (mut close, seen, terminal) = on_terminal(&scene, &["close", "public"]);
    assert_eq!(close.wait().unwrap().code(), Some(5));
    drop(terminal);
    wait_until("the end of the output", || Arc::strong_count(&seen) == 1);
    assert!(seen.lock().unwrap().contains("a deeper level that is still mounted"));
    let (file, content) = (scene.path("hidden/file"), noise(4, 1 << 20));
    fs::write(&file, &content).unwrap();
    // Longer than the limit of a flush, and than ext4 waits before it writes back by itself.
    let mut sync = Command::new("sync");
    // If this test fails, nothing else waits for a sync that never ends.
    let mut synced = sync.arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (mut close, seen, terminal) = on_terminal(&scene, &["close", "hidden"]);
    assert_eq!(close.wait().unwrap().code(), Some(14));
    drop(terminal);
    wait_until("the end of the output", || Arc::strong_count(&seen) == 1);
    assert!(seen.lock().unwrap().contains("it stays open, and nothing is lost: write to level 0"));
    assert!(synced.try_wait().unwrap().is_none() && fs::read(&file).unwrap() == content);
    with_cover(&scene, &["close", "hidden"]);
    assert!(synced.wait().unwrap().success());
    scene.lacuna(&["close", "disk.img"]).code(0);
    scene.wait_until_free("disk.img");
    with_cover(&scene, &patiently);
    assert!(fs::read(&file).unwrap() == content);
    // In any order of the arguments, the deepest level is closed first. The thread that gives cover
    // may keep level 0 busy for a moment.
    let mut busy = true;
    while_level_0_is_used(&scene, || {
        let ran = scene.lacuna(&["close", "public", "hidden"]);
        busy = ran.code != 0 && ran.code(20).code == 20;
    });
    assert!(!scene.path("hidden/lost+found").exists());
    if busy {
        scene.lacuna(&["close", "public"]).code(0);
    }
    assert!(!scene.path("public/lost+found").exists());
    scene.wait_until_free("disk.img");
}

/// The level refuses writes while it is being closed. It stays open, and takes them later.
#[test]
fn a_refused_close_loses_no_write_that_waited_for_room() {
    skip_unless!(can_mount_ext4());
    let scene = hidden();
    // No operation gives up before the close does.
    let options = ["--mount-options", "noinit_itable", "--cover-timeout", "60"];
    let open = [&["open", "disk.img", "public", "hidden", "--key-file", "deep"][..], &options].concat();
    with_cover(&scene, &[&open[..], &["--mkfs", "ext4", "--force"]].concat());
    let (file, content) = (scene.path("hidden/file"), noise(5, MORE));
    fs::write(&file, &content).unwrap();
    let refused = scene.lacuna(&["close", "disk.img"]).code(20).stderr;
    assert!(refused.contains("keeps the reason out of logs") && file.exists(), "{refused}");
    with_cover(&scene, &["close", "hidden"]);
    scene.lacuna(&["close", "disk.img"]).code(0);
    scene.wait_until_free("disk.img");
    with_cover(&scene, &open);
    assert!(fs::read(&file).unwrap() == content);
    // A signal ends the server, whatever is pending.
    // Blocks that are written anew need no more space, for which ext4 would wait for cover.
    fs::File::options().write(true).open(&file).unwrap().write_all(&noise(6, MORE)).unwrap();
    let status = scene.lacuna(&["status", "disk.img", "--json"]).code(0).json();
    send(Signal::TERM, &status["servers"][0]["pid"]);
    scene.wait_until_free("disk.img");
    scene.lacuna(&["status", "disk.img"]).code(4);
    assert!(["public", "hidden"].iter().all(|dir| !scene.path(dir).join("lost+found").exists()));
}

#[test]
fn a_log_does_not_show_why_a_level_stays_open() {
    skip_unless!(can_mount_ext4());
    let scene = Scene::new();
    fs::create_dir(scene.path("public")).unwrap();
    scene.create("disk.img", &["--format", "deniable", "--size", "64M"]).code(0);
    scene.lacuna(&["open", "disk.img", "public", "--mkfs", "ext4", "--key-file", "key"]).code(0);
    let user = fs::File::create(scene.path("public/used")).unwrap();
    // Only level 0 is open, and it is busy: the message is the same as when a deeper level needs
    // it.
    let refused = scene.lacuna(&["close", "public"]).code(20).stderr;
    assert!(refused.contains("keeps the reason out of logs"), "{refused}");
    drop(user);
    scene.lacuna(&["close", "public"]).code(0);
}

#[test]
fn an_opening_shows_its_wait_unless_quiet() {
    skip_unless!(can_mount_ext4());
    for quiet in [false, true] {
        let scene = hidden();
        let open = ["open", "disk.img", "public", "hidden", "--mkfs", "ext4", "--key-file", "deep"];
        let quietly: &[&str] = if quiet { &["-q"] } else { &[] };
        let (mut child, seen, terminal) =
            on_terminal(&scene, &[quietly, &open[..], &["--cover-timeout", "2"]].concat());
        // Level 0 cannot be used yet, so the file system of the hidden level gets no cover.
        assert_ne!(child.wait().unwrap().code(), Some(0));
        drop(terminal);
        wait_until("the end of the output", || Arc::strong_count(&seen) == 1);
        let seen = seen.lock().unwrap();
        let shown = seen.contains("opening: waiting for cover");
        assert_eq!(shown, !quiet, "{seen}");
    }
}
