//! Inodes, directories and batches of changes that somebody with the keys made up: what parses is written as it was read.
#![no_main]

use lacuna_vault::fuzzing::{bucket_again, count_changes, inode_again};
use libfuzzer_sys::fuzz_target;

/// Where an inode has its flags, and those that there are: others are passed over.
const FLAGS_AT: usize = 101;
const FLAGS: u8 = 3;

fuzz_target!(|input: &[u8]| {
    if let Some(written) = inode_again(input) {
        let mut known = input.to_vec();
        known[FLAGS_AT] &= FLAGS;
        assert_eq!(written, known);
    }
    if let Some(written) = bucket_again(input) {
        assert_eq!(written, input);
    }
    // Each change has the lengths of a key and of a value.
    assert!(count_changes(input) * 6 <= input.len());
});
