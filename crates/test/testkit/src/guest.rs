//! A small Linux in an emulated machine, whose flash is under UBI: see `scripts/ubi-guest.sh`,
//! which makes and runs it.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A guest that runs. It ends with this.
pub struct Guest {
    machine: Child,
    console: BufReader<ChildStdout>,
    said: String,
}

/// What a guest has, ready to be run any number of times.
pub struct GuestImage(PathBuf);

fn script() -> Command {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/ubi-guest.sh"))
}

impl GuestImage {
    /// Why no guest can be run on this machine, if so.
    pub fn missing() -> Option<String> {
        let output = script().arg("missing").output().expect("scripts/ubi-guest.sh is there");
        let why = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (!why.is_empty()).then_some(why)
    }

    /// Makes one in a directory. It runs what `commands` says, for the shell, with these programs
    /// in `/guest`, and ends then.
    pub fn new(dir: &Path, commands: &str, programs: &[&Path]) -> GuestImage {
        let image = dir.join("image");
        std::fs::write(dir.join("commands"), commands).expect("a file can be written");
        let mut pack = script();
        pack.arg("pack").arg(&image).arg(dir.join("commands")).args(programs);
        let packed = pack.stdout(Stdio::null()).status().expect("scripts/ubi-guest.sh is there");
        assert!(packed.success(), "no guest could be made");
        GuestImage(image)
    }

    /// Makes memory for a guest that outlives it, of so many bytes (a power of two), as erased
    /// flash is.
    pub fn new_flash(dir: &Path, len: usize) -> PathBuf {
        let path = dir.join("flash");
        std::fs::write(&path, vec![0xff; len]).expect("a file can be written");
        path
    }

    /// Runs it, with such memory.
    pub fn boot(&self, flash: &Path) -> Guest {
        let mut boot = script();
        boot.arg("boot").arg(&self.0).arg(flash).stdin(Stdio::null());
        let mut machine = boot.stdout(Stdio::piped()).spawn().expect("scripts/ubi-guest.sh is there");
        let console = BufReader::new(machine.stdout.take().expect("it is piped"));
        Guest { machine, console, said: String::new() }
    }
}

impl Guest {
    fn line(&mut self) -> Option<String> {
        let mut bytes = vec![];
        self.console.read_until(b'\n', &mut bytes).expect("a console can be read");
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        (!bytes.is_empty()).then(|| {
            let _ = writeln!(self.said, "{line}");
            line
        })
    }

    /// Returns as soon as the guest says something with `words`, which it must.
    #[track_caller]
    pub fn wait_for(&mut self, words: &str) -> String {
        loop {
            match self.line() {
                Some(line) if line.contains(words) => return line,
                Some(_) => {}
                None => panic!("the guest never said {words:?}; it said:\n{}", self.said),
            }
        }
    }

    /// Cuts its power; what it said before.
    pub fn kill(mut self) -> String {
        self.machine.kill().expect("a child can be killed");
        // The console is closed when the last of its processes is gone.
        while self.line().is_some() {}
        std::mem::take(&mut self.said)
    }

    /// Waits for its end; what it said.
    #[track_caller]
    pub fn finish(mut self) -> String {
        self.wait_for("guest: it ends here");
        while self.line().is_some() {}
        std::mem::take(&mut self.said)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}
