//! A disk on flash that was damaged: what opens reads as what was written there once, or as zeros; it takes writes and purges,
//! and opens again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::flash_image::use_damaged(input));
