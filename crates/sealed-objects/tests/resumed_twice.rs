//! A machine that is resumed twice: two copies of an open disk, with the same objects and the same generator, take different data.
//! No key and nonce may serve for two contents. Where nonces are as they are drawn, some do.

mod fixture;

use fixture::{Scene, run};
use lacuna_core::{BlockAddr, Disk};
use lacuna_crypto::Cipher;
use lacuna_crypto::witness::{repeated, uses_of, uses_unhedged};
use lacuna_sealed_objects::ObjectLayout;

/// Both copies, each from the beginning: what they do before they part is the same.
fn copies(cipher: Cipher, layout: ObjectLayout) {
    for copy in 1..3 {
        let scene = Scene::new(cipher, layout, 2048);
        let disk = scene.open_seeded(7);
        let write = |first: u64, count: u64, stamp: u64| {
            disk.write(BlockAddr(first), &run(first, count, stamp)).unwrap();
        };
        write(0, 8, 1);
        disk.flush().unwrap();
        // Here they part.
        write(3, 4, 10 + copy);
        write(100, 1, 5);
        disk.flush().unwrap();
        write(1024, 256, 20 + copy);
        disk.close().unwrap();
    }
}

#[test]
fn no_nonce_serves_twice() {
    for cipher in [Cipher::Gcm, Cipher::XtsRandom] {
        for layout in ObjectLayout::ALL {
            let ((), hedged) = uses_of(|| copies(cipher, layout));
            assert!(hedged.len() > 500, "{cipher:?}, {layout:?}: {} uses", hedged.len());
            assert_eq!(repeated(&hedged), 0, "{cipher:?}, {layout:?}");
            let ((), unhedged) = uses_unhedged(|| copies(cipher, layout));
            assert!(repeated(&unhedged) > 200, "{cipher:?}, {layout:?}: the game does not notice");
        }
    }
}
