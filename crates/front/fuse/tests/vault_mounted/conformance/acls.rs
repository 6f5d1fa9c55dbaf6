//! Checks of access control lists: the access that they give, their agreement with the mode, and
//! their inheritance.

use super::check_dir::{
    ALICE, BOB, CheckDir, STAFF, as_user, attribute, by_handle, chmod, fails, mode, open,
    set_owner_and_group, sync_and_drop_cache,
};
use super::{ConformanceCheck, checks};
use crate::machine::run;
use rustix::fs::{Access, OFlags, XattrFlags, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    list_is_kept,
    named_users_and_groups_have_access,
    list_of_a_directory,
    mask_follows_the_mode,
    list_without_names_is_the_mode,
    removed_list_leaves_the_mode,
    new_nodes_inherit,
    default_list_without_names,
    lists_that_are_refused,
    list_is_for_the_owner,
    set_group_id_needs_the_group,
    deleted_directory_has_no_list,
];

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const ANY: XattrFlags = XattrFlags::empty();

/// The bytes of a list: the permissions of owner, owning group and all other users, those of users
/// and groups by number, and the mask.
fn list(bits: [u16; 3], users: &[(u32, u16)], groups: &[(u32, u16)], mask: Option<u16>) -> Vec<u8> {
    let none = u32::MAX;
    let mut entries = vec![(0x01, bits[0], none)];
    entries.extend(users.iter().map(|&(user, bits)| (0x02, bits, user)));
    entries.push((0x04, bits[1], none));
    entries.extend(groups.iter().map(|&(group, bits)| (0x08, bits, group)));
    entries.extend(mask.map(|mask| (0x10, mask, none)));
    entries.push((0x20, bits[2], none));
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, bits, number) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(bits));
        bytes.extend(u32::to_le_bytes(number));
    }
    bytes
}

/// The directory, if its file system has access control lists. A plain directory may have none.
fn with_lists(at: &CheckDir) -> Option<&CheckDir> {
    let probe = at.file("probe", b"");
    let done = setxattr(&probe, ACCESS, &list([6, 4, 4], &[(ALICE, 6)], &[], Some(6)), ANY);
    fs::remove_file(&probe).unwrap();
    if done == Err(Errno::OPNOTSUPP) && !at.vault {
        return None;
    }
    done.unwrap();
    Some(at)
}

#[track_caller]
fn set(path: &Path, name: &str, list: &[u8]) {
    setxattr(path, name, list, ANY).unwrap();
}

fn list_is_kept(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let file = at.file("file", b"");
    let list = list([6, 4, 0], &[(ALICE, 6), (BOB, 4)], &[(STAFF, 7)], Some(6));
    set(&file, ACCESS, &list);
    fs::hard_link(&file, at.path("link")).unwrap();
    fs::rename(&file, at.path("moved")).unwrap();
    for name in ["link", "moved"] {
        let path = at.path(name);
        sync_and_drop_cache(&fs::File::open(&path).unwrap());
        assert_eq!((attribute(&path, ACCESS).unwrap(), mode(&path)), (list.clone(), 0o660), "{name}");
    }
    let mut names = vec![0; 4096];
    let len = rustix::fs::listxattr(at.path("link"), &mut names[..]).unwrap();
    assert!(names[..len].split(|byte| *byte == 0).any(|name| name == ACCESS.as_bytes()));
}

fn named_users_and_groups_have_access(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let file = at.file("file", b"content");
    set(&file, ACCESS, &list([6, 0, 0], &[(ALICE, 4)], &[(STAFF, 6)], Some(6)));
    let memberships: [&[u32]; 2] = [&[], &[STAFF]];
    for groups in memberships {
        // The entry of a user counts before those of groups.
        as_user(ALICE, groups, || {
            open(&file, OFlags::RDONLY).unwrap();
            fails(open(&file, OFlags::RDWR), Errno::ACCESS);
        });
    }
    as_user(BOB, &[STAFF], || open(&file, OFlags::RDWR)).unwrap();
    as_user(BOB, &[], || fails(open(&file, OFlags::RDONLY), Errno::ACCESS));
    set(&file, ACCESS, &list([6, 0, 0], &[(ALICE, 6)], &[], Some(6)));
    as_user(ALICE, &[], || open(&file, OFlags::RDWR)).unwrap();
    as_user(BOB, &[STAFF], || fails(open(&file, OFlags::RDONLY), Errno::ACCESS));
}

fn list_of_a_directory(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let dir = at.dir("dir");
    at.file("dir/file", b"");
    set(&dir, ACCESS, &list([7, 0, 0], &[(ALICE, 7), (BOB, 1)], &[], Some(7)));
    as_user(ALICE, &[], || {
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::create_dir(dir.join("of alice")).unwrap();
    });
    as_user(BOB, &[], || {
        fails(fs::read_dir(&dir), Errno::ACCESS);
        fs::metadata(dir.join("file")).unwrap();
        fails(fs::create_dir(dir.join("of bob")), Errno::ACCESS);
    });
    as_user(STAFF, &[], || fails(fs::metadata(dir.join("file")), Errno::ACCESS));
}

fn mask_follows_the_mode(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let file = at.file("file", b"");
    let with_mask = |owner, mask| list([owner, 6, 0], &[(ALICE, 6)], &[(STAFF, 6)], Some(mask));
    set(&file, ACCESS, &with_mask(6, 6));
    chmod(&file, 0o740);
    assert_eq!((attribute(&file, ACCESS).unwrap(), mode(&file)), (with_mask(7, 4), 0o740));
    let users: [(u32, &[u32]); 2] = [(ALICE, &[]), (BOB, &[STAFF])];
    for (user, groups) in users {
        as_user(user, groups, || {
            open(&file, OFlags::RDONLY).unwrap();
            fails(open(&file, OFlags::RDWR), Errno::ACCESS);
        });
    }
    chmod(&file, 0o660);
    assert_eq!(attribute(&file, ACCESS).unwrap(), with_mask(6, 6));
    as_user(ALICE, &[], || open(&file, OFlags::RDWR)).unwrap();
}

fn list_without_names_is_the_mode(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let file = at.file("file", b"");
    set(&file, ACCESS, &list([6, 4, 0], &[(ALICE, 6)], &[], Some(6)));
    set(&file, ACCESS, &list([7, 4, 1], &[], &[], None));
    assert_eq!(mode(&file), 0o741);
    fails(attribute(&file, ACCESS), Errno::NODATA);
    as_user(ALICE, &[], || fails(open(&file, OFlags::RDONLY), Errno::ACCESS));
}

fn removed_list_leaves_the_mode(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let file = at.file("file", b"");
    set(&file, ACCESS, &list([6, 0, 0], &[(ALICE, 6)], &[], Some(6)));
    removexattr(&file, ACCESS).unwrap();
    assert_eq!(mode(&file), 0o660);
    fails(attribute(&file, ACCESS), Errno::NODATA);
    as_user(ALICE, &[], || fails(open(&file, OFlags::RDONLY), Errno::ACCESS));
    // There is none: that is no error.
    removexattr(&file, ACCESS).unwrap();
}

fn new_nodes_inherit(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let dir = at.dir("dir");
    let inherited = |owner, mask| list([owner, 5, 0], &[(ALICE, 7)], &[], Some(mask));
    set(&dir, DEFAULT, &inherited(7, 7));
    assert_eq!(mode(&dir), 0o755);
    let make = "umask 077; : > file; mkdir sub; mkfifo fifo; ln -s none link; : > sub/deep";
    run(Command::new("sh").args(["-ec", make]).current_dir(&dir));
    for name in ["file", "fifo", "sub/deep"] {
        let path = dir.join(name);
        assert_eq!((attribute(&path, ACCESS).unwrap(), mode(&path)), (inherited(6, 6), 0o660), "{name}");
        fails(attribute(&path, DEFAULT), Errno::NODATA);
    }
    let sub = dir.join("sub");
    assert_eq!((attribute(&sub, ACCESS).unwrap(), mode(&sub)), (inherited(7, 7), 0o770));
    assert_eq!(attribute(&sub, DEFAULT).unwrap(), inherited(7, 7));
    assert_eq!(mode(dir.join("link")), 0o777);
    as_user(ALICE, &[], || open(&dir.join("sub/deep"), OFlags::RDWR)).unwrap();
    // Without a default list the umask counts again.
    removexattr(&dir, DEFAULT).unwrap();
    run(Command::new("sh").args(["-ec", "umask 027; : > later"]).current_dir(&dir));
    assert_eq!(mode(dir.join("later")), 0o640);
    fails(attribute(&dir.join("later"), ACCESS), Errno::NODATA);
}

fn default_list_without_names(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let (dir, default) = (at.dir("dir"), list([7, 5, 1], &[], &[], None));
    set(&dir, DEFAULT, &default);
    run(Command::new("sh").args(["-ec", "umask 077; : > file; mkdir sub"]).current_dir(&dir));
    assert_eq!((mode(dir.join("file")), mode(dir.join("sub"))), (0o640, 0o751));
    fails(attribute(&dir.join("file"), ACCESS), Errno::NODATA);
    assert_eq!(attribute(&dir.join("sub"), DEFAULT).unwrap(), default);
}

fn lists_that_are_refused(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let file = at.file("file", b"");
    symlink("file", at.path("link")).unwrap();
    let good = list([6, 4, 4], &[(ALICE, 6)], &[], Some(6));
    let without_mask = list([6, 4, 4], &[(ALICE, 6)], &[], None);
    fails(setxattr(&file, ACCESS, &without_mask, ANY), Errno::INVAL);
    fails(setxattr(&file, ACCESS, &good[..good.len() - 8], ANY), Errno::INVAL);
    fails(setxattr(&file, ACCESS, &good[..7], ANY), Errno::INVAL);
    fails(setxattr(&file, DEFAULT, &good, ANY), Errno::ACCESS);
    fails(lsetxattr(at.path("link"), ACCESS, &good, ANY), Errno::OPNOTSUPP);
    assert_eq!(mode(&file), 0o644);
    fails(attribute(&file, ACCESS), Errno::NODATA);
}

fn list_is_for_the_owner(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, ALICE);
    chmod(&file, 0o666);
    let list = list([6, 6, 0], &[(BOB, 4)], &[], Some(6));
    as_user(BOB, &[], || {
        fails(setxattr(&file, ACCESS, &list, ANY), Errno::PERM);
        fails(removexattr(&file, ACCESS), Errno::PERM);
    });
    as_user(ALICE, &[], || set(&file, ACCESS, &list));
    as_user(BOB, &[], || {
        assert_eq!(attribute(&file, ACCESS).unwrap(), list);
        fails(open(&file, OFlags::RDWR), Errno::ACCESS);
    });
}

fn set_group_id_needs_the_group(at: &CheckDir) {
    let Some(at) = with_lists(at) else { return };
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, STAFF);
    let list = list([7, 5, 5], &[(BOB, 5)], &[], Some(5));
    let users: [(u32, &[u32], u32); 3] =
        [(ALICE, &[], 0o755), (ALICE, &[1, STAFF], 0o2755), (0, &[], 0o2755)];
    for (user, groups, expected) in users {
        chmod(&file, 0o2755);
        as_user(user, groups, || set(&file, ACCESS, &list));
        assert_eq!(mode(&file), expected, "user {user}, groups {groups:?}");
    }
}

fn deleted_directory_has_no_list(at: &CheckDir) {
    let dir = at.dir("dir");
    chmod(&dir, 0o754);
    let handle = at.open("dir", OFlags::PATH | OFlags::DIRECTORY).unwrap();
    fs::remove_dir(&dir).unwrap();
    as_user(ALICE, &[], || {
        rustix::fs::access(by_handle(&handle), Access::READ_OK).unwrap();
        fails(rustix::fs::access(by_handle(&handle), Access::WRITE_OK), Errno::ACCESS);
    });
}
