//! Access control lists: they agree with the permission bits, new nodes inherit them, and they are
//! as durable as the nodes.

mod vault_harness;

use lacuna_integrity::Choice;
use lacuna_vault::{
    ACL_ACCESS_XATTR, ACL_DEFAULT_XATTR, AttrChanges, FsResult, NewNode, ROOT, SetXattrMode, Vault,
};
use vault_harness::VaultHarness;

const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHERS: u16 = 32;

/// The bytes of a list of tags, permissions and numbers.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, permissions, number) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

/// A list with an entry for user 7.
fn named(owner: u16, user: u16, group: u16, mask: u16, others: u16) -> Vec<u8> {
    let none = u32::MAX;
    list(&[
        (OWNER, owner, none),
        (USER, user, 7),
        (OWNING_GROUP, group, none),
        (MASK, mask, none),
        (OTHERS, others, none),
    ])
}

fn set(vault: &Vault, ino: u64, name: &[u8], list: &[u8]) -> FsResult<()> {
    vault.set_xattr(ino, name, list, SetXattrMode::Any)
}

fn get(vault: &Vault, ino: u64, name: &[u8]) -> Option<Vec<u8>> {
    match vault.get_xattr(ino, name) {
        Ok(list) => Some(list),
        Err(e) => {
            assert_eq!(e.errno(), libc::ENODATA);
            None
        }
    }
}

fn mode(vault: &Vault, ino: u64) -> u16 {
    vault.attr(ino).unwrap().mode
}

fn make(vault: &Vault, parent: u64, name: &[u8], new: NewNode<'_>, mode: u16) -> u64 {
    vault.create_node(parent, name, new, mode, 1, 1).unwrap().ino
}

#[test]
fn list_and_permission_bits_agree() {
    let mut world = VaultHarness::new(1);
    let vault = world.create(Choice::Auto);
    let file = make(&vault, ROOT, b"file", NewNode::File, 0o4644);
    set(&vault, file, ACL_ACCESS_XATTR, &named(6, 7, 5, 3, 0)).unwrap();
    assert_eq!(mode(&vault, file), 0o4630);
    vault.set_attr(file, &AttrChanges { mode: Some(0o755), ..AttrChanges::default() }).unwrap();
    assert_eq!(get(&vault, file, ACL_ACCESS_XATTR), Some(named(7, 7, 5, 5, 5)));
    assert_eq!(vault.list_xattrs(file).unwrap(), [ACL_ACCESS_XATTR]);
    // A list without names is the mode.
    let minimal = list(&[(OWNER, 6, 0), (OWNING_GROUP, 4, 0), (OTHERS, 1, 0)]);
    set(&vault, file, ACL_ACCESS_XATTR, &minimal).unwrap();
    assert_eq!((mode(&vault, file), get(&vault, file, ACL_ACCESS_XATTR)), (0o641, None));
    assert!(vault.list_xattrs(file).unwrap().is_empty());
    set(&vault, file, ACL_ACCESS_XATTR, &named(6, 7, 5, 3, 0)).unwrap();
    vault.remove_xattr(file, ACL_ACCESS_XATTR).unwrap();
    assert_eq!((mode(&vault, file), get(&vault, file, ACL_ACCESS_XATTR)), (0o630, None));
}

#[test]
fn a_refused_list_changes_nothing() {
    let mut world = VaultHarness::new(2);
    let vault = world.create(Choice::Auto);
    let file = make(&vault, ROOT, b"file", NewNode::File, 0o644);
    let link = make(&vault, ROOT, b"link", NewNode::Symlink(b"file"), 0o777);
    let malformed = list(&[(OWNER, 7, 0), (USER, 7, 7), (OWNING_GROUP, 7, 0), (OTHERS, 7, 0)]);
    let refusal = |ino, name: &[u8], list: &[u8]| set(&vault, ino, name, list).unwrap_err().errno();
    assert_eq!(refusal(file, ACL_ACCESS_XATTR, &malformed), libc::EINVAL);
    assert_eq!(refusal(file, ACL_DEFAULT_XATTR, &named(7, 7, 7, 7, 7)), libc::EACCES);
    assert_eq!(refusal(link, ACL_ACCESS_XATTR, &named(7, 7, 7, 7, 7)), libc::EOPNOTSUPP);
    assert_eq!((mode(&vault, file), mode(&vault, link)), (0o644, 0o777));
    assert!([file, link].into_iter().all(|ino| vault.list_xattrs(ino).unwrap().is_empty()));
}

#[test]
fn new_nodes_inherit_and_keep_their_lists() {
    let mut world = VaultHarness::new(3);
    let vault = world.create(Choice::Auto);
    let directory = make(&vault, ROOT, b"directory", NewNode::Directory, 0o755);
    set(&vault, directory, ACL_DEFAULT_XATTR, &named(7, 6, 5, 7, 0)).unwrap();
    assert_eq!(mode(&vault, directory), 0o755, "a default list changes no permissions");
    let file = make(&vault, directory, b"file", NewNode::File, 0o640);
    let pipe = make(&vault, directory, b"pipe", NewNode::Fifo, 0o666);
    let link = make(&vault, directory, b"link", NewNode::Symlink(b"file"), 0o777);
    let below = make(&vault, directory, b"below", NewNode::Directory, 0o777);
    let deep = make(&vault, below, b"deep", NewNode::File, 0o666);
    vault.sync().unwrap();
    drop(vault);
    // Killed without a close.
    let vault = world.open().unwrap();
    for (ino, bits, list) in [
        (file, 0o640, named(6, 6, 5, 4, 0)),
        (pipe, 0o660, named(6, 6, 5, 6, 0)),
        (below, 0o770, named(7, 6, 5, 7, 0)),
        (deep, 0o660, named(6, 6, 5, 6, 0)),
    ] {
        assert_eq!((mode(&vault, ino), get(&vault, ino, ACL_ACCESS_XATTR)), (bits, Some(list)));
    }
    assert_eq!((mode(&vault, link), get(&vault, link, ACL_ACCESS_XATTR)), (0o777, None));
    assert_eq!(get(&vault, below, ACL_DEFAULT_XATTR), Some(named(7, 6, 5, 7, 0)));
    assert_eq!(get(&vault, file, ACL_DEFAULT_XATTR), None);
    vault.close().unwrap();
}

#[test]
fn a_default_list_without_names_limits_the_permission_bits() {
    let mut world = VaultHarness::new(4);
    let vault = world.create(Choice::Auto);
    let minimal = list(&[(OWNER, 6, 0), (OWNING_GROUP, 4, 0), (OTHERS, 0, 0)]);
    set(&vault, ROOT, ACL_DEFAULT_XATTR, &minimal).unwrap();
    let file = make(&vault, ROOT, b"file", NewNode::File, 0o777);
    assert_eq!((mode(&vault, file), get(&vault, file, ACL_ACCESS_XATTR)), (0o640, None));
    let directory = make(&vault, ROOT, b"directory", NewNode::Directory, 0o770);
    assert_eq!((mode(&vault, directory), get(&vault, directory, ACL_ACCESS_XATTR)), (0o640, None));
    assert_eq!(get(&vault, directory, ACL_DEFAULT_XATTR), Some(minimal));
}
