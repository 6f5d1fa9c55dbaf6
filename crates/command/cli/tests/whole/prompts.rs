//! Prompts for passphrases, and `status --watch`, on a terminal that belongs to the session of the
//! program. The terminal shows input and its former screen again, whatever ends or stops the
//! program.

use crate::harness::{CHEAP, Scene, Signal, Terminal, is_program_available, send, skip_unless, wait_until};
use rustix::termios::LocalModes;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

const PROMPT: &str = "Passphrase for disk.img: ";
/// Runs the program in a job of a shell, and goes on with it once the file `go` exists.
const JOB: &str =
    "set -m; \"$0\" \"$@\"; echo \"STOP\"PED; until [ -e go ]; do sleep 0.05; done; fg; echo code $?";
/// How `status --watch` takes the screen and gives it back.
const TAKES: &str = "\x1b[?1049h";
const GIVES_BACK: &str = "\x1b[?1049l";
const WATCH: [&str; 5] = ["status", "disk.img", "--watch", "--interval", "0.1"];

/// A session with a terminal of its own.
struct Session {
    terminal: Terminal,
    child: Child,
    seen: Arc<Mutex<String>>,
}

impl Session {
    /// Runs these words in it.
    fn new(scene: &Scene, words: &[&str]) -> Session {
        let terminal = Terminal::new();
        let seen = terminal.collect_output();
        let mut command = Command::new("setsid");
        // The runner of the tests may ignore signals.
        command.args(["--ctty", "env", "--default-signal"]).args(words).current_dir(scene.path(""));
        command.env("XDG_RUNTIME_DIR", scene.path("")).env("XDG_STATE_HOME", scene.path("state"));
        command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio());
        let child = command.spawn().unwrap();
        Session { terminal, child, seen }
    }

    /// Asks for the passphrase of `disk.img`.
    fn asking(scene: &Scene) -> Session {
        let session = Session::new(scene, &[env!("CARGO_BIN_EXE_lacuna"), "check", "disk.img"]);
        session.wait_for(PROMPT, 1);
        assert!(!session.shows_input());
        session
    }

    fn count(&self, text: &str) -> usize {
        self.seen.lock().unwrap().matches(text).count()
    }

    /// Waits until the terminal has shown `text` this number of times.
    #[track_caller]
    fn wait_for(&self, text: &str, times: usize) {
        wait_until(text, || self.count(text) >= times);
    }

    fn shows_input(&self) -> bool {
        self.terminal.modes().local_modes.contains(LocalModes::ECHO)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The local modes of a new terminal.
fn modes_before() -> LocalModes {
    Terminal::new().modes().local_modes
}

#[test]
fn every_signal_gives_the_terminal_its_echo_back() {
    skip_unless!(is_program_available("setsid"));
    let scene = Scene::with_disk(&["--size", "16M"]);
    let keys = [(Signal::INT, &b"\x03"[..]), (Signal::QUIT, &b"\x1c"[..])];
    let usual = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::ALARM, Signal::USR1];
    let rare = [Signal::STKFLT, Signal::XCPU, Signal::VTALARM, Signal::PROF, Signal::IO, Signal::POWER];
    let sent = usual.into_iter().chain(rare).map(|signal| (signal, &b""[..]));
    for (signal, keys) in keys.into_iter().chain(sent) {
        let mut session = Session::asking(&scene);
        if keys.is_empty() {
            send(signal, session.child.id());
        } else {
            session.terminal.press(keys);
        }
        assert_eq!(session.child.wait().unwrap().signal(), Some(signal.as_raw()));
        assert_eq!(session.terminal.modes().local_modes, modes_before(), "{signal:?}");
    }
}

#[test]
fn a_job_that_is_stopped_at_a_prompt_asks_again() {
    skip_unless!(is_program_available("setsid"));
    let scene = Scene::with_disk(&["--size", "16M"]);
    let words = ["sh", "-c", JOB, env!("CARGO_BIN_EXE_lacuna"), "check", "disk.img"];
    let mut session = Session::new(&scene, &words);
    session.wait_for(PROMPT, 1);
    assert!(!session.shows_input());
    session.terminal.press(b"wrong\x1a");
    session.wait_for("STOPPED", 1);
    assert_eq!(session.terminal.modes().local_modes, modes_before());
    fs::write(scene.path("go"), "").unwrap();
    session.wait_for(PROMPT, 2);
    assert!(!session.shows_input());
    session.terminal.types("correct horse");
    session.wait_for("code 0", 1);
    assert!(session.child.wait().unwrap().success());
    assert!(session.shows_input() && session.count("horse") == 0);
}

#[test]
fn a_watch_gives_the_screen_back_on_every_signal() {
    skip_unless!(is_program_available("setsid"));
    let scene = Scene::with_disk(&["--size", "16M"]);
    let _serving = scene.serve(&[]);
    let start = ["TERM=xterm", env!("CARGO_BIN_EXE_lacuna")];
    for signal in [Signal::QUIT, Signal::ALARM, Signal::USR1, Signal::INT, Signal::TERM, Signal::HUP] {
        let mut session = Session::new(&scene, &[&start[..], &WATCH].concat());
        session.wait_for("Ctrl-C ends it", 1);
        assert_eq!((session.count(TAKES), session.count(GIVES_BACK)), (1, 0));
        send(signal, session.child.id());
        let ended = session.child.wait().unwrap();
        let is_usual = [Signal::INT, Signal::TERM, Signal::HUP].contains(&signal);
        assert_eq!(ended.signal(), (!is_usual).then_some(signal.as_raw()));
        assert_eq!(ended.success(), is_usual, "{signal:?}");
        session.wait_for(GIVES_BACK, 1);
    }
}

#[test]
fn a_watch_that_is_stopped_gives_the_screen_back_and_goes_on() {
    skip_unless!(is_program_available("setsid"));
    let scene = Scene::with_disk(&["--size", "16M"]);
    let _serving = scene.serve(&[]);
    let start = ["TERM=xterm", "sh", "-c", JOB, env!("CARGO_BIN_EXE_lacuna")];
    let mut session = Session::new(&scene, &[&start[..], &WATCH].concat());
    session.wait_for("Ctrl-C ends it", 1);
    session.terminal.press(b"\x1a");
    session.wait_for("STOPPED", 1);
    assert_eq!((session.count(TAKES), session.count(GIVES_BACK)), (1, 1));
    fs::write(scene.path("go"), "").unwrap();
    session.wait_for(TAKES, 2);
    session.terminal.press(b"\x03");
    session.wait_for("code 0", 1);
    assert!(session.child.wait().unwrap().success());
    assert_eq!(session.count(GIVES_BACK), 2);
}

/// A shell sets the terminal after a program was stopped by STOP, which no program can catch.
#[test]
fn input_is_hidden_again_after_stop_and_cont() {
    skip_unless!(is_program_available("setsid"));
    let scene = Scene::with_disk(&["--size", "16M"]);
    let mut session = Session::asking(&scene);
    send(Signal::STOP, session.child.id());
    session.terminal.set_modes(&Terminal::new().modes());
    send(Signal::CONT, session.child.id());
    session.wait_for(PROMPT, 2);
    assert!(!session.shows_input());
    session.terminal.types("correct horse");
    assert!(session.child.wait().unwrap().success());
    assert!(session.shows_input() && session.count("horse") == 0);
}

#[test]
fn a_line_that_the_terminal_cuts_is_refused() {
    skip_unless!(is_program_available("setsid"));
    let scene = Scene::with_disk(&["--size", "16M"]);
    let mut session = Session::asking(&scene);
    session.terminal.types(&"x".repeat(5000));
    assert_eq!(session.child.wait().unwrap().code(), Some(1));
    session.wait_for("longer than a terminal passes on", 1);
}

#[test]
fn a_short_new_passphrase_gets_the_same_note_for_each_level() {
    skip_unless!(is_program_available("setsid"));
    let scene = Scene::new();
    let create = ["create", "new.img", "--size", "24M", "--format", "deniable", "--levels", "2"];
    let words = [&[env!("CARGO_BIN_EXE_lacuna")][..], &create, &CHEAP].concat();
    let mut session = Session::new(&scene, &words);
    for (level, passphrase) in ["short", "short too"].iter().enumerate() {
        session.wait_for(&format!("New passphrase for level {level} of new.img: "), 1);
        session.terminal.types(passphrase);
        session.wait_for("The same again: ", level + 1);
        session.terminal.types(passphrase);
    }
    assert!(session.child.wait().unwrap().success());
    session.wait_for("note: this passphrase is short: 12 characters or more", 2);
}
