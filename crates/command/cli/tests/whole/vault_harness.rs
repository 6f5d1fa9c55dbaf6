//! A vault in a scene, and machines that open it: each has a state folder of its own.

use crate::harness::{CHEAP, RunOutput, Scene, Signal, can_mount, send, wait_until};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A scene with a vault in the directory `v`, and the mount point `mnt`. An open vault is closed on
/// drop.
pub(crate) struct VaultScene(pub Scene);

impl VaultScene {
    /// Returns `None`, with a message, where mounting is impossible.
    pub(crate) fn new(options: &[&str]) -> Option<VaultScene> {
        let scene = Self::empty()?;
        scene.init("v", options).code(0);
        Some(scene)
    }

    /// A scene without the vault.
    pub(crate) fn empty() -> Option<VaultScene> {
        if !can_mount("/dev/fuse") {
            return None;
        }
        let scene = Scene::new();
        fs::create_dir(scene.path("mnt")).unwrap();
        Some(VaultScene(scene))
    }

    pub(crate) fn init(&self, dir: &str, options: &[&str]) -> RunOutput {
        let mut args = vec!["vault", "init", dir, "--key-file", "key"];
        args.extend(CHEAP);
        args.extend(options);
        self.0.lacuna(&args)
    }

    /// Runs `lacuna` with the key file.
    pub(crate) fn keyed(&self, args: &[&str]) -> RunOutput {
        self.0.lacuna(&[args, &["--key-file", "key"]].concat())
    }

    pub(crate) fn open(&self) -> RunOutput {
        self.keyed(&["open", "v", "mnt"])
    }

    pub(crate) fn close(&self) -> RunOutput {
        self.0.lacuna(&["close", "mnt"])
    }

    /// The same on another machine, with its own state folder.
    pub(crate) fn on_machine(&self, machine: &str, args: &[&str]) -> RunOutput {
        let mut command = self.0.command(&[args, &["--key-file", "key"]].concat());
        command.env("XDG_STATE_HOME", self.0.path(machine)).output().unwrap().into()
    }

    /// Opens the vault `dir` on a machine, runs `work`, and closes it.
    pub(crate) fn work_on(&self, machine: &str, dir: &str, work: impl FnOnce(&VaultScene)) {
        self.on_machine(machine, &["open", dir, "mnt"]).code(0);
        work(self);
        self.close().code(0);
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.0.path("mnt").join(name), content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> std::io::Result<Vec<u8>> {
        fs::read(self.0.path("mnt").join(name))
    }

    /// Starts a server in the foreground with its messages in the file `said`.
    pub(crate) fn open_in_foreground(&self, options: &[&str]) -> Foreground {
        let args = [&["open", "v", "mnt", "--foreground", "--key-file", "key"], options].concat();
        let said = fs::File::create(self.0.path("said")).unwrap();
        let mut child = self.0.command(&args).stdout(Stdio::piped()).stderr(said).spawn().unwrap();
        let mut opened = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut opened).unwrap();
        let said = fs::read_to_string(self.0.path("said")).unwrap();
        assert!(opened.starts_with("opened "), "it said {opened:?} and {said}");
        Foreground(child)
    }

    /// Kills the server, as a power cut would, and waits until it has released the vault.
    pub(crate) fn kill_server(&self) {
        let pid = self.0.lacuna(&["status", "mnt", "--json"]).json()["servers"][0]["pid"].clone();
        send(Signal::KILL, pid);
        // The kernel may still have the attributes of the root cached.
        wait_until("the end of the server", || fs::read_dir(self.0.path("mnt")).is_err());
        // The mount dies before the process has released its locks.
        wait_until("a status that tells of the dead server", || {
            let status = self.0.lacuna(&["status", "--json"]).code(0).json();
            let mut servers = status["servers"].as_array().unwrap().iter();
            servers.any(|server| server["vault"] == true && server["died"] == true)
        });
    }

    /// The messages of a server in the foreground until now.
    pub(crate) fn log_text(&self) -> String {
        fs::read_to_string(self.0.path("said")).unwrap()
    }

    /// The backing file of `name`, in the directory of the vault.
    pub(crate) fn backing(&self, name: &str) -> std::path::PathBuf {
        let stat = self.0.lacuna(&["vault", "stat", &format!("mnt/{name}"), "--json"]).code(0).json();
        self.0.path("v").join(stat["backing"].as_str().unwrap())
    }
}

impl Drop for VaultScene {
    fn drop(&mut self) {
        let _ = self.0.lacuna(&["-q", "close", "mnt"]);
        let _ = Command::new("umount").arg("-l").arg(self.0.path("mnt")).stderr(Stdio::null()).status();
    }
}

/// A server in the foreground.
pub(crate) struct Foreground(Child);

impl Foreground {
    /// Waits until it has ended; returns its exit code.
    pub(crate) fn wait(mut self) -> i32 {
        self.0.wait().unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
