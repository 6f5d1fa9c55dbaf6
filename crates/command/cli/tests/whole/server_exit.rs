//! An NBD server ends, or fails to start, in the same way for all combinations of open levels: the
//! exit code, the log, the number of changed blocks of the medium, the files beside it, and the
//! results of other commands.

use crate::harness::{Scene, Serving, Signal, noise};
use crate::nbd_client::Client;
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BLOCK: usize = 4096;
const FORMATS: [&str; 2] = ["deniable", "oblivious"];
/// The key files of level 0 and of level 1.
const KEYS: [&str; 2] = ["key", "deep"];
/// A number of bytes of level 1 that the cover of a close carries along.
const FEW: usize = 64 << 10;
/// For each format, a number that the cover does not carry along but the queue of the level holds.
const MANY: [usize; 2] = [7 << 20, 3 << 20];

/// A disk of two levels, `fresh.img`, with a clock that never beats while the test runs.
fn scene(format: &str) -> Scene {
    let scene = Scene::new();
    fs::write(scene.path("deep"), "battery staple").unwrap();
    fs::write(scene.path("wrong"), "wrong").unwrap();
    let shape = ["--format", format, "--size", "64M", "--levels", "2", "--key-file", "deep"];
    scene.create("fresh.img", &[&shape[..], &["--cover", "3600000"]].concat()).code(0);
    scene
}

/// Gives each server the same disk.
fn copy_disk(scene: &Scene) {
    fs::copy(scene.path("fresh.img"), scene.path("disk.img")).unwrap();
}

/// The observations of an ending that need no key.
struct ServerExit {
    code: i32,
    said: String,
    /// The output of `status` afterwards, and the files beside the disk.
    left: String,
    /// Number of changed blocks of the medium.
    changed: usize,
}

impl ServerExit {
    fn of(scene: &Scene, code: i32, said: String) -> ServerExit {
        let status = scene.lacuna(&["status", "disk.img"]);
        let left = format!("{}: {} {:?}", status.code, status.stderr, below(&scene.path(".")));
        let [before, after] = ["fresh.img", "disk.img"].map(|name| fs::read(scene.path(name)).unwrap());
        let blocks = before.chunks(BLOCK).zip(after.chunks(BLOCK));
        ServerExit { code, said, left, changed: blocks.filter(|(before, after)| before != after).count() }
    }

    #[track_caller]
    fn assert_alike(&self, other: &ServerExit, what: &str) {
        self.assert_visibly_alike(other, what);
        // The rewritten cells of an `oblivious` disk are random, and some are rewritten more than
        // once.
        let (one, two) = (self.changed, other.changed);
        assert!(one.abs_diff(two) <= one / 4, "{what}: {one} blocks changed, and {two}");
    }

    /// Compares everything except the medium.
    #[track_caller]
    fn assert_visibly_alike(&self, other: &ServerExit, what: &str) {
        let seen = |ending: &ServerExit| (ending.code, ending.said.clone(), ending.left.clone());
        assert_eq!(seen(self), seen(other), "{what}");
    }
}

/// All files and directories below a directory.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(below(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

/// The ending of a server that fails to start.
fn refused(scene: &Scene, key: &str, options: &[&str]) -> ServerExit {
    copy_disk(scene);
    let serve = ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", key];
    let ran = scene.lacuna(&[&serve[..], options].concat());
    assert!(ran.code > 0, "{options:?}");
    ServerExit::of(scene, ran.code, ran.stderr)
}

/// Compares the endings for both keys; returns that of level 0.
#[track_caller]
fn assert_refused_alike(scene: &Scene, options: &[&str]) -> ServerExit {
    let [public, hidden] = KEYS.map(|key| refused(scene, key, options));
    hidden.assert_alike(&public, &format!("{options:?}"));
    public
}

#[test]
fn a_failed_start_looks_the_same_for_every_key() {
    for format in FORMATS {
        let scene = scene(format);
        fs::create_dir(scene.path("empty")).unwrap();
        fs::write(scene.path("file"), "no process number").unwrap();
        // Errors found before the disk is open change nothing.
        for options in [
            &["--idle-timeout", "90s"][..],
            &["--write-through"],
            &["--pid-file", "file"],
            &["--tls-dir", "empty"],
        ] {
            assert_eq!(assert_refused_alike(&scene, options).changed, 0, "{format}, {options:?}");
        }
        // This one is found while the disk is open: closing it writes cover.
        let options = ["--pid-file", "none/pid"];
        assert!(assert_refused_alike(&scene, &options).changed > 0, "{format}");
        let _other = UnixListener::bind(scene.path("nbd.sock")).unwrap();
        let busy = assert_refused_alike(&scene, &[]);
        assert!(busy.code == 5 && busy.changed == 0, "{format}: {}, {}", busy.code, busy.said);
    }
}

#[test]
fn a_log_does_not_show_the_number_of_passphrases() {
    for format in FORMATS {
        let scene = scene(format);
        let one = refused(&scene, "wrong", &[]);
        assert!(one.code == 2 && one.changed == 0 && one.said.contains("wrong passphrase"), "{}", one.said);
        for key in KEYS {
            refused(&scene, key, &["--key-file", "wrong"]).assert_alike(&one, key);
        }
        let serve =
            ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "deep", "--key-file", "wrong"];
        let text = scene.lacuna_on_terminal(&serve).code(2).stderr;
        assert!(text.contains("of the 2 passphrases given, number 2 opens nothing"), "{text}");
    }
}

/// Whether the medium accepts writes.
#[derive(Clone, Copy, PartialEq)]
enum MediumState {
    Good,
    Full,
}

/// Serves the disk with its messages in a file.
fn serve(scene: &Scene, key: &str, medium: MediumState) -> Serving {
    copy_disk(scene);
    let args = ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", key];
    let mut command = scene.command(&args);
    if medium == MediumState::Full {
        // The limit is below all data but above the header, whatever unit the shell uses.
        let script = "ulimit -f 1024; exec \"$0\" \"$@\"";
        command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_lacuna")]).args(args).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", scene.path("state"));
    }
    scene.serve_command_logging_to(&mut command, fs::File::create(scene.path("log")).unwrap().into())
}

fn ended(scene: &Scene, server: Serving) -> ServerExit {
    let code = server.wait();
    ServerExit::of(scene, code, fs::read_to_string(scene.path("log")).unwrap())
}

/// The ending of a server with level 0 alone while a client is connected.
fn public_end(scene: &Scene, medium: MediumState, signal: Signal) -> ServerExit {
    let server = serve(scene, "key", medium);
    let mut client = Client::connect_to(&server.socket, "0").unwrap();
    client.read_at(0, BLOCK).unwrap();
    server.signal(signal);
    ended(scene, server)
}

/// The ending of a server with level 1 while a flush of `len` bytes waits for cover; also the
/// result of the flush for the client.
fn hidden_end(
    scene: &Scene,
    medium: MediumState,
    signal: Signal,
    len: usize,
) -> (ServerExit, io::Result<()>) {
    let server = serve(scene, "deep", medium);
    let mut client = Client::connect_to(&server.socket, "1").unwrap();
    let writes = (0..len).step_by(FEW);
    writes.for_each(|at| client.write_at(at as u64, &noise(1 + at as u64, FEW)).unwrap());
    client.begin_flush().unwrap();
    // The server has read the flush, because it answers a later request.
    client.read_at(0, BLOCK).unwrap();
    server.signal(signal);
    let flushed = client.answer();
    (ended(scene, server), flushed)
}

#[test]
fn a_stopped_server_does_not_wait_for_cover_of_hidden_requests() {
    for (format, many) in FORMATS.into_iter().zip(MANY) {
        let scene = scene(format);
        for signal in [Signal::TERM, Signal::INT] {
            let public = public_end(&scene, MediumState::Good, signal);
            assert!(public.code == 0 && public.changed > 0, "{format}: {}, {}", public.code, public.said);
            let (hidden, flushed) = hidden_end(&scene, MediumState::Good, signal, FEW);
            // The cover of the close carried it along.
            flushed.unwrap();
            hidden.assert_alike(&public, format);
        }
        let full = public_end(&scene, MediumState::Full, Signal::TERM);
        assert!(
            full.code == 20 && full.said.contains("keeps the reason out of logs"),
            "{format}: {}",
            full.said
        );
        let (hidden, flushed) = hidden_end(&scene, MediumState::Full, Signal::TERM, FEW);
        flushed.unwrap_err();
        hidden.assert_alike(&full, format);
        // Data that the cover does not carry along is lost, as if the medium had failed.
        let (hidden, flushed) = hidden_end(&scene, MediumState::Good, Signal::TERM, many);
        flushed.unwrap_err();
        hidden.assert_visibly_alike(&full, format);
        // The log or journal then ends early, and cells that are in the journal alone are not
        // written in place.
        let public = public_end(&scene, MediumState::Good, Signal::TERM);
        assert!(hidden.changed > public.changed / 4, "{format}: {}, {}", hidden.changed, public.changed);
    }
}
