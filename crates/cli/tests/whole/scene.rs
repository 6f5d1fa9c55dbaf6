//! A temporary directory with a disk in it, and the program.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// A cost that no real disk should have.
pub const CHEAP: [&str; 4] = ["--kdf-memory", "1M", "--kdf-passes", "1"];

pub struct Scene {
    dir: TempDir,
}

/// What a run of the program left.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    #[track_caller]
    pub fn code(self, expected: i32) -> Self {
        assert_eq!(self.code, expected, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in {}", self.stdout))
    }
}

impl Scene {
    /// A directory with the key file `key`.
    pub fn new() -> Scene {
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        fs::write(scene.path("key"), "correct horse\n").unwrap();
        scene
    }

    /// A directory with `disk.img` in it, made with `options`.
    pub fn with_disk(options: &[&str]) -> Scene {
        let scene = Scene::new();
        scene.create("disk.img", options).code(0);
        scene
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn create(&self, name: &str, options: &[&str]) -> Ran {
        let mut args = vec!["create", name, "--key-file", "key"];
        args.extend(CHEAP);
        args.extend(options);
        self.lacuna(&args)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lacuna"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.dir.path()).env_remove("LISTEN_FDS");
        command
    }

    pub fn lacuna(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }

    /// The program with `input` on its standard input.
    pub fn lacuna_with_input(&self, args: &[&str], input: &str) -> Ran {
        let mut command = self.command(args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A program that refuses early may not read it.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap().into()
    }

    pub fn serve(&self, options: &[&str]) -> Serving {
        self.serve_disk("disk.img", options)
    }

    pub fn serve_disk(&self, disk: &str, options: &[&str]) -> Serving {
        let mut args = vec!["serve", disk, "--socket", "nbd.sock", "--key-file", "key"];
        args.extend(options);
        let mut child = self.command(&args).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut uri = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        assert!(uri.starts_with("nbd+unix:///?socket="), "the server said {uri:?}");
        Serving { child, uri: uri.trim().to_owned(), socket: self.path("nbd.sock") }
    }

    /// Another program, which must succeed.
    #[track_caller]
    pub fn tool(&self, program: &str, args: &[&str]) -> Ran {
        let output = Command::new(program).args(args).current_dir(self.dir.path()).output();
        Ran::from(output.unwrap_or_else(|e| panic!("{program}: {e}"))).code(0)
    }
}

/// A server in the foreground.
pub struct Serving {
    child: Child,
    pub uri: String,
    pub socket: PathBuf,
}

impl Serving {
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Ends it as a service manager would; its exit code.
    pub fn stop(mut self) -> i32 {
        self.signal("-TERM");
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    /// Waits for its end; its exit code, or -1 if a signal killed it.
    pub fn wait(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    /// Ends it as a power cut would end the program.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a program can be started; says so if not.
pub fn have(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        println!("skipped: this machine has no {program}");
    }
    found.is_ok()
}

/// Whether file systems can be mounted here; says so if not.
pub fn can_mount(needs: &str) -> bool {
    let root = Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout == b"0\n");
    if !root {
        println!("skipped: mounting needs root");
        return false;
    }
    if !Path::new(needs).exists() {
        println!("skipped: this machine has no {needs}");
    }
    Path::new(needs).exists()
}

/// Bytes that look like nothing, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).take(len).collect()
}
