//! `sealed-objects`: the nonces of seals and pages are hedged.

#[path = "../../../../formats/sealed-objects/tests/fixture/mod.rs"]
mod fixture;

use crate::{ExpectedRepeats, assert_no_nonce_repeats};
use fixture::{TestDisk, run_content};
use lacuna_contracts::{BlockAddr, Disk};
use lacuna_crypto::Cipher;
use lacuna_sealed_objects::ObjectLayout;

/// Runs both copies from the beginning; they are identical until they diverge.
fn copies(cipher: Cipher, layout: ObjectLayout) {
    for copy in 1..3 {
        let scene = TestDisk::new(cipher, layout, 2048);
        let disk = scene.open_seeded(7);
        let write = |first: u64, count: u64, stamp: u64| {
            disk.write(BlockAddr(first), &run_content(first, count, stamp)).unwrap();
        };
        write(0, 8, 1);
        disk.flush().unwrap();
        // The copies diverge here.
        write(3, 4, 10 + copy);
        write(100, 1, 5);
        disk.flush().unwrap();
        write(1024, 256, 20 + copy);
        disk.close().unwrap();
    }
}

#[test]
fn disks_on_objects_repeat_no_nonce() {
    // All ciphers that draw a nonce: they store it in the metadata.
    for cipher in Cipher::ALL.into_iter().filter(|cipher| cipher.meta_size() > 0) {
        for layout in ObjectLayout::ALL {
            let (what, repeats) =
                (format!("{cipher:?}, {layout:?}"), ExpectedRepeats { drawn: 201, synthetic: 0 });
            assert_no_nonce_repeats(&what, 501, repeats, || copies(cipher, layout));
        }
    }
}
