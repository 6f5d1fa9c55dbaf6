//! Tests of file handles (`name_to_handle_at`, `open_by_handle_at`), which an export over NFS uses.

use crate::fixture::{VaultFixture, skip_if};
use crate::machine::{lacking, run, skipped};
use crate::programs::python_has;
use crate::serving::MountMode;
use lacuna_testkit::skip_unless;
use std::fs::File;
use std::process::Command;

#[test]
fn handles_open_files_that_the_kernel_forgot() {
    skip_if!(lacking());
    skip_unless!(python_has("ctypes"), "there is no python3 with ctypes");
    if File::options().write(true).open("/proc/sys/vm/drop_caches").is_err() {
        return skipped("the caches of the kernel cannot be dropped");
    }
    let place = VaultFixture::new();
    let server = place.mount(MountMode::Create);
    run(Command::new("python3").args(["-c", include_str!("handles.py")]).arg(place.mountpoint()));
    place.unmount_and_verify(server);
}
