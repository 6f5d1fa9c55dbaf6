//! A machine that is resumed twice: two copies of an open disk, store, vault or header, with the
//! same medium and the same generator, take different data. No key and nonce may serve for two
//! contents. Where nonces and salts are as they are drawn, and synthetic tags do not depend on the
//! content, some do.

mod flash;
mod header;
mod levels;
mod objects;
mod sealed;
mod vault;

use lacuna_crypto::witness::{Use, UseKind, repeated, uses_of, uses_unhedged};

/// How many nonces serve for two contents without the hedge, at least.
#[derive(Clone, Copy)]
struct Repeats {
    /// Of those that are drawn.
    given: usize,
    /// Of those that are parts of synthetic tags.
    synthetic: usize,
}

/// Plays both copies, each from the beginning, in `copies`: at least `least` uses of keys and
/// nonces, and without the hedge at least `repeats` that serve for two contents.
///
/// # Panics
///
/// If it is otherwise, or if a nonce serves twice with the hedge.
fn no_nonce_serves_twice(what: &str, least: usize, repeats: Repeats, copies: impl Fn()) {
    let ((), hedged) = uses_of(&copies);
    let uses = hedged.iter().filter(is_nonce).count();
    assert!(uses >= least, "{what}: {uses} uses");
    assert_eq!(repeated(hedged.iter().filter(is_nonce)), 0, "{what}");
    let ((), unhedged) = uses_unhedged(copies);
    for (kind, least) in [(UseKind::Given, repeats.given), (UseKind::Synthetic, repeats.synthetic)] {
        let found = repeated(unhedged.iter().filter(|one| one.kind() == kind));
        assert!(found >= least, "{what}: the game notices {found} of kind {kind:?}");
    }
}

/// Whether it is the nonce of a stream cipher, or a tweak of XTS: one that may never serve for two
/// contents.
fn is_nonce(one: &&Use) -> bool {
    one.kind() != UseKind::Wide
}
