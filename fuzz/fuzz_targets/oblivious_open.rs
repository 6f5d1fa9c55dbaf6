//! A journal, a ring and cells forged by an adversary with the keys: heads, maps, discards, the
//! stash; and parameters.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::oblivious_journal::use_forged(input));
