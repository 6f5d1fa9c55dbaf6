//! A checkpoint and groups behind it that somebody with the keys made up.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::flash_log::use_forged(input));
