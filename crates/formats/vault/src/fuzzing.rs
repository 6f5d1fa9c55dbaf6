//! Parsers of namespace values, for the fuzz target: each parses a value and writes it as a vault
//! would.

use crate::names::entries::Bucket;
use crate::namespace::each_change;
use crate::nodes::acl::AccessList;
use crate::nodes::inode_record::InodeRecord;

/// An inode; `None` if it does not parse.
pub fn reencode_inode(bytes: &[u8]) -> Option<Vec<u8>> {
    InodeRecord::parse(bytes).ok().map(|record| record.encode())
}

/// A bucket of a directory, empty if it has no entries; `None` if it does not parse.
pub fn reencode_bucket(bytes: &[u8]) -> Option<Vec<u8>> {
    Bucket::parse(bytes).ok().map(|bucket| bucket.encode().unwrap_or_default())
}

/// An access control list; `None` if it does not parse.
pub fn access_list_again(bytes: &[u8]) -> Option<Vec<u8>> {
    AccessList::parse(bytes).map(|list| list.encode())
}

/// The number of changes in a batch, up to its end or to a malformed change.
pub fn count_changes(batch: &[u8]) -> usize {
    let mut count = 0;
    let _refused = each_change(batch, |_, _| count += 1);
    count
}
