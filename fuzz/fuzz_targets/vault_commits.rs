//! Records and superblocks that somebody with the keys made up.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_vault_store::fuzz_commits(input));
