//! What stands in the book of a disk on objects: its table of snapshots, which is read without a key too, and a page
//! of its version table, as if its tag had verified.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    lacuna_sealed_objects::fuzz_parse_snapshots(input);
    lacuna_sealed_objects::fuzz_parse_version_page(input);
    // Real tables and pages are longer than the input; zeros stand for the rest.
    let mut whole = input.to_vec();
    whole.resize(4096, 0);
    lacuna_sealed_objects::fuzz_parse_snapshots(&whole);
    lacuna_sealed_objects::fuzz_parse_version_page(&whole);
});
