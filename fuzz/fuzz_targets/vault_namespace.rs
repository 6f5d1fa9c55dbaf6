//! Inodes, directories and batches of changes that somebody with the keys made up: what parses is the same when it was written
//! and read again.
#![no_main]

use lacuna_vault::fuzzing::{bucket_again, count_changes, inode_again};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let parsers: [fn(&[u8]) -> Option<Vec<u8>>; 2] = [inode_again, bucket_again];
    for again in parsers {
        if let Some(written) = again(input) {
            assert_eq!(again(&written), Some(written), "what was just written");
        }
    }
    // Each change has the lengths of a key and of a value.
    assert!(count_changes(input) * 6 <= input.len());
});
