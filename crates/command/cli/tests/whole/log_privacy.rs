//! Failures that only hidden levels can cause are reported on a terminal and by `lacuna status`,
//! and never in a log. No log tells how many levels are mounted, and where.

use crate::closing::slow;
use crate::daily::IsolatedScene;
use crate::harness::{
    RunOutput, Scene, Signal, Terminal, can_mount, can_mount_ext4, is_program_available, noise, send,
    skip_unless, wait_until,
};
use crate::nbd_client::Client;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

/// The beginning of the note on deeper levels that every opening for writing prints.
const NOTE: &str = "note: While this disk is open,";
/// Words that a log must not contain.
const FORBIDDEN_WORDS: [&str; 6] = ["cover", "hidden", "level", "export", "flush", "deep"];

/// Mount points for levels, and the sets of them that no log may tell apart.
const DIRS: [&str; 2] = ["public", "hidden"];
const MOUNTED: [&[&str]; 2] = [&["public"], &DIRS];

/// A disk of two levels without cover of its own: hidden writes wait for public writes.
fn scene(format: &str) -> Scene {
    let scene = Scene::new();
    create_in(&scene, format);
    scene
}

fn create_in(scene: &Scene, format: &str) {
    fs::write(scene.path("deep"), "battery staple").unwrap();
    let shape = ["--format", format, "--size", "64M", "--levels", "2", "--key-file", "deep", "--cover", "0"];
    scene.create("disk.img", &shape).code(0);
}

/// The arguments that mount levels at these mount points.
fn opening<'a>(levels: &[&'a str], option: &[&'a str]) -> Vec<&'a str> {
    [&["open", "disk.img"][..], levels, &["--key-file", "deep"], option].concat()
}

/// The process number of the only server.
fn server_of(status: &RunOutput) -> String {
    status.json()["servers"][0]["pid"].to_string()
}

/// Kills the server of the disk, and returns what a log of closing the disk gets, with the exit
/// code.
fn close_after_kill(scene: &Scene) -> (i32, String) {
    send(Signal::KILL, server_of(&scene.lacuna(&["status", "disk.img", "--json"]).code(0)));
    scene.wait_until_free("disk.img");
    let dead = || scene.lacuna(&["status", "disk.img"]).stdout.contains("its server died");
    wait_until("that status tells of it", dead);
    let closed = scene.lacuna(&["-v", "close", "disk.img"]);
    (closed.code, closed.stderr)
}

#[track_caller]
fn assert_silent(words: &str) {
    // Except the note that every opening prints, for any number of levels.
    let rest: Vec<&str> = words.lines().filter(|line| !line.contains(NOTE)).collect();
    let telling = |word: &&str| rest.iter().any(|line| line.contains(*word));
    assert!(!FORBIDDEN_WORDS.iter().any(telling), "{rest:?}");
}

/// Serves the disk, lets a hidden flush fail for lack of cover, and ends. Returns the exit code and
/// the last error in `status`.
fn serve_failing_flush(scene: &Scene, said: Stdio) -> (i32, String) {
    let arguments =
        ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "deep", "--cover-timeout", "1"];
    let server = scene.serve_command_logging_to(&mut scene.command(&arguments), said);
    let mut hidden = Client::connect_to(&server.socket, "1").unwrap();
    hidden.write_at(0, &noise(1, 1 << 20)).unwrap();
    hidden.flush().unwrap_err();
    let status = scene.lacuna(&["status", "disk.img", "--json"]).code(0).json();
    let last = status["servers"][0]["last_error"].as_str().unwrap().to_owned();
    (server.stop(), last)
}

#[test]
fn a_hidden_failure_of_a_server_is_shown_on_a_terminal_only() {
    for format in ["deniable", "oblivious"] {
        let scene = scene(format);
        let log = fs::File::create(scene.path("log")).unwrap();
        let (code, last) = serve_failing_flush(&scene, log.into());
        assert!(last.contains("cover"), "{last}");
        let words = fs::read_to_string(scene.path("log")).unwrap();
        assert_silent(&words);
        assert!(code == 20 && words.contains("keeps the reason out of logs"), "{format}: {code}: {words}");

        let terminal = Terminal::new();
        let (code, _) = serve_failing_flush(&scene, terminal.stdio());
        let words = terminal.output();
        assert!(code == 14 && words.contains("cover") && words.contains("export \"1\""), "{code}: {words}");
    }
}

#[test]
fn a_hidden_failure_of_a_close_is_shown_on_a_terminal_only() {
    skip_unless!(can_mount("/dev/fuse") && is_program_available("fusermount3"));
    // `script` gives a command a terminal.
    for way in ["log", "terminal", "script"] {
        let scene = scene("deniable");
        DIRS.iter().for_each(|dir| fs::create_dir(scene.path(dir)).unwrap());
        let open =
            ["open", "disk.img", "public", "hidden", "--raw", "--key-file", "deep", "--cover-timeout", "1"];
        let ran = scene.lacuna(&open).code(0);
        assert_silent(&ran.stderr);
        assert!(ran.stdout.contains("public") && !ran.stdout.contains("hidden"), "{}", ran.stdout);
        let mut file = fs::OpenOptions::new().write(true).open(scene.path("hidden/disk")).unwrap();
        file.write_all(&noise(1, 1 << 20)).unwrap();
        drop(file);
        let close = ["close", "hidden"];
        if way == "terminal" {
            let ran = scene.lacuna_on_terminal(&close).code(14);
            assert!(ran.stderr.contains("cover"), "{}", ran.stderr);
        } else if way == "script" && is_program_available("script") {
            let command = format!("{} close hidden", env!("CARGO_BIN_EXE_lacuna"));
            let mut script = Command::new("script");
            script.args(["-qec", &command, "/dev/null"]).current_dir(scene.path("")).stdin(Stdio::null());
            script.env("XDG_RUNTIME_DIR", scene.path("")).env("XDG_STATE_HOME", scene.path("state"));
            let shown = RunOutput::from(script.output().unwrap()).code(14).stdout;
            assert!(shown.contains("cover"), "{shown}");
        } else {
            let ran = scene.lacuna(&close).code(20);
            assert_silent(&ran.stderr);
            assert!(ran.stderr.contains("keeps the reason out of logs"), "{}", ran.stderr);
            // As the message says, for a script.
            assert!(ran.stderr.contains("`script -qec COMMAND /dev/null`"), "{}", ran.stderr);
        }
        scene.lacuna(&["close", "public"]);
        scene.wait_until_free("disk.img");
    }
}

#[test]
fn more_mount_points_than_levels_are_refused_without_a_number() {
    let scene = scene("deniable");
    ["one", "two", "three"].iter().for_each(|dir| fs::create_dir(scene.path(dir)).unwrap());
    let open = ["open", "disk.img", "one", "two", "three", "--raw", "--key-file", "deep"];
    let before = fs::read(scene.path("disk.img")).unwrap();
    assert_silent(&scene.lacuna(&open).code(20).stderr);
    let ran = scene.lacuna_on_terminal(&open).code(1);
    assert!(ran.stderr.contains("at most 2"), "{}", ran.stderr);
    assert!(fs::read(scene.path("disk.img")).unwrap() == before, "a refused opening wrote to the disk");
}

/// Number of blocks of the disk that a failing command changes; checks its log.
fn changed_by(scene: &Scene, args: &[&str]) -> usize {
    let before = fs::read(scene.path("disk.img")).unwrap();
    assert_silent(&scene.lacuna(args).code(20).stderr);
    scene.wait_until_free("disk.img");
    let after = fs::read(scene.path("disk.img")).unwrap();
    before.chunks(4096).zip(after.chunks(4096)).filter(|(before, after)| before != after).count()
}

#[test]
fn a_failed_opening_writes_as_much_for_any_number_of_levels() {
    skip_unless!(can_mount_ext4());
    for format in ["deniable", "oblivious"] {
        // The clock never beats while the test runs, and closing writes cover.
        let scene = Scene::with_levels(format, &["--size", "64M", "--cover", "3600000"]);
        DIRS.iter().for_each(|dir| fs::create_dir(scene.path(dir)).unwrap());
        // No level has a file system to mount.
        let one = changed_by(&scene, &["open", "disk.img", "public", "--key-file", "key"]);
        let two = changed_by(&scene, &["open", "disk.img", "public", "--key-file", "deep"]);
        let both = changed_by(&scene, &["open", "disk.img", "public", "hidden", "--key-file", "deep"]);
        // Some of the changed blocks may have been written before.
        let is_like_one = |changed: usize| 2 * changed > one;
        assert!(one > 0 && is_like_one(two) && is_like_one(both), "{format}: {one}, {two}, {both}");
        // Level 0 has a file system, and is mounted when mounting the other fails.
        scene.lacuna(&["open", "disk.img", "public", "--mkfs", "ext4", "--key-file", "key"]).code(0);
        scene.lacuna(&["close", "public"]).code(0);
        scene.wait_until_free("disk.img");
        let after_one = changed_by(&scene, &["open", "disk.img", "public", "hidden", "--key-file", "deep"]);
        assert!(is_like_one(after_one) && !scene.path("public/lost+found").exists(), "{format}: {after_one}");
    }
}

#[test]
fn a_log_does_not_tell_which_levels_a_dead_server_had_mounted() {
    skip_unless!(can_mount("/dev/fuse") && is_program_available("fusermount3"));
    let logs = MOUNTED.map(|levels| {
        let scene = scene("deniable");
        DIRS.iter().for_each(|dir| fs::create_dir(scene.path(dir)).unwrap());
        scene.lacuna(&opening(levels, &["--raw"])).code(0);
        let log = close_after_kill(&scene);
        scene.lacuna(&["status", "disk.img"]).code(4);
        log
    });
    assert_eq!(logs[0], logs[1]);
    assert!(logs[0].0 == 0 && logs[0].1.contains("the server had died before"), "{logs:?}");
}

#[test]
fn a_log_does_not_tell_which_level_of_a_dead_server_is_in_use() {
    skip_unless!(can_mount_ext4());
    let logs = MOUNTED.map(|levels| {
        let scene = slow("deniable", "20");
        scene.lacuna(&opening(levels, &["--mkfs", "ext4"])).code(0);
        // The deepest mounted level.
        let user = fs::File::open(scene.path(levels.last().unwrap())).unwrap();
        let log = close_after_kill(&scene);
        drop(user);
        scene.lacuna(&["close", "disk.img"]).code(0);
        log
    });
    assert_eq!(logs[0], logs[1]);
    assert!(logs[0].0 == 20 && logs[0].1.contains("keeps the reason out of logs"), "{logs:?}");
}

#[test]
fn a_log_does_not_tell_which_levels_a_silent_server_has_mounted() {
    let mut logs = Vec::new();
    for levels in MOUNTED {
        let Some(apart) = IsolatedScene::new() else { return };
        create_in(&apart.scene, "deniable");
        DIRS.iter().for_each(|dir| fs::create_dir(apart.scene.path(dir)).unwrap());
        apart.lacuna(&opening(levels, &["--raw"])).code(0);
        let server = server_of(&apart.lacuna(&["status", "disk.img", "--json"]).code(0));
        send(Signal::STOP, &server);
        let asked = [
            &["close", "disk.img"][..],
            &["close", "--all"],
            &["check", "disk.img"],
            &["doctor", "disk.img"],
        ];
        let told: Vec<RunOutput> = thread::scope(|scope| {
            let apart = &apart;
            let runs = asked.map(|args| scope.spawn(move || apart.lacuna(&[&["-v"], args].concat())));
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        send(Signal::CONT, &server);
        let of_disk = |ran: &RunOutput| {
            assert_silent(&ran.stderr);
            assert!(ran.code == 20 && ran.stderr.contains(&format!("kill -CONT {server}")), "{}", ran.stderr);
            let dir = apart.scene.path("").canonicalize().unwrap();
            ran.stderr.replace(&server, "PID").replace(dir.to_str().unwrap(), "DIR")
        };
        logs.push(told.iter().map(of_disk).collect::<Vec<_>>());
    }
    assert_eq!(logs[0], logs[1]);
}
