//! A batch of the ring, without its tag: parsing does not read past its end.
#![no_main]

use lacuna_sealed::fuzzing::count_entries;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // Real batches are whole blocks. The input is a head with entries: pad it with zeros.
    let mut batch = input.to_vec();
    batch.resize(input.len().next_multiple_of(4096) + 4096 * usize::from(input.len().is_multiple_of(3)), 0);
    let entries = count_entries(&batch);
    assert!(entries * 48 <= batch.len());
    count_entries(input);
});
