//! A user at a terminal: `lacuna` runs on a terminal made by `script`, and prompts are answered as
//! they appear.

use crate::harness::Scene;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// A run of `lacuna` on a terminal.
pub(crate) struct PtySession {
    child: Child,
    /// The output that was not waited for yet.
    seen: String,
}

impl PtySession {
    /// Runs `lacuna` with these words.
    pub(crate) fn new(scene: &Scene, words: &str) -> PtySession {
        let line = format!("{} {words}", env!("CARGO_BIN_EXE_lacuna"));
        let child = Command::new("script")
            .args(["-q", "-e", "-c", &line, "/dev/null"])
            .current_dir(scene.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script");
        PtySession { child, seen: String::new() }
    }

    /// Waits until `prompt` is printed, then types `line`.
    pub(crate) fn answer(&mut self, prompt: &str, line: &str) {
        let mut buf = [0; 4096];
        while !self.seen.contains(prompt) {
            let count = self.child.stdout.as_mut().unwrap().read(&mut buf).unwrap();
            assert!(count > 0, "no {prompt:?} in {:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buf[..count]));
        }
        let at = self.seen.find(prompt).unwrap() + prompt.len();
        self.seen.drain(..at);
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Waits for the end and returns the exit code.
    pub(crate) fn end(mut self) -> i32 {
        let mut rest = Vec::new();
        self.child.stdout.as_mut().unwrap().read_to_end(&mut rest).unwrap();
        self.child.wait().unwrap().code().unwrap()
    }
}
