//! The texts of a record and of a superblock, as if their seals had verified: a text that parses is
//! encoded to the same bytes.
#![no_main]

use lacuna_vault_store::fuzzing::{reencode_record, reencode_superblock};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    for again in [reencode_record(input), reencode_superblock(input)].into_iter().flatten() {
        assert_eq!(again, input);
    }
});
