//! `sealed`: the nonces of blocks and the salts of the journal are hedged.

#[path = "../../../../formats/sealed/tests/fixture/mod.rs"]
mod fixture;

use crate::{ExpectedRepeats, assert_no_nonce_repeats};
use fixture::{create, open_with, options, params, write};
use lacuna_contracts::{Disk, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::MemoryMedium;
use std::sync::Arc;

/// Runs both copies, each with the same operations until they diverge.
fn copies(cipher: Cipher) {
    let params = params(cipher, 4 * SEGMENT_BLOCKS);
    let medium = MemoryMedium::new(params.geometry().end());
    create(&medium, &params);
    let before = medium.snapshot();
    for copy in 1..3 {
        let medium = Arc::new(MemoryMedium::from_bytes(before.clone()));
        let disk = open_with(medium, &params, options(7)).unwrap();
        write(&disk, 5, 3, 9).unwrap();
        disk.flush().unwrap();
        // The copies diverge here: small writes, some of them equal, and a stream.
        write(&disk, 5, 2, 10 + copy).unwrap();
        write(&disk, 100, 1, 20).unwrap();
        disk.flush().unwrap();
        for at in (0..SEGMENT_BLOCKS).step_by(256) {
            write(&disk, SEGMENT_BLOCKS + at, 256, 30 + copy).unwrap();
        }
        disk.flush().unwrap();
        write(&disk, 7, 1, 40 + copy).unwrap();
        disk.close().unwrap();
    }
}

#[test]
fn sealed_disks_repeat_no_nonce() {
    // All ciphers that draw a nonce: they store it in the metadata.
    for cipher in Cipher::ALL.into_iter().filter(|cipher| cipher.meta_size() > 0) {
        let repeats = ExpectedRepeats { drawn: 1001, synthetic: 0 };
        assert_no_nonce_repeats(&format!("{cipher:?}"), 2 * 1024 + 1, repeats, || copies(cipher));
    }
}
