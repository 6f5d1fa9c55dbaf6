//! A machine that is resumed twice: two copies of an open disk, store, vault or header, with the
//! same medium and the same generator state, write different data. No key and nonce may be used for
//! two contents. Without hedging of drawn nonces and salts, and with synthetic tags that do not
//! depend on the content, some are.

mod flash;
mod header;
mod levels;
mod objects;
mod sealed;
mod vault;

use lacuna_crypto::nonce_log::{NonceKind, NonceUse, count_reused, record_unhedged_uses, record_uses};

/// The least number of nonces that are used for two contents without hedging.
#[derive(Clone, Copy)]
struct ExpectedRepeats {
    /// Among drawn nonces.
    drawn: usize,
    /// Among parts of synthetic tags.
    synthetic: usize,
}

/// Runs both copies in `copies`, each from the beginning. Expects at least `least` uses of keys and
/// nonces, and without hedging at least `repeats` that are used for two contents.
///
/// # Panics
///
/// If there are fewer, or if a nonce is used for two contents with hedging.
fn assert_no_nonce_repeats(what: &str, least: usize, repeats: ExpectedRepeats, copies: impl Fn()) {
    let ((), hedged) = record_uses(&copies);
    let uses = hedged.iter().filter(is_nonce).count();
    assert!(uses >= least, "{what}: {uses} uses");
    assert_eq!(count_reused(hedged.iter().filter(is_nonce)), 0, "{what}");
    let ((), unhedged) = record_unhedged_uses(copies);
    for (kind, least) in [(NonceKind::Given, repeats.drawn), (NonceKind::Synthetic, repeats.synthetic)] {
        let found = count_reused(unhedged.iter().filter(|one| one.kind() == kind));
        assert!(found >= least, "{what}: the game notices {found} of kind {kind:?}");
    }
}

/// Whether it is the nonce of a stream cipher or a tweak of XTS, which may never be used for two
/// contents.
fn is_nonce(one: &&NonceUse) -> bool {
    one.kind() != NonceKind::Wide
}
