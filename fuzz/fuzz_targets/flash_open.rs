//! A damaged disk on flash: a disk that opens reads as zeros or as data that was once written
//! there; it accepts writes and purges, and opens again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::flash_image::use_damaged(input));
