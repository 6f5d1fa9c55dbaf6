//! `vault`: the nonces of records are hedged.

#[path = "../../../../formats/vault/tests/world/mod.rs"]
mod world;

use crate::no_nonce_serves_twice;
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::Rng;
use lacuna_vault::{NewNode, ROOT, Vault};
use world::World;

const PAGE: usize = 4096;

fn text(stamp: u64) -> Vec<u8> {
    format!("version {stamp} of this, ").into_bytes().into_iter().cycle().take(PAGE).collect()
}

/// Both copies, each from the beginning: what they do before they part is the same, byte for byte.
fn copies(choice: Choice) {
    for copy in 1..3 {
        let mut world = World::new(7);
        let vault = world.create(choice);
        let ino = vault.make(ROOT, b"file", NewNode::File, 0o600, 0, 0).unwrap().ino;
        let write = |vault: &Vault, block: u64, content: &[u8]| {
            assert_eq!(vault.write(ino, block * PAGE as u64, content).unwrap(), content.len());
        };
        (0..8).for_each(|block| write(&vault, block, &text(block)));
        vault.fsync(ino).unwrap();
        // Here they part. Some of what they write is alike.
        for block in 0..20 {
            write(&vault, block, &text(100 * copy + block));
        }
        write(&vault, 20, &text(7));
        write(&vault, 21, &Rng::new(copy).bytes(PAGE));
        vault.fsync(ino).unwrap();
        (0..4).for_each(|block| write(&vault, block, &text(1000 * copy + block)));
        vault.make(ROOT, format!("of copy {copy}").as_bytes(), NewNode::Directory, 0o700, 0, 0).unwrap();
        vault.close().unwrap();
    }
}

#[test]
fn vault() {
    let schemes = [Scheme::Mt, Scheme::Comp, Scheme::Rand].map(Choice::Fixed);
    for choice in schemes.into_iter().chain([Choice::Auto]) {
        no_nonce_serves_twice(&format!("{choice:?}"), 21, 1, || copies(choice));
    }
}
