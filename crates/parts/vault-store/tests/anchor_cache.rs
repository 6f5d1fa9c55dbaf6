//! The anchor after a failed sync: the page cache holds a state that the medium does not. Needs
//! root and loop devices.

use lacuna_vault_store::{Anchor, AnchorState, FileAnchor};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const UUID: [u8; 16] = [5; 16];

/// A loop device over a sparse file on a full file system.
struct FullLoopDevice {
    at: TempDir,
    device: PathBuf,
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl FullLoopDevice {
    fn new() -> Option<FullLoopDevice> {
        let at = tempfile::tempdir().unwrap();
        if !succeeds("mount", &["-t", "tmpfs", "-o", "size=64k", "lacuna-test", at.path().to_str().unwrap()])
        {
            return None;
        }
        let mut made = FullLoopDevice { at, device: PathBuf::new() };
        let file = made.at.path().join("backing");
        std::fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().ok()?;
        made.device = String::from_utf8(attached.stdout).ok()?.trim().into();
        // Fill the file system.
        let _full = std::fs::write(made.at.path().join("rest"), [1; 64 << 10]);
        attached.status.success().then_some(made)
    }
}

impl Drop for FullLoopDevice {
    fn drop(&mut self) {
        if !self.device.as_os_str().is_empty() {
            succeeds("losetup", &["--detach", self.device.to_str().unwrap()]);
        }
        succeeds("umount", &["--lazy", self.at.path().to_str().unwrap()]);
    }
}

#[test]
fn an_anchored_state_that_is_only_cached_is_ignored() {
    let Some(full) = FullLoopDevice::new() else {
        // Bypass the capture of the test runner.
        let _ =
            writeln!(std::io::stderr(), "skipped: a loop device on a file system of its own cannot be had");
        return;
    };
    // Keep the device open: its cache is dropped when the last user closes it.
    let _held = std::fs::File::open(&full.device).unwrap();
    let state = AnchorState { uuid: UUID, machine: [1; 16], number: 1, digest: [2; 32], time: 3 };
    let anchor = FileAnchor::open(&full.device, UUID, false).unwrap();
    assert_eq!(anchor.load().unwrap(), None);
    anchor.advance(None, &state).expect_err("there was room");
    drop(anchor);
    let anchor = FileAnchor::open(&full.device, UUID, false).unwrap();
    assert_eq!(anchor.load().unwrap(), None, "what memory holds was taken for durable");
}
