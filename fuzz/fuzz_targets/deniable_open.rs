//! A log forged by an adversary with the key of level 0: summaries with root records, entries and
//! echoes; parameters; and records of discards.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::deniable_log::use_forged(input));
