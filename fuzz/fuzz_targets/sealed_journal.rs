//! A batch of the ring, without its tag: parsing reads no further than the bytes it has.
#![no_main]

use lacuna_sealed::fuzzing::count_entries;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // Real batches are whole blocks. The input is a head and entries; zeros stand for the rest.
    let mut batch = input.to_vec();
    batch.resize(input.len().next_multiple_of(4096) + 4096 * usize::from(input.len().is_multiple_of(3)), 0);
    let entries = count_entries(&batch);
    assert!(entries * 48 <= batch.len());
    count_entries(input);
});
