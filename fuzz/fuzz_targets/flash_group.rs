//! The header of a group, as if its tag had verified: a header that parses is encoded to the same
//! bytes.
#![no_main]

use lacuna_flash::fuzzing::group_again;
use libfuzzer_sys::fuzz_target;

/// Bytes of a unit before the encrypted part of a header.
const SEALED: usize = 40;

fuzz_target!(|input: &[u8]| {
    for unit in [512, 2048, 4096] {
        let mut plain = input.to_vec();
        plain.resize(unit - SEALED, 0);
        if let Some(again) = group_again(&plain, unit as u32) {
            assert_eq!(again, plain);
        }
    }
    // A unit as short as the input.
    if let Some(again) = group_again(input, (input.len() + SEALED) as u32) {
        assert_eq!(again, input);
    }
});
