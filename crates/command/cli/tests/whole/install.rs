//! `scripts/install.sh`, which `make install` and `make uninstall` run.

use crate::harness::{RunOutput, Scene, is_program_available};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/install.sh")
}

#[test]
fn an_installation_is_removed_whole_and_nothing_else() {
    let scene = Scene::new();
    let prefix = scene.path("prefix");
    let run = |word: &str| {
        let mut sh = Command::new("sh");
        RunOutput::from(sh.arg(script()).arg(word).arg(&prefix).env("LICENCES", "no").output().unwrap())
    };
    let files = || scene.tool("find", &["prefix", "!", "-type", "d"]).stdout;
    run(env!("CARGO_BIN_EXE_lacuna")).code(0);
    let installed = files();
    for part in [
        "bin/lacuna",
        "sbin/mount.lacuna",
        "lib/systemd/system/lacuna@.service",
        "share/man/man1/lacuna-open.1.gz",
        "share/doc/lacuna/SECURITY.md",
    ] {
        assert!(installed.lines().any(|file| file == format!("prefix/{part}")), "{part} in {installed}");
    }
    fs::write(scene.path("prefix/share/man/man1/other.1"), "").unwrap();
    run("--uninstall").code(0);
    assert_eq!(files(), "prefix/share/man/man1/other.1\n");
    let again = run("--uninstall").code(1).stderr;
    assert!(again.contains("nothing was removed"), "{again}");
}

#[test]
fn a_place_that_cannot_be_written_is_refused_at_first() {
    let is_root = rustix::process::geteuid().is_root();
    if is_root && !is_program_available("setpriv") {
        return;
    }
    let scene = Scene::new();
    // Another user may lack the permission to read the source.
    fs::copy(script(), scene.path("install.sh")).unwrap();
    for (folder, mode) in [("closed", 0o555), ("open", 0o777), ("", 0o755)] {
        fs::create_dir_all(scene.path(folder)).unwrap();
        fs::set_permissions(scene.path(folder), Permissions::from_mode(mode)).unwrap();
    }
    let check = |prefix: &str| {
        // The permissions do not apply to root.
        let mut sh = Command::new(if is_root { "setpriv" } else { "sh" });
        if is_root {
            sh.args(["--reuid", "65534", "--clear-groups", "sh"]);
        }
        sh.args(["install.sh", "--check", prefix]).current_dir(scene.path(""));
        RunOutput::from(sh.output().unwrap())
    };
    let refused = check("closed/new").code(1).stderr;
    assert!(
        refused.contains("cannot write to closed; run `sudo make install PREFIX=closed/new`"),
        "{refused}"
    );
    assert_eq!(check("open/new").code(0).stderr, "");
    assert!(!scene.path("open/new").exists());
}
