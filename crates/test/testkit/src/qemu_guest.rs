//! A small Linux guest in an emulated machine with UBI on its flash. `scripts/ubi-guest.sh` builds
//! and runs it.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A running guest. Dropping it ends the machine.
pub struct QemuGuest {
    machine: Child,
    console: BufReader<ChildStdout>,
    console_output: String,
}

/// The image of a guest, which can be booted any number of times.
pub struct GuestImage(PathBuf);

fn script() -> Command {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/ubi-guest.sh"))
}

impl GuestImage {
    /// The reason why this machine cannot run a guest; `None` if it can.
    pub fn unavailable_reason() -> Option<String> {
        let output = script().arg("missing").output().expect("scripts/ubi-guest.sh is there");
        let why = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (!why.is_empty()).then_some(why)
    }

    /// Builds an image in a directory. The guest runs the shell script `commands`, with these
    /// programs in `/guest`, and then powers off.
    pub fn new(dir: &Path, commands: &str, programs: &[&Path]) -> GuestImage {
        let image = dir.join("image");
        std::fs::write(dir.join("commands"), commands).expect("a file can be written");
        let mut pack = script();
        pack.arg("pack").arg(&image).arg(dir.join("commands")).args(programs);
        let packed = pack.stdout(Stdio::null()).status().expect("scripts/ubi-guest.sh is there");
        assert!(packed.success(), "the image of the guest could not be built");
        GuestImage(image)
    }

    /// Creates the file of a flash that outlives the guest, `len` bytes long (a power of two) and
    /// erased.
    pub fn new_flash(dir: &Path, len: usize) -> PathBuf {
        let path = dir.join("flash");
        std::fs::write(&path, vec![0xff; len]).expect("a file can be written");
        path
    }

    /// Boots the image with this flash.
    pub fn boot(&self, flash: &Path) -> QemuGuest {
        let mut boot = script();
        boot.arg("boot").arg(&self.0).arg(flash).stdin(Stdio::null());
        let mut machine = boot.stdout(Stdio::piped()).spawn().expect("scripts/ubi-guest.sh is there");
        let console = BufReader::new(machine.stdout.take().expect("it is piped"));
        QemuGuest { machine, console, console_output: String::new() }
    }
}

impl QemuGuest {
    fn read_line(&mut self) -> Option<String> {
        let mut bytes = vec![];
        self.console.read_until(b'\n', &mut bytes).expect("a console can be read");
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        (!bytes.is_empty()).then(|| {
            let _ = writeln!(self.console_output, "{line}");
            line
        })
    }

    /// Returns the next console line that contains `words`. Panics if the guest ends without one.
    #[track_caller]
    pub fn wait_for(&mut self, words: &str) -> String {
        loop {
            match self.read_line() {
                Some(line) if line.contains(words) => return line,
                Some(_) => {}
                None => panic!(
                    "the guest ended without printing {words:?}; its console:\n{}",
                    self.console_output
                ),
            }
        }
    }

    /// Cuts the power of the guest. Returns its console output.
    pub fn kill(mut self) -> String {
        self.machine.kill().expect("a child can be killed");
        // The console is closed after the last of its processes is gone.
        while self.read_line().is_some() {}
        std::mem::take(&mut self.console_output)
    }

    /// Waits for the end of the guest. Returns its console output.
    #[track_caller]
    pub fn finish(mut self) -> String {
        self.wait_for("guest: it ends here");
        while self.read_line().is_some() {}
        std::mem::take(&mut self.console_output)
    }
}

impl Drop for QemuGuest {
    fn drop(&mut self) {
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}
