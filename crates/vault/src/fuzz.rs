//! Parsing values of the namespace that somebody with the keys made up: for fuzzing.

use crate::entries::Bucket;
use crate::namespace::fuzz_puts;
use crate::record::Record;

/// Parses the input as an inode, as a bucket of a directory and as a batch of changes: what parses comes back when it is written
/// and read again.
pub fn fuzz_namespace(input: &[u8]) {
    if let Ok(record) = Record::parse(input) {
        assert_eq!(Record::parse(&record.encode()).expect("it was just written"), record);
    }
    if let Ok(bucket) = Bucket::parse(input) {
        let written = bucket.encode().unwrap_or_default();
        assert_eq!(Bucket::parse(&written).expect("it was just written"), bucket);
    }
    fuzz_puts(input);
}
