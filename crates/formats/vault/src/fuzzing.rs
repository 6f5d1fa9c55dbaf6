//! Parsers of values of the namespace, for the fuzz target: each gives what it parsed as a vault
//! would write it.

use crate::entries::Bucket;
use crate::namespace::each_change;
use crate::record::Record;

/// An inode; none if it does not parse.
pub fn inode_again(bytes: &[u8]) -> Option<Vec<u8>> {
    Record::parse(bytes).ok().map(|record| record.encode())
}

/// A bucket of a directory, of which nothing is written if it has no entries; none if it does not
/// parse.
pub fn bucket_again(bytes: &[u8]) -> Option<Vec<u8>> {
    Bucket::parse(bytes).ok().map(|bucket| bucket.encode().unwrap_or_default())
}

/// How many changes a batch has before it ends or makes no sense.
pub fn count_changes(batch: &[u8]) -> usize {
    let mut count = 0;
    let _refused = each_change(batch, |_, _| count += 1);
    count
}
