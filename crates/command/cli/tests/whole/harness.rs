//! A temporary directory with a disk in it, and the program.

use crate::nbd_client::Client;
pub(crate) use lacuna_testkit::{is_program_available, noise, skip_unless, skipped, wait_until};
pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, Termios, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// Makes a test of each line: its name, and the call that it consists of.
macro_rules! cases {
    ($($name:ident => $call:expr;)+) => {
        $(
            #[test]
            fn $name() {
                $call;
            }
        )+
    };
}

pub(crate) use cases;

/// A key derivation cost for tests only: no real disk should have it.
pub(crate) const CHEAP: [&str; 4] = ["--kdf-memory", "1M", "--kdf-passes", "1"];

pub(crate) struct Scene {
    dir: TempDir,
}

/// The result of a run of the program.
pub(crate) struct RunOutput {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for RunOutput {
    fn from(output: Output) -> Self {
        RunOutput {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl RunOutput {
    #[track_caller]
    pub(crate) fn code(self, expected: i32) -> Self {
        assert_eq!(self.code, expected, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in {}", self.stdout))
    }
}

impl Scene {
    /// A directory with the key file `key`.
    pub(crate) fn new() -> Scene {
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        fs::write(scene.path("key"), "correct horse\n").unwrap();
        scene
    }

    /// A directory with `disk.img` in it, made with `options`.
    pub(crate) fn with_disk(options: &[&str]) -> Scene {
        let scene = Scene::new();
        scene.create("disk.img", options).code(0);
        scene
    }

    /// A directory with a disk of two levels in `disk.img`, made with `options`. The key file `key`
    /// opens level 0, and `deep` both.
    pub(crate) fn with_levels(format: &str, options: &[&str]) -> Scene {
        let scene = Scene::new();
        fs::write(scene.path("deep"), "battery staple").unwrap();
        let shape = ["--format", format, "--levels", "2", "--key-file", "deep"];
        scene.create("disk.img", &[&shape[..], options].concat()).code(0);
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn create(&self, name: &str, options: &[&str]) -> RunOutput {
        let mut args = vec!["create", name, "--key-file", "key"];
        args.extend(CHEAP);
        args.extend(options);
        self.lacuna(&args)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lacuna"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.dir.path()).env_remove("LISTEN_FDS");
        command.env("XDG_STATE_HOME", self.dir.path().join("state"));
        command
    }

    pub(crate) fn lacuna(&self, args: &[&str]) -> RunOutput {
        self.command(args).output().unwrap().into()
    }

    /// Runs the program with its standard error on a terminal, as for a user.
    pub(crate) fn lacuna_on_terminal(&self, args: &[&str]) -> RunOutput {
        let terminal = Terminal::new();
        let mut command = self.command(args);
        let output = command.stdout(Stdio::piped()).stderr(terminal.stdio()).spawn().unwrap();
        let mut ran = RunOutput::from(output.wait_with_output().unwrap());
        // The command holds the terminal open.
        drop(command);
        ran.stderr = terminal.output();
        ran
    }

    /// Runs the program with `input` on its standard input.
    pub(crate) fn lacuna_with_input(&self, args: &[&str], input: &str) -> RunOutput {
        let mut command = self.command(args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A program that refuses early may not read it.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap().into()
    }

    pub(crate) fn serve(&self, options: &[&str]) -> Serving {
        self.serve_disk("disk.img", options)
    }

    pub(crate) fn serve_disk(&self, disk: &str, options: &[&str]) -> Serving {
        let mut args = vec!["serve", disk, "--socket", "nbd.sock", "--key-file", "key"];
        args.extend(options);
        self.serve_command(&mut self.command(&args))
    }

    /// Serves `disk.img` with another key file.
    pub(crate) fn serve_with_key(&self, key: &str) -> Serving {
        let args = ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", key];
        self.serve_command(&mut self.command(&args))
    }

    /// Starts `command`, which serves on `nbd.sock`.
    pub(crate) fn serve_command(&self, command: &mut Command) -> Serving {
        self.serve_command_logging_to(command, Stdio::inherit())
    }

    /// The same, with its messages to users in `said`.
    pub(crate) fn serve_command_logging_to(&self, command: &mut Command, said: Stdio) -> Serving {
        // The process that is started is the server, so that signals reach it alone.
        self.serve_process(command.arg("--no-keeper"), said)
    }

    /// Starts `command`, which serves on `nbd.sock`. The result holds the keeper.
    pub(crate) fn serve_kept(&self, command: &mut Command) -> Serving {
        self.serve_process(command, Stdio::inherit())
    }

    fn serve_process(&self, command: &mut Command, said: Stdio) -> Serving {
        command.current_dir(self.dir.path()).env("XDG_RUNTIME_DIR", self.dir.path());
        let mut child = command.stdout(Stdio::piped()).stderr(said).spawn().unwrap();
        let mut uri = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        assert!(uri.starts_with("nbd+unix:///?socket="), "the server said {uri:?}");
        Serving { child, uri: uri.trim().to_owned(), socket: self.path("nbd.sock") }
    }

    /// Waits until no server holds `disk`.
    pub(crate) fn wait_until_free(&self, disk: &str) {
        wait_until("the end of the server", || {
            self.lacuna(&["info", disk, "--json"]).json()["medium"]["in_use"] == false
        });
    }

    /// The control socket of the server with this file of the directory open: `front` is `fuse` or
    /// `nbd`.
    pub(crate) fn control(&self, name: &str, front: &str) -> PathBuf {
        self.controls(name, front).into_iter().next().unwrap()
    }

    /// The control sockets of all servers with this file open: of a disk with levels, one for each
    /// mount.
    pub(crate) fn controls(&self, name: &str, front: &str) -> Vec<PathBuf> {
        let root = rustix::process::geteuid().is_root();
        let base = if root { PathBuf::from("/run/lacuna") } else { self.path("lacuna") };
        let location = self.path(name).canonicalize().unwrap();
        let instances = fs::read_dir(base).unwrap().map(|entry| entry.unwrap().path());
        let is_it = |dir: &PathBuf| {
            // Servers of other tests start and end.
            let Ok(record) = fs::read_to_string(dir.join("record.json")) else { return false };
            let record: serde_json::Value = serde_json::from_str(&record).unwrap();
            record["location"] == location.to_str().unwrap() && record["front"][front].is_object()
        };
        instances.filter(is_it).map(|dir| dir.join("control")).collect()
    }

    /// Runs another program and requires success.
    #[track_caller]
    pub(crate) fn tool(&self, program: &str, args: &[&str]) -> RunOutput {
        let output = Command::new(program).args(args).current_dir(self.dir.path()).output();
        RunOutput::from(output.unwrap_or_else(|e| panic!("{program}: {e}"))).code(0)
    }
}

/// A loop device.
pub(crate) struct Device(pub String);

impl Device {
    /// Makes one over a file in the scene, with preceding options of `losetup`.
    pub(crate) fn over(scene: &Scene, options: &[&str]) -> Device {
        let shown = scene.tool("losetup", &[&["-f", "--show"], options].concat()).stdout;
        Device(shown.trim().to_owned())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A terminal, with the output written to it.
pub(crate) struct Terminal {
    screen: fs::File,
    keyboard: fs::File,
}

impl Terminal {
    pub(crate) fn new() -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let keyboard = openpt(flags).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let screen = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(name.to_str().unwrap())
            .unwrap();
        Terminal { screen, keyboard: keyboard.into() }
    }

    /// Sets its number of columns and rows.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.screen, size).unwrap();
    }

    /// For a program that writes to it: at most a screen or two, which the terminal buffers until
    /// it is read.
    pub(crate) fn stdio(&self) -> Stdio {
        self.screen.try_clone().unwrap().into()
    }

    /// Collects the output of programs after this call, as they write it.
    pub(crate) fn collect_output(&self) -> Arc<Mutex<String>> {
        let seen = Arc::new(Mutex::new(String::new()));
        let (mut keyboard, into) = (self.keyboard.try_clone().unwrap(), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = keyboard.read(&mut bytes) {
                into.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..len]));
            }
        });
        seen
    }

    /// Types a line, before or while a program asks.
    pub(crate) fn types(&mut self, line: &str) {
        self.press(format!("{line}\n").as_bytes());
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Its settings.
    pub(crate) fn modes(&self) -> Termios {
        tcgetattr(&self.screen).unwrap()
    }

    /// Changes its settings, as a shell does.
    pub(crate) fn set_modes(&self, modes: &Termios) {
        tcsetattr(&self.screen, OptionalActions::Now, modes).unwrap();
    }

    /// The output of all programs; they must have ended.
    pub(crate) fn output(mut self) -> String {
        drop(self.screen);
        let mut said = Vec::new();
        // The read ends with an error when no process has the other side open.
        let _ = self.keyboard.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }
}

/// A server in the foreground.
pub(crate) struct Serving {
    child: Child,
    pub uri: String,
    pub socket: PathBuf,
}

impl Serving {
    /// The number of its process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(signal, self.child.id());
    }

    /// Ends it as a service manager would; returns its exit code.
    pub(crate) fn stop(mut self) -> i32 {
        self.signal(Signal::TERM);
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    /// Lets a client use it; then the client leaves, and the server has to stop without a failure.
    #[track_caller]
    pub(crate) fn used_by<T>(self, work: impl FnOnce(&mut Client) -> T) -> T {
        let mut client = Client::connect(&self.socket).unwrap();
        let result = work(&mut client);
        drop(client);
        assert_eq!(self.stop(), 0);
        result
    }

    /// Waits for its end; returns its exit code, or -1 if a signal killed it.
    pub(crate) fn wait(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    /// Kills it, as a power cut would, without waiting for its end.
    pub(crate) fn kill_now(&self) {
        self.signal(Signal::KILL);
    }

    /// Kills it, as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let keeper = self.child.id();
        let servers = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The server of a killed keeper goes on, and would hold the output of the tests open.
        for server in servers.unwrap_or_default().split_whitespace() {
            let _ = kill_process(server.parse().ok().and_then(Pid::from_raw).unwrap(), Signal::KILL);
        }
    }
}

/// Sends a signal to the process with this number. Returns after STOP when all its threads have
/// stopped: until one thread has taken the signal, the others go on and answer requests.
#[track_caller]
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn send(signal: Signal, process: impl ToString) {
    let pid = process.to_string().trim().parse().ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
    if signal == Signal::STOP {
        wait_until("the stop of all threads", || has_no_running_thread(pid));
    }
}

/// Whether no thread of the process runs or sleeps: all have stopped, ended, or wait in the kernel
/// for a device.
fn has_no_running_thread(process: Pid) -> bool {
    // A thread that ends meanwhile takes its files along.
    let is_gone = |error: &io::Error| {
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
    };
    let state_of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("stat"));
    let is_running = |thread: io::Result<fs::DirEntry>| match thread.and_then(state_of) {
        Err(e) if is_gone(&e) => false,
        // The state follows the name of the program, which is in parentheses.
        about => about.unwrap().rsplit_once(')').unwrap().1.trim_start().starts_with(['R', 'S']),
    };
    match fs::read_dir(format!("/proc/{process}/task")) {
        Err(e) if is_gone(&e) => true,
        threads => !threads.unwrap().any(is_running),
    }
}

/// Mount points that are closed when a test ends, also when it fails.
pub(crate) struct CloseOnDrop<'a>(pub &'a Scene, pub &'a [&'a str]);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        for at in self.1 {
            let _ = self.0.lacuna(&["-q", "close", "--deleted", at]);
        }
    }
}

/// Whether file systems can be mounted here (this is tried) and `needs` can be used; prints a
/// message if not.
pub(crate) fn can_mount(needs: &str) -> bool {
    let at = tempfile::tempdir().unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "lacuna-test"]).arg(at.path()).stderr(Stdio::null());
    if !mount.status().is_ok_and(|status| status.success()) {
        skipped("mounting is not permitted");
        return false;
    }
    assert!(Command::new("umount").arg(at.path()).status().unwrap().success());
    let usable = fs::OpenOptions::new().read(true).write(needs.starts_with("/dev/")).open(needs);
    if let Err(e) = &usable {
        skipped(&format!("{needs} cannot be used: {e}"));
    }
    usable.is_ok()
}

/// Whether an ext4 on a disk can be mounted here; prints a message if not.
pub(crate) fn can_mount_ext4() -> bool {
    can_mount("/dev/loop-control") && can_mount("/dev/fuse") && is_program_available("mkfs.ext4")
}
