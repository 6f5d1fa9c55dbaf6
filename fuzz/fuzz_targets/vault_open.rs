//! A small vault with a directory that an adversary altered, or that answers reads and lists names
//! with earlier states: readable data is the latest, and no name is missing without an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::vault_image::use_damaged(input));
