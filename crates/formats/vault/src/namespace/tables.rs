//! The tables of the namespace and their keys. In memory and in commits a key begins with the
//! number of its table; numbers in keys are big-endian, so that they sort.

use crate::content::part_codes::part_code;
use lacuna_integrity::Part;

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Table {
    /// name -> setting.
    Meta = 0,
    /// inode -> [`crate::nodes::inode_record::InodeRecord`].
    Inodes = 1,
    /// directory, hash of the name -> [`crate::names::entries::Bucket`].
    Entries = 2,
    /// inode, name -> value.
    Xattrs = 3,
    /// inode, part, page -> a page of the file's untrusted storage for integrity.
    Us = 4,
    /// inode -> nothing: nodes that lost their last name while open, or are being removed.
    Orphans = 5,
}

/// All tables, in the order of their numbers.
pub(crate) const TABLES: [Table; 6] =
    [Table::Meta, Table::Inodes, Table::Entries, Table::Xattrs, Table::Us, Table::Orphans];

impl Table {
    /// Its name in the database.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Table::Meta => "meta",
            Table::Inodes => "inodes",
            Table::Entries => "entries",
            Table::Xattrs => "xattrs",
            Table::Us => "us",
            Table::Orphans => "orphans",
        }
    }
}

/// The key of a setting.
pub(crate) fn meta(name: &str) -> Vec<u8> {
    key(Table::Meta, &[name.as_bytes()])
}

pub(crate) fn inode(ino: u64) -> Vec<u8> {
    key(Table::Inodes, &[&ino.to_be_bytes()])
}

pub(crate) fn bucket(directory: u64, hash: u64) -> Vec<u8> {
    key(Table::Entries, &[&directory.to_be_bytes(), &hash.to_be_bytes()])
}

pub(crate) fn xattr(ino: u64, name: &[u8]) -> Vec<u8> {
    key(Table::Xattrs, &[&ino.to_be_bytes(), name])
}

pub(crate) fn us(ino: u64, part: Part, page: u64) -> Vec<u8> {
    key(Table::Us, &[&ino.to_be_bytes(), &[part_code(part)], &page.to_be_bytes()])
}

pub(crate) fn orphan(ino: u64) -> Vec<u8> {
    key(Table::Orphans, &[&ino.to_be_bytes()])
}

/// The prefix of the keys of one inode (or directory).
pub(crate) fn of_inode(table: Table, ino: u64) -> Vec<u8> {
    key(table, &[&ino.to_be_bytes()])
}

/// The inode (or directory) at the start of a key.
pub(crate) fn inode_of(key: &[u8]) -> u64 {
    key.get(1..9).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
}

fn key(table: Table, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    key.push(table as u8);
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}
