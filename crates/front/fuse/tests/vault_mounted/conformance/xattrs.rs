//! Checks of extended attributes: values, flags, limits, name spaces and permissions.

use super::check_dir::{
    ALICE, CheckDir, as_user, attribute, chmod, fails, fails_among, pattern, set_owner_and_group, stat,
    sync_and_drop_cache,
};
use super::{ConformanceCheck, checks};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    value_is_kept,
    values_of_any_bytes,
    empty_value,
    missing_attribute_is_enodata,
    create_flag_refuses_an_old_one,
    replace_flag_refuses_a_new_one,
    replaced_by_longer_and_shorter,
    names_are_listed,
    removed_attribute_is_gone,
    small_buffers_are_erange,
    directories_have_attributes,
    symlinks_take_no_user_attributes,
    symlinks_have_trusted_attributes,
    longest_name,
    longer_name_is_erange,
    longest_value,
    longer_value_is_e2big,
    many_attributes,
    links_share_attributes,
    renamed_file_keeps_attributes,
    new_file_has_none,
    attributes_of_a_handle,
    attribute_name_spaces,
    other_names_of_the_system_are_refused,
    setting_needs_permission,
    reading_needs_permission,
    trusted_is_for_root,
    scheme_attribute,
    scheme_attribute_is_inherited,
    scheme_attribute_refuses_nonsense,
    attributes_by_threads,
];

const ANY: XattrFlags = XattrFlags::empty();

/// The names, except those set by a security module of the machine.
fn names(path: &Path) -> BTreeSet<String> {
    let mut list = vec![0; 70_000];
    let len = listxattr(path, &mut list[..]).unwrap();
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| String::from_utf8(name.to_vec()).unwrap())
        .filter(|n| !n.starts_with("security."))
        .collect()
}

fn set_of(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn value_is_kept(at: &CheckDir) {
    let file = at.file("file", b"");
    setxattr(&file, "user.a", b"value", ANY).unwrap();
    assert_eq!(attribute(&file, "user.a").unwrap(), b"value");
    sync_and_drop_cache(&fs::File::open(&file).unwrap());
    assert_eq!(attribute(&file, "user.a").unwrap(), b"value");
}

fn values_of_any_bytes(at: &CheckDir) {
    let file = at.file("file", b"");
    let all: Vec<u8> = (0..=255).collect();
    setxattr(&file, "user.a", &all, ANY).unwrap();
    assert_eq!(attribute(&file, "user.a").unwrap(), all);
}

fn empty_value(at: &CheckDir) {
    let file = at.file("file", b"");
    setxattr(&file, "user.empty", b"", ANY).unwrap();
    assert_eq!((attribute(&file, "user.empty").unwrap(), names(&file)), (vec![], set_of(&["user.empty"])));
}

fn missing_attribute_is_enodata(at: &CheckDir) {
    let file = at.file("file", b"");
    fails(attribute(&file, "user.none"), Errno::NODATA);
    fails(removexattr(&file, "user.none"), Errno::NODATA);
    setxattr(&file, "user.a", b"x", ANY).unwrap();
    fails(attribute(&file, "user.b"), Errno::NODATA);
    fails(attribute(&file, "user."), Errno::INVAL);
    fails(attribute(&at.path("none"), "user.a"), Errno::NOENT);
}

fn create_flag_refuses_an_old_one(at: &CheckDir) {
    let file = at.file("file", b"");
    setxattr(&file, "user.a", b"one", XattrFlags::CREATE).unwrap();
    fails(setxattr(&file, "user.a", b"two", XattrFlags::CREATE), Errno::EXIST);
    assert_eq!(attribute(&file, "user.a").unwrap(), b"one");
}

fn replace_flag_refuses_a_new_one(at: &CheckDir) {
    let file = at.file("file", b"");
    fails(setxattr(&file, "user.a", b"one", XattrFlags::REPLACE), Errno::NODATA);
    setxattr(&file, "user.a", b"one", ANY).unwrap();
    setxattr(&file, "user.a", b"two", XattrFlags::REPLACE).unwrap();
    assert_eq!(attribute(&file, "user.a").unwrap(), b"two");
}

fn replaced_by_longer_and_shorter(at: &CheckDir) {
    let file = at.file("file", b"");
    for len in [5, 500, 1, 0, 2000, 100] {
        setxattr(&file, "user.a", &pattern(len as u64, len), ANY).unwrap();
        assert_eq!(attribute(&file, "user.a").unwrap(), pattern(len as u64, len));
    }
}

fn names_are_listed(at: &CheckDir) {
    let file = at.file("file", b"");
    assert!(names(&file).is_empty());
    let all = ["user.a", "user.aa", "user.b", "user.a.b", "user.\u{e9}", "trusted.t"];
    for name in all {
        setxattr(&file, name, name.as_bytes(), ANY).unwrap();
    }
    assert_eq!(names(&file), set_of(&all));
    for name in all {
        assert_eq!(attribute(&file, name).unwrap(), name.as_bytes());
    }
}

fn removed_attribute_is_gone(at: &CheckDir) {
    let file = at.file("file", b"");
    setxattr(&file, "user.a", b"x", ANY).unwrap();
    setxattr(&file, "user.b", b"y", ANY).unwrap();
    removexattr(&file, "user.a").unwrap();
    fails(attribute(&file, "user.a"), Errno::NODATA);
    assert_eq!(names(&file), set_of(&["user.b"]));
    setxattr(&file, "user.a", b"again", XattrFlags::CREATE).unwrap();
}

fn small_buffers_are_erange(at: &CheckDir) {
    let file = at.file("file", b"");
    setxattr(&file, "user.name", b"0123456789", ANY).unwrap();
    fails(getxattr(&file, "user.name", &mut [0; 9][..]), Errno::RANGE);
    assert_eq!(getxattr(&file, "user.name", &mut [0; 10][..]).unwrap(), 10);
    assert_eq!(rustix::fs::getxattr_query(&file, "user.name").unwrap(), 10);
    fails(listxattr(&file, &mut [0; 5][..]), Errno::RANGE);
    assert!(rustix::fs::listxattr_query(&file).unwrap() >= 10);
}

fn directories_have_attributes(at: &CheckDir) {
    let dir = at.dir("dir");
    setxattr(&dir, "user.a", b"of a directory", ANY).unwrap();
    at.file("dir/file", b"");
    assert_eq!(attribute(&dir, "user.a").unwrap(), b"of a directory");
    fails(attribute(&at.path("dir/file"), "user.a"), Errno::NODATA);
}

fn symlinks_take_no_user_attributes(at: &CheckDir) {
    let file = at.file("file", b"");
    symlink("file", at.path("link")).unwrap();
    fails(rustix::fs::lsetxattr(at.path("link"), "user.a", b"x", ANY), Errno::PERM);
    setxattr(at.path("link"), "user.a", b"through", ANY).unwrap();
    assert_eq!(attribute(&file, "user.a").unwrap(), b"through");
}

fn symlinks_have_trusted_attributes(at: &CheckDir) {
    let file = at.file("file", b"");
    symlink("file", at.path("link")).unwrap();
    rustix::fs::lsetxattr(at.path("link"), "trusted.a", b"of the link", ANY).unwrap();
    let mut value = [0; 32];
    let len = rustix::fs::lgetxattr(at.path("link"), "trusted.a", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"of the link");
    fails(attribute(&file, "trusted.a"), Errno::NODATA);
}

fn longest_name(at: &CheckDir) {
    let file = at.file("file", b"");
    let name = format!("user.{}", "n".repeat(250));
    setxattr(&file, name.as_str(), b"x", ANY).unwrap();
    assert_eq!((attribute(&file, &name).unwrap(), names(&file)), (b"x".to_vec(), set_of(&[&name])));
    removexattr(&file, name.as_str()).unwrap();
}

fn longer_name_is_erange(at: &CheckDir) {
    let file = at.file("file", b"");
    let name = format!("user.{}", "n".repeat(251));
    fails(setxattr(&file, name.as_str(), b"x", ANY), Errno::RANGE);
    fails(attribute(&file, &name), Errno::RANGE);
}

fn longest_value(at: &CheckDir) {
    let file = at.file("file", b"");
    let len = if at.vault { 65_536 } else { 2000 };
    for seed in 0..3 {
        setxattr(&file, "user.a", &pattern(seed, len), ANY).unwrap();
        assert!(attribute(&file, "user.a").unwrap() == pattern(seed, len));
    }
}

fn longer_value_is_e2big(at: &CheckDir) {
    let file = at.file("file", b"");
    setxattr(&file, "user.a", b"kept", ANY).unwrap();
    fails(setxattr(&file, "user.a", &[0; 65_537], ANY), Errno::TOOBIG);
    assert_eq!(attribute(&file, "user.a").unwrap(), b"kept");
}

fn many_attributes(at: &CheckDir) {
    let file = at.file("file", b"");
    let count = if at.vault { 500 } else { 30 };
    let name = |n: usize| format!("user.number {n}");
    for n in 0..count {
        setxattr(&file, name(n), name(n).as_bytes(), ANY).unwrap();
    }
    assert_eq!(names(&file), (0..count).map(name).collect());
    for n in (0..count).step_by(2) {
        removexattr(&file, name(n)).unwrap();
    }
    assert_eq!(names(&file), (0..count).filter(|n| n % 2 == 1).map(name).collect());
    for n in (0..count).filter(|n| n % 2 == 1) {
        assert_eq!(attribute(&file, &name(n)).unwrap(), name(n).as_bytes());
    }
}

fn links_share_attributes(at: &CheckDir) {
    let file = at.file("file", b"");
    fs::hard_link(&file, at.path("link")).unwrap();
    setxattr(&file, "user.a", b"shared", ANY).unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(attribute(&at.path("link"), "user.a").unwrap(), b"shared");
}

fn renamed_file_keeps_attributes(at: &CheckDir) {
    let file = at.file("file", b"");
    setxattr(&file, "user.a", b"moved", ANY).unwrap();
    let old = at.file("old", b"");
    setxattr(&old, "user.b", b"replaced", ANY).unwrap();
    fs::rename(&file, &old).unwrap();
    assert_eq!((attribute(&old, "user.a").unwrap(), names(&old)), (b"moved".to_vec(), set_of(&["user.a"])));
}

fn new_file_has_none(at: &CheckDir) {
    for _ in 0..5 {
        let file = at.file("file", b"");
        assert!(names(&file).is_empty());
        setxattr(&file, "user.a", b"x", ANY).unwrap();
        fs::remove_file(&file).unwrap();
    }
}

fn attributes_of_a_handle(at: &CheckDir) {
    let file = at.handle("file", b"");
    rustix::fs::fsetxattr(&file, "user.a", b"by handle", ANY).unwrap();
    assert_eq!(attribute(&at.path("file"), "user.a").unwrap(), b"by handle");
    rustix::fs::fremovexattr(&file, "user.a").unwrap();
    assert!(names(&at.path("file")).is_empty());
}

fn attribute_name_spaces(at: &CheckDir) {
    let file = at.file("file", b"");
    fails(setxattr(&file, "nonsense.a", b"x", ANY), Errno::OPNOTSUPP);
    fails(setxattr(&file, "user", b"x", ANY), Errno::OPNOTSUPP);
    fails(setxattr(&file, "a", b"x", ANY), Errno::OPNOTSUPP);
    fails(setxattr(&file, "user.", b"x", ANY), Errno::INVAL);
    fails(attribute(&file, "nonsense.a"), Errno::OPNOTSUPP);
    fails(removexattr(&file, "nonsense.a"), Errno::OPNOTSUPP);
    fails_among(setxattr(&file, "", b"x", ANY), &[Errno::RANGE]);
    assert!(names(&file).is_empty());
}

fn other_names_of_the_system_are_refused(at: &CheckDir) {
    let file = at.file("file", b"");
    fails(setxattr(&file, "system.other", b"x", ANY), Errno::OPNOTSUPP);
    fails(attribute(&file, "system.other"), Errno::OPNOTSUPP);
    fails(removexattr(&file, "system.other"), Errno::OPNOTSUPP);
    assert!(names(&file).is_empty());
}

fn setting_needs_permission(at: &CheckDir) {
    let file = at.file("file", b"");
    chmod(&file, 0o644);
    as_user(ALICE, &[], || {
        fails(setxattr(&file, "user.a", b"x", ANY), Errno::ACCESS);
    });
    setxattr(&file, "user.a", b"x", ANY).unwrap();
    as_user(ALICE, &[], || {
        assert_eq!(attribute(&file, "user.a").unwrap(), b"x");
        fails(removexattr(&file, "user.a"), Errno::ACCESS);
    });
    set_owner_and_group(&file, ALICE, ALICE);
    as_user(ALICE, &[], || setxattr(&file, "user.a", b"mine", ANY)).unwrap();
    assert_eq!(attribute(&file, "user.a").unwrap(), b"mine");
}

fn reading_needs_permission(at: &CheckDir) {
    let file = at.file("file", b"");
    setxattr(&file, "user.a", b"x", ANY).unwrap();
    chmod(&file, 0o600);
    as_user(ALICE, &[], || fails(attribute(&file, "user.a"), Errno::ACCESS));
}

fn trusted_is_for_root(at: &CheckDir) {
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, ALICE);
    setxattr(&file, "trusted.a", b"secret", ANY).unwrap();
    as_user(ALICE, &[], || {
        fails_among(attribute(&file, "trusted.a"), &[Errno::NODATA, Errno::PERM]);
        fails(setxattr(&file, "trusted.a", b"x", ANY), Errno::PERM);
        fails_among(removexattr(&file, "trusted.a"), &[Errno::NODATA, Errno::PERM]);
    });
    assert_eq!(attribute(&file, "trusted.a").unwrap(), b"secret");
}

const SCHEME: &str = "user.lacuna.integrity";

fn scheme_attribute(at: &CheckDir) {
    let file = at.file("file", &pattern(1, 50_000));
    for scheme in ["mt", "rand", "comp", "auto"] {
        setxattr(&file, SCHEME, scheme.as_bytes(), ANY).unwrap();
        assert_eq!(attribute(&file, SCHEME).unwrap(), scheme.as_bytes());
        assert_eq!(names(&file), set_of(&[SCHEME]));
        fs::write(&file, pattern(2, 60_000)).unwrap();
        assert!(super::check_dir::stored(&file) == pattern(2, 60_000));
    }
    removexattr(&file, SCHEME).unwrap();
    fails(attribute(&file, SCHEME), Errno::NODATA);
    fails(removexattr(&file, SCHEME), Errno::NODATA);
}

fn scheme_attribute_is_inherited(at: &CheckDir) {
    if !at.vault {
        return;
    }
    let dir = at.dir("dir");
    setxattr(&dir, SCHEME, b"comp", ANY).unwrap();
    at.file("dir/file", b"content");
    at.dir("dir/sub");
    at.file("dir/sub/file", b"content");
    symlink("file", at.path("dir/link")).unwrap();
    for name in ["dir/file", "dir/sub", "dir/sub/file"] {
        assert_eq!(attribute(&at.path(name), SCHEME).unwrap(), b"comp", "{name}");
    }
    setxattr(at.path("dir/sub"), SCHEME, b"mt", ANY).unwrap();
    at.file("dir/sub/later", b"content");
    assert_eq!(attribute(&at.path("dir/sub/later"), SCHEME).unwrap(), b"mt");
    assert_eq!(attribute(&at.path("dir/sub/file"), SCHEME).unwrap(), b"comp");
}

fn scheme_attribute_refuses_nonsense(at: &CheckDir) {
    if !at.vault {
        return;
    }
    let file = at.file("file", b"");
    for nonsense in ["", "none", "MT", "mt ", "sha"] {
        fails(setxattr(&file, SCHEME, nonsense.as_bytes(), ANY), Errno::INVAL);
    }
    assert!(names(&file).is_empty());
}

fn attributes_by_threads(at: &CheckDir) {
    let file = at.file("file", b"");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let file = &file;
            scope.spawn(move || {
                let name = format!("user.{thread}");
                for n in 0..50u8 {
                    setxattr(file, name.as_str(), &[n; 10], ANY).unwrap();
                    assert_eq!(attribute(file, &name).unwrap(), [n; 10]);
                }
            });
        }
    });
    assert_eq!(names(&file).len(), 4);
    assert_eq!(stat(&file).st_size, 0);
}
