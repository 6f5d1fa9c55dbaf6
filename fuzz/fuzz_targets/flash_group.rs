//! What the header of a group says, as if its tag had verified.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_flash::fuzz_group(input));
