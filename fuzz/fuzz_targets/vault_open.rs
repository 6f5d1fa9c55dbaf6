//! A small vault whose directory an adversary has altered, or that answers reads and looks at names with any of it: what can be read is
//! the latest, and no name is missing without an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::vault_image::use_damaged(input));
