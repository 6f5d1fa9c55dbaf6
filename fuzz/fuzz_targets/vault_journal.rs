//! A store with a superblock and a journal forged by an adversary with the keys.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::store_journal::use_forged(input));
