//! Inodes, directories, access control lists and batches of changes forged by an adversary with the
//! keys: values that parse are encoded to the same bytes.
#![no_main]

use lacuna_vault::fuzzing::{access_list_again, count_changes, reencode_bucket, reencode_inode};
use libfuzzer_sys::fuzz_target;

/// Offset of the flags of an inode, and the known flags; the parser ignores unknown ones.
const FLAGS_AT: usize = 101;
const FLAGS: u8 = 3;

fuzz_target!(|input: &[u8]| {
    if let Some(written) = reencode_inode(input) {
        let mut known = input.to_vec();
        known[FLAGS_AT] &= FLAGS;
        assert_eq!(written, known);
    }
    if let Some(written) = reencode_bucket(input) {
        assert_eq!(written, input);
    }
    if let Some(written) = access_list_again(input) {
        assert_eq!(written, input);
    }
    // Each change has at least the lengths of its key and of its value.
    assert!(count_changes(input) * 6 <= input.len());
});
