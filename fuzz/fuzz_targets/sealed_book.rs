//! The contents of the book of a disk on objects: its table of snapshots, which is also read
//! without a key, and a page of its version table, as given and as if its tag had verified.
#![no_main]

use lacuna_contracts::Secret;
use lacuna_crypto::{derive, keyed_hash};
use lacuna_sealed_objects::fuzzing::{
    reencode_snapshots, reencode_verified_snapshots, reencode_version_page,
};
use libfuzzer_sys::fuzz_target;

const UUID: [u8; 16] = [2; 16];
/// Bytes of a page; bytes before its tag; bytes up to the end of its tag.
const PAGE: usize = 4096;
const SIGNED: usize = 32;
const HEAD: usize = 64;

fuzz_target!(|input: &[u8]| {
    check_contents(input);
    // Real tables and pages are longer than the input: pad it with zeros.
    let mut whole = input.to_vec();
    whole.resize(PAGE, 0);
    check_contents(&whole);
});

fn check_contents(bytes: &[u8]) {
    let master = Secret::copy_from(&[0; 32]);
    if let Some(table) = reencode_snapshots(bytes, &master) {
        let again = reencode_verified_snapshots(&table, &master).expect("a written table is read");
        assert_eq!(again, table);
    }
    let page = |bytes: &[u8]| reencode_version_page(bytes, &master, &UUID, 1, 2);
    assert!(page(bytes).is_none(), "bytes without the key pass for a page");
    if bytes.len() != PAGE {
        return;
    }
    let key = derive(&master, "sealed objects version table", &UUID);
    let tag = keyed_hash(&key, &[&bytes[..SIGNED], &bytes[HEAD..]]);
    let mut tagged = bytes.to_vec();
    tagged[SIGNED..HEAD].copy_from_slice(&tag);
    if let Some(again) = page(&tagged) {
        assert_eq!(again, tagged, "a page with a part that was passed over");
    }
}
