//! A header from an untrusted source: parsing never panics, opening costs no more than the header's
//! bounded cost, and a header that opens can be rewritten and opens again. On a medium that answers
//! some reads with earlier contents, a header that opens was once written.
#![no_main]

use lacuna_contracts::Kind;
use lacuna_crypto::SeededRandom;
use lacuna_fuzz::bytes::InputCursor;
use lacuna_fuzz::header_image::{damage, medium, open_under_lies, passphrase};
use lacuna_fuzz::lying::decode_lies;
use lacuna_header::{Keyring, PublicHeader, change_keys, open, read_public, update_params};
use lacuna_medium::MemoryMedium;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut input = InputCursor::new(input);
    let selector = input.byte();
    if selector & 7 == 0 {
        let raw = input.rest();
        let _ = PublicHeader::parse(raw);
        let _ = read_public(&MemoryMedium::from_bytes(raw.to_vec()));
        return;
    }
    if selector & 8 == 8 {
        let lies = decode_lies(&mut input);
        return open_under_lies(lies, &mut input);
    }
    let medium = medium();
    damage(&medium, &mut input);
    let public = read_public(&medium);
    let Ok(mut unlocked) = open(&medium, &[passphrase()]) else { return };
    let (public, _) = public.expect("what opens can be shown");
    assert!(unlocked.header.generation <= public.generation);

    let random = SeededRandom::new(2);
    let keyring = Keyring::from_opened(&unlocked, vec![passphrase()]).expect("the passphrase that opened it");
    let cost = unlocked.header.cost;
    match change_keys(&medium, &mut unlocked, &keyring, cost, &random) {
        Ok(()) => {}
        // The medium was truncated, or the generation is at its maximum.
        Err(e) if matches!(e.kind(), Kind::Io | Kind::Corrupt) => return,
        Err(e) => panic!("refresh: {e}"),
    }
    let mut again = open(&medium, &[passphrase()]).expect("a refreshed header opens");
    // A truncated medium has no room for copy C.
    assert!(again.notes.iter().all(|note| note.contains("copy C")), "{:?}", again.notes);
    if update_params(&mut again, &medium, vec![1, 2, 3], public.end).is_ok() {
        let last = open(&medium, &[passphrase()]).expect("a header with new parameters opens");
        assert_eq!(last.header.params, [1, 2, 3]);
    }
});
