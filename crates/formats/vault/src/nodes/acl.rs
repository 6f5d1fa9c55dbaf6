//! POSIX access control lists: their encoding, and their agreement with the permission bits.
//!
//! A list is the value of an extended attribute, in the encoding of Linux, little-endian: a version
//! u32, then entries of a tag u16, permissions u16, and the number of a user or group u32. The
//! kernel checks access by it.
//!
//! Invariants:
//! - The permission bits of a node are the entries of its list for the owner and for all other
//!   users, and the mask; in a list without a mask, the entry of the owning group.
//! - A list that adds nothing to the permission bits is not stored.

use crate::fs_error::errno;
use crate::namespace::{Namespace, tables};
use crate::nodes::inode_record::InodeRecord;
use crate::{FileKind, FsError, FsResult};
use lacuna_contracts::{Error, Kind, Result};

/// The extended attribute with the access control list of a node.
pub const ACL_ACCESS_XATTR: &[u8] = b"system.posix_acl_access";
/// The extended attribute with the list that new nodes in a directory inherit.
pub const ACL_DEFAULT_XATTR: &[u8] = b"system.posix_acl_default";
/// The longest list, in bytes: one page, as between the kernel and FUSE.
const ACL_MAX: usize = 4096;
/// The version in the encoding.
const VERSION: u32 = 2;
/// Bytes of an entry.
const ENTRY: usize = 8;
/// The permission bits of owner, group and all other users.
const PERMISSIONS: u16 = 0o777;

/// The use of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AclKind {
    /// The list of the node itself.
    Access,
    /// The list that new nodes in a directory inherit.
    Default,
}

impl AclKind {
    /// The kind with an extended attribute of this name.
    pub(crate) fn of_name(name: &[u8]) -> Option<AclKind> {
        [AclKind::Access, AclKind::Default].into_iter().find(|kind| kind.name() == name)
    }

    fn name(self) -> &'static [u8] {
        match self {
            AclKind::Access => ACL_ACCESS_XATTR,
            AclKind::Default => ACL_DEFAULT_XATTR,
        }
    }
}

/// The subject of an entry, in the order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
enum AclTag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    /// The most that users and groups of the list get, the owning group included.
    Mask = 0x10,
    Others = 0x20,
}

impl AclTag {
    fn of_code(code: u16) -> Option<AclTag> {
        use AclTag::{Group, Mask, Others, Owner, OwningGroup, User};
        [Owner, User, OwningGroup, Group, Mask, Others].into_iter().find(|tag| *tag as u16 == code)
    }

    /// Whether the entry names a user or a group by number.
    fn has_number(self) -> bool {
        matches!(self, AclTag::User | AclTag::Group)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: AclTag,
    permissions: u16,
    /// The user or group; without meaning for other tags.
    number: u32,
}

/// A valid access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessList(Vec<AclEntry>);

impl AccessList {
    /// Parses a list. `None` if it is malformed.
    pub(crate) fn parse(bytes: &[u8]) -> Option<AccessList> {
        let (version, rest) = bytes.split_first_chunk::<4>()?;
        let is_framed = u32::from_le_bytes(*version) == VERSION && rest.len().is_multiple_of(ENTRY);
        if !is_framed || bytes.len() > ACL_MAX {
            return None;
        }
        let list = AccessList(rest.chunks_exact(ENTRY).map(parse_entry).collect::<Option<_>>()?);
        list.is_valid().then_some(list)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            out.extend((entry.tag as u16).to_le_bytes());
            out.extend(entry.permissions.to_le_bytes());
            out.extend(entry.number.to_le_bytes());
        }
        out
    }

    /// Whether it has each needed entry once, in order. A list that names users or groups needs a
    /// mask.
    fn is_valid(&self) -> bool {
        let count = |tag: AclTag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let is_whole = [AclTag::Owner, AclTag::OwningGroup, AclTag::Others].map(count) == [1; 3];
        let names = self.0.iter().any(|entry| entry.tag.has_number());
        let is_entry = |entry: &AclEntry| {
            entry.permissions <= 7 && (entry.number != u32::MAX || !entry.tag.has_number())
        };
        is_whole
            && (usize::from(names)..=1).contains(&count(AclTag::Mask))
            && self.0.is_sorted_by_key(|entry| entry.tag)
            && self.0.iter().all(is_entry)
    }

    /// Whether the permission bits say the same.
    fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The place of an entry among the permission bits. `None` for entries that are not there.
    fn shift(&self, tag: AclTag) -> Option<u32> {
        let has_mask = self.0.iter().any(|entry| entry.tag == AclTag::Mask);
        match tag {
            AclTag::Owner => Some(6),
            AclTag::OwningGroup if has_mask => None,
            AclTag::OwningGroup | AclTag::Mask => Some(3),
            AclTag::Others => Some(0),
            AclTag::User | AclTag::Group => None,
        }
    }

    /// The permission bits of a node with this list.
    fn mode(&self) -> u16 {
        self.0.iter().filter_map(|entry| Some(entry.permissions << self.shift(entry.tag)?)).sum()
    }

    /// The list with other permissions for the entries among the permission bits: `change` gets
    /// those of the entry and those of `mode`.
    fn changed(&self, mode: u16, change: impl Fn(u16, u16) -> u16) -> AccessList {
        let entries = self.0.iter().map(|entry| match self.shift(entry.tag) {
            Some(shift) => AclEntry { permissions: change(entry.permissions, mode >> shift & 7), ..*entry },
            None => *entry,
        });
        AccessList(entries.collect())
    }
}

fn parse_entry(bytes: &[u8]) -> Option<AclEntry> {
    let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"));
    let number = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
    Some(AclEntry { tag: AclTag::of_code(half(0))?, permissions: half(2), number })
}

/// Checks a new list of a node, and gives the node the permission bits of its access list. Returns
/// the bytes to store, if the list adds anything to these bits.
///
/// Errors: EOPNOTSUPP for a symbolic link, EACCES for a default list of a node that is no
/// directory, E2BIG for a too long list, EINVAL for a malformed one.
pub(crate) fn accept<'a>(
    kind: AclKind,
    value: &'a [u8],
    record: &mut InodeRecord,
) -> FsResult<Option<&'a [u8]>> {
    if record.kind == FileKind::Symlink {
        return errno(libc::EOPNOTSUPP);
    }
    if kind == AclKind::Default && record.kind != FileKind::Directory {
        return errno(libc::EACCES);
    }
    if value.len() > ACL_MAX {
        return errno(libc::E2BIG);
    }
    let list = AccessList::parse(value).ok_or(FsError::Errno(libc::EINVAL))?;
    if kind == AclKind::Access {
        record.mode = record.mode & !PERMISSIONS | list.mode();
    }
    Ok((kind == AclKind::Default || !list.is_minimal()).then_some(value))
}

/// The access list of a node after a change of its permission bits, if it has one.
pub(crate) fn with_mode(
    namespace: &Namespace,
    ino: u64,
    record: &InodeRecord,
    mode: u16,
) -> FsResult<Option<Vec<u8>>> {
    let list = stored(namespace, ino, record, AclKind::Access)?;
    Ok(list.map(|list| list.changed(mode, |_, bits| bits).encode()))
}

/// Gives a new node the default list of its directory: as its access list, limited by the node's
/// permission bits, which are limited by it in turn; and, to a directory, as its default list.
/// Returns the extended attributes of the new node.
pub(crate) fn inherit(
    namespace: &Namespace,
    directory: u64,
    above: &InodeRecord,
    new: &mut InodeRecord,
) -> FsResult<Vec<(&'static [u8], Vec<u8>)>> {
    if new.kind == FileKind::Symlink {
        return Ok(vec![]);
    }
    let Some(default) = stored(namespace, directory, above, AclKind::Default)? else { return Ok(vec![]) };
    let access = default.changed(new.mode, |own, bits| own & bits);
    new.mode = new.mode & !PERMISSIONS | access.mode();
    let mut lists = vec![];
    if !access.is_minimal() {
        lists.push((ACL_ACCESS_XATTR, access.encode()));
    }
    if new.kind == FileKind::Directory {
        lists.push((ACL_DEFAULT_XATTR, default.encode()));
    }
    new.has_xattrs = !lists.is_empty();
    Ok(lists)
}

/// Verifies that the lists of a node parse.
///
/// Errors: [`Kind::Corrupt`] for a malformed list.
pub(crate) fn verify(namespace: &Namespace, ino: u64, record: &InodeRecord) -> Result<()> {
    stored(namespace, ino, record, AclKind::Access)?;
    stored(namespace, ino, record, AclKind::Default).map(drop)
}

fn stored(
    namespace: &Namespace,
    ino: u64,
    record: &InodeRecord,
    kind: AclKind,
) -> Result<Option<AccessList>> {
    if !record.has_xattrs {
        return Ok(None);
    }
    let Some(bytes) = namespace.get(&tables::xattr(ino, kind.name()))? else { return Ok(None) };
    let list = AccessList::parse(&bytes).ok_or_else(|| {
        Error::new(Kind::Corrupt, "cannot read an access control list of the namespace")
            .found(format!("{} bytes", bytes.len()))
    })?;
    Ok(Some(list))
}

#[cfg(test)]
mod tests {
    use super::AclTag::{Group, Mask, Others, Owner, OwningGroup, User};
    use super::*;
    use crate::NewNode;
    use crate::ROOT;
    use crate::SetXattrMode;
    use crate::SystemWallClock;
    use crate::Time;
    use crate::Vault;
    use crate::VaultBacking;
    use crate::VaultOpenOptions;
    use crate::VaultOptions;
    use lacuna_contracts::Secret;
    use lacuna_crypto::SeededRandom;
    use lacuna_sim::CrashFolder;
    use lacuna_vault_store::MemoryAnchor;
    use std::sync::Arc;

    fn list(entries: &[(AclTag, u16, u32)]) -> AccessList {
        AccessList(
            entries.iter().map(|&(tag, permissions, number)| AclEntry { tag, permissions, number }).collect(),
        )
    }

    fn with_names() -> AccessList {
        list(&[
            (Owner, 7, 0),
            (User, 6, 12),
            (OwningGroup, 5, 0),
            (Group, 4, 34),
            (Mask, 6, 0),
            (Others, 1, 0),
        ])
    }

    fn node(kind: FileKind, mode: u16) -> InodeRecord {
        InodeRecord { mode, ..InodeRecord::new(kind, Time::default()) }
    }

    #[test]
    fn lists_come_back_as_they_were() {
        let bytes = with_names().encode();
        assert_eq!(bytes.len(), 4 + 6 * ENTRY);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 7, 0, 0, 0, 0, 0]);
        assert_eq!(AccessList::parse(&bytes), Some(with_names()));
        assert!((0..bytes.len()).all(|cut| AccessList::parse(&bytes[..cut]).is_none()));
        let mut other = bytes;
        other[0] = 1;
        assert_eq!(AccessList::parse(&other), None, "another version");
    }

    #[test]
    fn malformed_lists_are_refused() {
        let (owner, group, others) = ((Owner, 7, 0), (OwningGroup, 5, 0), (Others, 0, 0));
        let user = (User, 6, 12);
        let parses = |entries: &[(AclTag, u16, u32)]| AccessList::parse(&list(entries).encode()).is_some();
        assert!(parses(&[owner, group, others]));
        assert!(parses(&[owner, group, (Mask, 7, 0), others]));
        assert!(parses(&[owner, user, (User, 1, 12), group, (Mask, 7, 0), others]));
        assert!(!parses(&[]));
        assert!(!parses(&[owner, group]), "without an entry for all other users");
        assert!(!parses(&[owner, owner, group, others]), "two owners");
        assert!(!parses(&[owner, user, group, others]), "a user without a mask");
        assert!(!parses(&[owner, group, user, (Mask, 7, 0), others]), "another order");
        assert!(!parses(&[owner, (User, 6, u32::MAX), group, (Mask, 7, 0), others]), "no user");
        assert!(!parses(&[owner, group, (Mask, 7, 0), (Mask, 7, 0), others]), "two masks");
        assert!(!parses(&[(Owner, 8, 0), group, others]), "a permission that there is not");
    }

    #[test]
    fn the_mask_is_the_permission_bits_of_the_group() {
        assert_eq!(with_names().mode(), 0o761);
        let changed = with_names().changed(0o7640, |_, bits| bits);
        assert_eq!(changed.mode(), 0o640);
        assert_eq!(changed.0[2].permissions, 5, "the owning group keeps its entry");
        let minimal = list(&[(Owner, 7, 0), (OwningGroup, 5, 0), (Others, 1, 0)]);
        assert_eq!(minimal.mode(), 0o751);
        assert_eq!(minimal.changed(0o604, |_, bits| bits).mode(), 0o604);
    }

    #[test]
    fn a_list_that_adds_nothing_is_not_stored() {
        let mut file = node(FileKind::File, 0o6600);
        let minimal = list(&[(Owner, 7, 0), (OwningGroup, 5, 0), (Others, 1, 0)]).encode();
        assert_eq!(accept(AclKind::Access, &minimal, &mut file).unwrap(), None);
        assert_eq!(file.mode, 0o6751);
        let named = with_names().encode();
        assert_eq!(accept(AclKind::Access, &named, &mut file).unwrap(), Some(&named[..]));
        assert_eq!(file.mode, 0o6761);
        let mut directory = node(FileKind::Directory, 0o700);
        assert_eq!(accept(AclKind::Default, &minimal, &mut directory).unwrap(), Some(&minimal[..]));
        assert_eq!(directory.mode, 0o700);
    }

    #[test]
    fn lists_have_their_nodes_and_their_limit() {
        let bytes = with_names().encode();
        let refusal =
            |kind, of: FileKind, bytes: &[u8]| accept(kind, bytes, &mut node(of, 0o600)).unwrap_err().errno();
        assert_eq!(refusal(AclKind::Access, FileKind::Symlink, &bytes), libc::EOPNOTSUPP);
        assert_eq!(refusal(AclKind::Default, FileKind::File, &bytes), libc::EACCES);
        assert_eq!(refusal(AclKind::Access, FileKind::File, &bytes[..8]), libc::EINVAL);
        let users = (0..600).map(|number| (User, 6, number));
        let long: Vec<_> = [(Owner, 7, 0)]
            .into_iter()
            .chain(users)
            .chain([(OwningGroup, 5, 0), (Mask, 7, 0), (Others, 0, 0)])
            .collect();
        let long = list(&long).encode();
        assert_eq!(refusal(AclKind::Access, FileKind::File, &long), libc::E2BIG);
        assert_eq!(AccessList::parse(&long), None);
    }

    /// A directory with a malformed default list takes no new nodes until the list is removed.
    #[test]
    fn a_check_finds_a_malformed_list() {
        let base = VaultBacking {
            folder: Arc::new(CrashFolder::new()),
            anchor: Arc::new(MemoryAnchor::default()),
            random: Arc::new(SeededRandom::new(1)),
            clock: Arc::new(SystemWallClock),
        };
        let open = VaultOpenOptions { commit_period: None, ..VaultOpenOptions::default() };
        let options = VaultOptions { open, ..VaultOptions::default() };
        let vault = Vault::create(base, &Secret::copy_from(&[7; 32]), [5; 16], &options).unwrap();
        let directory = vault.create_node(ROOT, b"directory", NewNode::Directory, 0o755, 0, 0).unwrap().ino;
        let list = with_names().encode();
        vault.set_xattr(directory, ACL_DEFAULT_XATTR, &list, SetXattrMode::Any).unwrap();
        assert!(vault.check(&mut |_, _| {}).unwrap().bad.is_empty());
        let key = tables::xattr(directory, ACL_DEFAULT_XATTR);
        vault.contents().namespace.put(&key, Some(&list[1..]));
        let bad = vault.check(&mut |_, _| {}).unwrap().bad;
        assert_eq!((bad.len(), bad[0].path.to_str()), (1, Some("/directory")));
        let make = || vault.create_node(directory, b"file", NewNode::File, 0o644, 0, 0);
        assert!(matches!(make().unwrap_err(), FsError::Storage(e) if e.kind() == Kind::Corrupt));
        vault.remove_xattr(directory, ACL_DEFAULT_XATTR).unwrap();
        make().unwrap();
    }
}
