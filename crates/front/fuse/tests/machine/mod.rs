//! Requirements on the machine for tests that mount.

pub(crate) use lacuna_testkit::{skipped, wait_until};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

/// The reason why this machine cannot run a test that mounts, if there is one. Root in a container
/// may lack privileges, so mounting is tried.
pub(crate) fn lacking() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("/dev/fuse may not be used");
    }
    (!mounts()).then_some("mounting is not permitted")
}

/// Whether a file system without a device can be mounted.
fn mounts() -> bool {
    let at = tempfile::tempdir().unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "lacuna-test"]).arg(at.path()).stderr(Stdio::null());
    let mounted = mount.status().is_ok_and(|status| status.success());
    if mounted {
        run(Command::new("umount").arg(at.path()));
    }
    mounted
}

/// Runs a program, requires success and returns its standard output.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", words(&output.stdout), words(&output.stderr));
    words(&output.stdout)
}

/// The mount points below a directory.
pub(crate) fn mounts_below(dir: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let here = dir.to_str().unwrap();
    let points = table.lines().filter_map(|l| l.split(' ').nth(1)).filter(|m| m.starts_with(here));
    points.map(str::to_owned).collect()
}
