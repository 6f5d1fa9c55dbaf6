//! The Debian package, in a clean root of Debian. The release for other distributions is tried by `make release-test`.

use crate::scene::skipped;
use std::path::Path;
use std::process::Command;

#[test]
fn the_package_is_installed_used_and_removed_and_leaves_nothing() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/deb-test.sh");
    let out = Command::new(script).arg(env!("CARGO_BIN_EXE_lacuna")).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    match out.status.code() {
        Some(0) => assert!(said.contains("nothing is left"), "{said}"),
        Some(77) => skipped(&said),
        _ => panic!("{said}"),
    }
}
