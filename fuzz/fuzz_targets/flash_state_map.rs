//! A key state map, as if the tag of its checkpoint had verified.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_flash::fuzz_state_map(input));
