//! The root of a user namespace, as in a container without privileges but with the FUSE device:
//! there is no loop device and no program that mounts for other users.

use crate::harness::{CHEAP, skipped};
use crate::unprivileged::{FIRST, TwoUsers};

/// The commands of a user in such a container, which cannot regain privileges.
const DAY: &str = r#"
set -e
id -u
"$0" create disk.img --size 64M --key-file key $CHEAP
! "$0" open disk.img mnt --key-file key --mkfs ext4 --via loop 2>refused
"$0" open disk.img mnt --key-file key --mkfs ext4 >said
"$0" status --json >status
mkdir mnt/d
echo content >mnt/d/file
"$0" close mnt
test ! -e mnt/d
"$0" open disk.img mnt --key-file key >said
cat mnt/d/file
"$0" close disk.img
"$0" open disk.img mnt --raw --key-file key >said
test -f mnt/disk
"$0" close mnt
grep -c home-64001/mnt /proc/self/mountinfo >mounts || true
"#;

#[test]
fn a_container_without_privileges_mounts_a_disk() {
    let Some(town) = TwoUsers::new() else { return };
    let inside = ["setpriv", "--no-new-privs", "unshare", "--user", "--map-root-user", "--mount"];
    if town.run(FIRST, &[&inside[..], &["true"]].concat()).code != 0 {
        return skipped("users may make no namespaces here");
    }
    let cheap = format!("CHEAP={}", CHEAP.join(" "));
    let day = [&inside[..], &["env", &cheap, "sh", "-c", DAY, town.program()]];
    let ran = town.run(FIRST, &day.concat()).code(0);
    assert_eq!(ran.stdout.lines().next(), Some("0"));
    assert_eq!(ran.stdout.lines().last(), Some("content"));
    let file = |name: &str| std::fs::read_to_string(town.home(FIRST).join(name)).unwrap();
    assert!(file("refused").contains("user namespace"), "{}", file("refused"));
    assert!(file("status").contains("fuse2fs"), "{}", file("status"));
    assert_eq!(file("mounts"), "0\n");
}
