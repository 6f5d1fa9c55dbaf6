//! The page cache of the real system after writes that failed to reach the medium. Needs root and
//! loop devices.

use lacuna_medium::{Access, FileMedium, Medium};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const PIECE: u64 = 64 << 10;

/// A loop device on a sparse file of 4 MiB on a file system with room for 1 MiB.
struct Overcommitted {
    at: TempDir,
    device: PathBuf,
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Overcommitted {
    fn new() -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        let dir = at.path().to_str().unwrap();
        if !succeeds("mount", &["-t", "tmpfs", "-o", "size=1M", "lacuna-test", dir]) {
            return None;
        }
        let mut made = Overcommitted { at, device: PathBuf::new() };
        let file = made.at.path().join("backing");
        std::fs::File::create(&file).unwrap().set_len(4 << 20).unwrap();
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().ok()?;
        made.device = String::from_utf8(attached.stdout).ok()?.trim().into();
        attached.status.success().then_some(made)
    }

    fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for Overcommitted {
    fn drop(&mut self) {
        if !self.device.as_os_str().is_empty() {
            succeeds("losetup", &["--detach", self.device.to_str().unwrap()]);
        }
        succeeds("umount", &["--lazy", self.at.path().to_str().unwrap()]);
    }
}

/// The first byte of each piece.
fn bytes_of(read: impl Fn(&mut [u8], u64)) -> Vec<u8> {
    let byte = |at| {
        let mut byte = [0];
        read(&mut byte, at);
        byte[0]
    };
    (0..4 << 20).step_by(PIECE as usize).map(byte).collect()
}

fn first_bytes(medium: &FileMedium) -> Vec<u8> {
    bytes_of(|byte, at| medium.read_at(at, byte).unwrap())
}

#[test]
fn cached_pages_that_did_not_reach_the_device_are_dropped() {
    let Some(device) = Overcommitted::new() else {
        // Written directly, so that the test runner does not capture it.
        let _ =
            writeln!(std::io::stderr(), "skipped: a loop device on a file system of its own cannot be had");
        return;
    };
    // The system drops the cache of a device when its last user closes it; other users may have it
    // open.
    let _held = std::fs::File::open(device.path()).unwrap();
    for access in [Access::Write, Access::Read] {
        let medium = FileMedium::open(device.path(), Access::Write).unwrap();
        assert!(medium.is_device());
        for at in (0..4 << 20).step_by(PIECE as usize) {
            medium.write_at(at, &[7; PIECE as usize]).unwrap();
        }
        medium.sync().expect_err("4 MiB found room in 1 MiB");
        drop(medium);
        let medium = FileMedium::open(device.path(), access).unwrap();
        let cached = first_bytes(&medium);
        medium.forget_cached().unwrap();
        let kept = first_bytes(&medium);
        let backing = std::fs::File::open(device.at.path().join("backing")).unwrap();
        let truth = bytes_of(|byte, at| backing.read_exact_at(byte, at).unwrap());
        assert!(truth.contains(&0), "the medium took everything");
        assert_eq!(kept, truth);
        // Otherwise the system has changed, and this test proves nothing.
        assert!(cached.iter().all(|byte| *byte == 7), "the system forgets by itself");
    }
}

#[test]
fn an_unreported_write_failure_is_reported() {
    let Some(device) = Overcommitted::new() else { return };
    // Another program wrote, and did not wait for a sync.
    let file = std::fs::OpenOptions::new().write(true).open(device.path()).unwrap();
    file.write_all_at(&[7; 4 << 20], 0).unwrap();
    drop(file);
    let medium = FileMedium::open(device.path(), Access::Read).unwrap();
    if let Err(e) = medium.forget_cached() {
        assert!(e.to_string().contains("earlier writes did not reach"), "{e}");
    }
    // After the report, the content can be used.
    medium.forget_cached().unwrap();
    assert!(first_bytes(&medium).contains(&0));
}

/// A mounted file system, which is unmounted when a test ends.
struct Mounted(TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        succeeds("umount", &["--lazy", self.0.path().to_str().unwrap()]);
    }
}

#[test]
fn a_file_with_a_failed_sync_has_no_settled_stamp() {
    let Some(device) = Overcommitted::new() else { return };
    let host = Mounted(tempfile::tempdir().unwrap());
    let (from, at) = (device.path().to_str().unwrap(), host.0.path().to_str().unwrap());
    // Without a journal, the file system goes on after a failed write.
    let mkfs = ["-q", "-b", "4096", "-I", "256", "-O", "^has_journal", from];
    if !succeeds("mkfs.ext4", &mkfs) || !succeeds("mount", &[from, at]) {
        let _ = writeln!(std::io::stderr(), "skipped: an ext4 on a loop device cannot be had");
        return;
    }
    let medium = FileMedium::create(&host.0.path().join("m"), 3 << 20).unwrap();
    medium.write_at(0, &[7; 4096]).unwrap();
    let stamp = medium.settled_stamp().unwrap();
    assert!(stamp.is_some() && stamp == medium.settled_stamp().unwrap());
    medium.write_at(0, &vec![7; 5 << 19]).unwrap();
    medium.sync().expect_err("2.5 MiB found room in 1 MiB");
    // The system reports the failure once. Its cache still shows the data.
    assert!(!matches!(medium.settled_stamp(), Ok(Some(_))));
    medium.write_at(4096, &[8; 4096]).unwrap();
    assert!(!matches!(medium.settled_stamp(), Ok(Some(_))));
}
