//! A journal, a ring and cells that somebody with the keys made up: heads, maps, discards, what waits; and parameters.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::oblivious_journal::use_forged(input));
