//! A machine that is resumed twice: two copies of an open disk, store or vault, with the same medium and the same generator, take
//! different data. No key and nonce may serve for two contents. Where nonces and salts are as they are drawn, some do.

mod flash;
mod levels;
mod objects;
mod sealed;
mod vault;

use lacuna_crypto::witness::{repeated, uses_of, uses_unhedged};

/// Plays both copies, each from the beginning, in `copies`: at least `uses` uses of keys and nonces, and without the hedge at least
/// `repeats` that serve for two contents.
///
/// # Panics
///
/// If it is otherwise, or if a nonce serves twice with the hedge.
fn no_nonce_serves_twice(what: &str, uses: usize, repeats: usize, copies: impl Fn()) {
    let ((), hedged) = uses_of(&copies);
    assert!(hedged.len() >= uses, "{what}: {} uses", hedged.len());
    assert_eq!(repeated(&hedged), 0, "{what}");
    let ((), unhedged) = uses_unhedged(copies);
    assert!(repeated(&unhedged) >= repeats, "{what}: the game does not notice");
}
