//! A store whose superblock and journal somebody with the keys made up.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::store_journal::use_forged(input));
