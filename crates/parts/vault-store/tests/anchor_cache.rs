//! The anchor after a failed sync: the page cache holds a state that the medium does not. Needs
//! root and loop devices.

use lacuna_vault_store::{Anchor, AnchorState, FileAnchor};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const UUID: [u8; 16] = [5; 16];

/// A file system on a loop device over a sparse file on a full file system: it has an inode for a
/// file, and no space for its data.
struct FullFileSystem {
    at: TempDir,
    device: PathBuf,
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl FullFileSystem {
    /// The file system, with an empty anchor at [`FullFileSystem::anchor`].
    fn new() -> Option<FullFileSystem> {
        let at = tempfile::tempdir().unwrap();
        if !succeeds("mount", &["-t", "tmpfs", "-o", "size=1m", "lacuna-test", at.path().to_str().unwrap()]) {
            return None;
        }
        let mut made = FullFileSystem { at, device: PathBuf::new() };
        let file = made.at.path().join("backing");
        std::fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().ok()?;
        made.device = String::from_utf8(attached.stdout).ok()?.trim().into();
        let (device, inner) = (made.device.to_str().unwrap(), made.mountpoint());
        std::fs::create_dir(&inner).unwrap();
        let is_mounted = attached.status.success()
            && succeeds("mkfs.ext2", &["-q", "-b", "4096", device])
            && succeeds("mount", &["-t", "ext2", device, inner.to_str().unwrap()]);
        if !is_mounted {
            return None;
        }
        // The anchor is a hole.
        let anchor = std::fs::File::create(made.anchor()).unwrap();
        anchor.set_len(1024).unwrap();
        anchor.sync_all().unwrap();
        succeeds("sync", &["--file-system", inner.to_str().unwrap()]);
        // Fill the outer file system.
        let _full = std::fs::write(made.at.path().join("rest"), vec![1; 1 << 20]);
        Some(made)
    }

    fn mountpoint(&self) -> PathBuf {
        self.at.path().join("inner")
    }

    fn anchor(&self) -> PathBuf {
        self.mountpoint().join("anchor")
    }
}

impl Drop for FullFileSystem {
    fn drop(&mut self) {
        succeeds("umount", &["--lazy", self.mountpoint().to_str().unwrap()]);
        if !self.device.as_os_str().is_empty() {
            succeeds("losetup", &["--detach", self.device.to_str().unwrap()]);
        }
        succeeds("umount", &["--lazy", self.at.path().to_str().unwrap()]);
    }
}

#[test]
fn an_anchored_state_that_is_only_cached_is_ignored() {
    let Some(full) = FullFileSystem::new() else {
        // Bypass the capture of the test runner.
        let _ =
            writeln!(std::io::stderr(), "skipped: a loop device on a file system of its own cannot be had");
        return;
    };
    let state = AnchorState { uuid: UUID, machine: [1; 16], number: 1, digest: [2; 32], time: 3 };
    let anchor = FileAnchor::open(&full.anchor(), UUID, false).unwrap();
    assert_eq!(anchor.load().unwrap(), None);
    anchor.advance(None, &state).expect_err("there was room");
    drop(anchor);
    let anchor = FileAnchor::open(&full.anchor(), UUID, false).unwrap();
    assert_eq!(anchor.load().unwrap(), None, "what memory holds was taken for durable");
}
