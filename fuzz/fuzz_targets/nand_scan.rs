//! A forged chip: its file, and the headers and states of its erase blocks.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| lacuna_fuzz::nand_chip::use_forged(input));
