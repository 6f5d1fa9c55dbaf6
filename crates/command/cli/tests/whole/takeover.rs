//! Takeovers: servers that are stopped and replaced, two servers of one disk, and keepers that die.
//! A keeper that is stopped makes the time between two servers as long as a test needs it.

use crate::harness::{Scene, Signal, is_program_available, send, skipped, wait_until};
use crate::keeper::{serve_kept, server_of};
use crate::nbd_client::Client;
use rustix::io::Errno;
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

const BLOCK: usize = 4096;

/// Whether a process has ended, whether or not its parent has noticed.
fn has_ended(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|fields| fields.trim().is_empty() || fields.trim().starts_with('Z'))
}

#[track_caller]
fn kill(process: u32) {
    send(Signal::KILL, process);
    wait_until("the end of a process", || has_ended(process));
}

/// The first server of the disk, as `status --json` shows it.
#[track_caller]
fn shown(scene: &Scene) -> Value {
    scene.lacuna(&["status", "disk.img", "--json"]).code(0).json()["servers"][0].clone()
}

fn write(socket: &Path, block: u8) -> Client {
    let mut client = Client::connect(socket).unwrap();
    client.write_at(u64::from(block) * BLOCK as u64, &[block; BLOCK]).unwrap();
    client
}

#[track_caller]
fn assert_written(socket: &Path, blocks: &[u8]) {
    let mut client = Client::connect(socket).unwrap();
    for block in blocks {
        let read = client.read_at(u64::from(*block) * BLOCK as u64, BLOCK).unwrap();
        assert!(read == [*block; BLOCK], "block {block}");
    }
}

/// Starts a server in the background on `nbd.sock`. Returns the processes of its keeper and of the
/// server.
fn serve_in_background(scene: &Scene) -> (u32, u32) {
    let args = ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "key", "--fork"];
    scene.lacuna(&[&args[..], &["--pid-file", "pid"]].concat()).code(0);
    let keeper = fs::read_to_string(scene.path("pid")).unwrap().trim().parse().unwrap();
    (keeper, server_of(keeper).unwrap())
}

/// A second server of the disk is refused. Returns its words.
#[track_caller]
fn refused_server(scene: &Scene) -> String {
    scene.lacuna(&["serve", "disk.img", "--socket", "other.sock", "--key-file", "key"]).code(5).stderr
}

#[test]
fn a_forced_close_takes_over_from_a_stopped_server_with_all_acknowledged_writes() {
    for stops_keeper in [false, true] {
        let scene = Scene::with_disk(&["--size", "64M"]);
        let serving = serve_kept(&scene, &[]);
        let server = server_of(serving.process()).unwrap();
        let _client = write(&serving.socket, 7);
        send(Signal::STOP, server);
        if stops_keeper {
            serving.signal(Signal::STOP);
        } else {
            assert_eq!(shown(&scene)["silent"], true);
            let refused = scene.lacuna(&["close", "disk.img"]).code(20).stderr;
            assert!(refused.contains(&format!("`kill -CONT {server}`")), "{refused}");
            assert!(refused.contains("--force kills it"), "{refused}");
        }
        let closed = scene.lacuna(&["close", "disk.img", "--force"]).code(0).stderr;
        assert!(closed.contains(&format!("was killed (process {server})")), "{closed}");
        assert!(closed.contains("its keeper started it again"), "{closed}");
        assert_eq!(serving.wait(), 0);
        // No process is left that could be resumed and write.
        let resumed = kill_process(Pid::from_raw(server.cast_signed()).unwrap(), Signal::CONT);
        assert_eq!(resumed, Err(Errno::SRCH));
        let serving = scene.serve(&[]);
        assert_written(&serving.socket, &[7]);
        assert_eq!(serving.stop(), 0);
        scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    }
}

#[test]
fn a_forced_close_kills_a_stopped_server_without_a_keeper_and_says_what_is_lost() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = scene.serve(&[]);
    let mut client = write(&serving.socket, 3);
    client.flush().unwrap();
    serving.signal(Signal::STOP);
    let closed = scene.lacuna(&["close", "disk.img", "--force"]).code(0).stderr;
    assert!(closed.contains(&format!("was killed (process {})", serving.process())), "{closed}");
    assert!(closed.contains("writes that were not flushed are lost"), "{closed}");
    scene.lacuna(&["status", "disk.img"]).code(4);
    // The process is dead, and only its number is left.
    serving.signal(Signal::CONT);
    assert_eq!(serving.wait(), -1);
    let serving = scene.serve(&[]);
    assert_written(&serving.socket, &[3]);
    assert_eq!(serving.stop(), 0);
}

#[test]
fn a_forced_close_spares_a_stopped_server_whose_file_is_gone() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = scene.serve(&[]);
    serving.signal(Signal::STOP);
    fs::rename(scene.path("disk.img"), scene.path("moved.img")).unwrap();
    let refused = scene.lacuna(&["close", "disk.img", "--force"]).code(20).stderr;
    assert!(refused.contains("kill -CONT") && !has_ended(serving.process()), "{refused}");
    serving.signal(Signal::CONT);
    assert_eq!(serving.stop(), 0);
}

#[test]
fn a_second_server_is_refused_also_between_two_servers_of_a_keeper() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = serve_kept(&scene, &[]);
    let (keeper, server) = (serving.process(), server_of(serving.process()).unwrap());
    let _client = write(&serving.socket, 1);
    let refused = refused_server(&scene);
    assert!(refused.contains(&format!("this user has it open in process {keeper}")), "{refused}");

    serving.signal(Signal::STOP);
    kill(server);
    let refused = refused_server(&scene);
    assert!(refused.contains(&format!("in process {keeper} (lacuna)")), "{refused}");
    let dead = shown(&scene);
    assert_eq!((&dead["died"], &dead["pid"]), (&true.into(), &server.into()), "{dead}");
    assert_eq!((&dead["keeper"], &dead["keeper_died"]), (&keeper.into(), &false.into()), "{dead}");
    let words = format!("and its keeper (process {keeper}) starts it again");
    for args in [&["status", "disk.img"][..], &["list"]] {
        let said = scene.lacuna(args).code(0).stdout;
        assert!(said.contains(&words), "{said}");
    }
    serving.signal(Signal::CONT);
    assert_written(&serving.socket, &[1]);
    assert!(refused_server(&scene).contains(&format!("in process {keeper}")));
    assert_eq!(serving.stop(), 0);
}

#[test]
fn a_disk_is_closed_between_two_servers_of_a_keeper() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = serve_kept(&scene, &[]);
    let server = server_of(serving.process()).unwrap();
    let _client = write(&serving.socket, 2);
    serving.signal(Signal::STOP);
    kill(server);
    std::thread::scope(|scope| {
        let closed = scope.spawn(|| scene.lacuna(&["close", "disk.img"]));
        serving.signal(Signal::CONT);
        closed.join().unwrap().code(0);
    });
    assert_eq!(serving.wait(), 0);
    let serving = scene.serve(&[]);
    assert_written(&serving.socket, &[2]);
    assert_eq!(serving.stop(), 0);
}

#[test]
fn a_server_that_is_told_to_end_and_dies_is_followed_by_one_that_ends() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = serve_kept(&scene, &[]);
    let server = server_of(serving.process()).unwrap();
    let _client = write(&serving.socket, 4);
    send(Signal::STOP, server);
    serving.signal(Signal::TERM);
    send(Signal::KILL, server);
    assert_eq!(serving.wait(), 0);
    let serving = scene.serve(&[]);
    assert_written(&serving.socket, &[4]);
    assert_eq!(serving.stop(), 0);
}

/// A keeper that ignores HUP, as under nohup(1), keeps the signal before in mind.
#[test]
fn an_ignored_signal_does_not_replace_the_one_that_told_a_server_to_end() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serve = scene.command(&["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "key"]);
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", r#"trap "" HUP; exec "$0" "$@""#]).arg(serve.get_program()).args(serve.get_args());
    ignoring.env("XDG_STATE_HOME", scene.path("state")).env_remove("LISTEN_FDS").stdin(Stdio::null());
    let serving = scene.serve_kept(&mut ignoring);
    let server = server_of(serving.process()).unwrap();
    let _client = write(&serving.socket, 10);
    send(Signal::STOP, server);
    wait_until("that the server stops", || {
        fs::read_to_string(format!("/proc/{server}/stat")).unwrap().contains(") T ")
    });
    serving.signal(Signal::TERM);
    wait_until("that the keeper passes the signal on", || {
        let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
        u64::from_str_radix(pending.trim(), 16).unwrap() & (1 << (libc::SIGTERM - 1)) != 0
    });
    serving.signal(Signal::HUP);
    send(Signal::KILL, server);
    assert_eq!(serving.wait(), 0);
    let serving = scene.serve(&[]);
    assert_written(&serving.socket, &[10]);
    assert_eq!(serving.stop(), 0);
}

#[test]
fn a_server_whose_keeper_died_serves_until_it_is_closed() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let (keeper, server) = serve_in_background(&scene);
    let socket = scene.path("nbd.sock");
    let mut client = write(&socket, 5);
    kill(keeper);
    client.write_at(6 * BLOCK as u64, &[6; BLOCK]).unwrap();
    drop(client);
    let alone = shown(&scene);
    assert_eq!((&alone["pid"], &alone["keeper"]), (&server.into(), &keeper.into()), "{alone}");
    assert_eq!((&alone["keeper_died"], &alone["died"]), (&true.into(), &Value::Null), "{alone}");
    for args in [&["status", "disk.img"][..], &["list"]] {
        let said = scene.lacuna(args).code(0).stdout;
        assert!(said.contains("its keeper died"), "{said}");
    }
    // The claim passes to the server, which hears of the death of its keeper at once.
    wait_until("that the server is named", || {
        refused_server(&scene).contains(&format!("in process {server}"))
    });
    scene.lacuna(&["close", "disk.img"]).code(0);
    // The next server needs no wait.
    assert!(has_ended(server) && !socket.exists() && !scene.path("pid").exists());
    let serving = scene.serve(&[]);
    assert_written(&socket, &[5, 6]);
    assert_eq!(serving.stop(), 0);
}

/// With `hidepid` users do not see the processes of servers in /proc, not even their own ones.
#[test]
fn a_keeper_that_proc_hides_counts_as_living() {
    let tools = ["unshare", "setpriv", "mount"];
    if !rustix::process::geteuid().is_root() || !tools.iter().all(|tool| is_program_available(tool)) {
        return skipped("this needs root");
    }
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::copy(env!("CARGO_BIN_EXE_lacuna"), scene.path("lacuna")).unwrap();
    fs::create_dir(scene.path("run")).unwrap();
    for (name, mode) in [(".", 0o755), ("lacuna", 0o755), ("run", 0o700)] {
        fs::set_permissions(scene.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for name in ["run", "disk.img", "key"] {
        chown(scene.path(name), Some(65534), Some(65534)).unwrap();
    }
    // All processes end with the first one of their namespace.
    let person = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let begin = format!("mount -t proc -o hidepid=2 proc /proc || exit 77; exec {person} sh -c \"$0\"");
    let script = "
        ./lacuna serve disk.img --socket run/nbd.sock --key-file key --fork --pid-file run/pid >&2 || exit 60
        test ! -e /proc/$(cat run/pid) || exit 77
        ./lacuna status disk.img --json || exit 61
        ./lacuna close disk.img >&2
    ";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "sh", "-c", &begin, script]).current_dir(scene.path("."));
    command.env("XDG_RUNTIME_DIR", scene.path("run")).env("XDG_STATE_HOME", scene.path("run/state"));
    let output = command.env_remove("LISTEN_FDS").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || said.contains("unshare failed") {
        return skipped("processes cannot be hidden here");
    }
    assert!(output.status.success(), "{said}");
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["servers"][0]["keeper_died"], false, "{status}");
}

/// Kills a keeper and then its server. A power cut for both: flushed writes are there.
fn next_server_opens(looks_first: bool) {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let (keeper, server) = serve_in_background(&scene);
    let socket = scene.path("nbd.sock");
    let mut client = write(&socket, 8);
    client.flush().unwrap();
    client.write_at(9 * BLOCK as u64, &[9; BLOCK]).unwrap();
    send(Signal::KILL, keeper);
    send(Signal::KILL, server);
    wait_until("the end of both", || has_ended(keeper) && has_ended(server));
    if looks_first {
        // No server is started again, and nothing is left of it.
        scene.lacuna(&["status", "disk.img"]).code(4);
        scene.lacuna(&["close", "disk.img"]).code(4);
    }
    let (next, _) = serve_in_background(&scene);
    assert_ne!(next, keeper);
    assert_written(&socket, &[8]);
    let status = scene.lacuna(&["status", "disk.img", "--json"]).code(0).json();
    assert_eq!(status["servers"].as_array().unwrap().len(), 1, "{status}");
    scene.lacuna(&["close", "disk.img"]).code(0);
    assert!(has_ended(next) && !socket.exists() && !scene.path("pid").exists());
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
}

#[test]
fn the_next_server_opens_after_the_death_of_keeper_and_server() {
    next_server_opens(false);
}

#[test]
fn the_death_of_keeper_and_server_leaves_nothing_in_the_registry() {
    next_server_opens(true);
}
