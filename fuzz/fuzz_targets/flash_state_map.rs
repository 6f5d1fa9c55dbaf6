//! A key state map with numbers of blocks and keys from the first two bytes, as if the tag of its
//! checkpoint had verified: a map that parses has the same states after it is encoded again.
#![no_main]

use lacuna_flash::fuzzing::key_states_again;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [blocks, keys, packed @ ..] = input else { return };
    let (blocks, keys) = (u32::from(*blocks) % 8, u32::from(*keys) + 1);
    let Some((again, len)) = key_states_again(packed, blocks, keys) else { return };
    assert!(len <= packed.len());
    let (same, whole) = key_states_again(&again, blocks, keys).expect("it was just written");
    assert_eq!((same, whole), (again.clone(), again.len()));
});
