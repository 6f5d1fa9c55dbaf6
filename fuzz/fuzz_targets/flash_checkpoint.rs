//! A checkpoint, and groups after it, forged by an adversary with the keys.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::flash_log::use_forged(input));
