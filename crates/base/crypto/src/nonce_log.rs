//! A log of every key and nonce (or tweak) of the ciphers, with the content encrypted under them,
//! for tests that look for a repeated use. Compiled only with the feature `witness`, which no
//! program enables. It keeps hashes, not keys or plaintext.

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// The origin of a nonce, which determines how repetitions are prevented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonceKind {
    /// The nonce of AES-256-GCM, or the tweak of AES-256-XTS, as the caller gives it. Most are
    /// drawn at random and hedged ([`crate::HedgedNonce`]).
    Given,
    /// The nonce of AES-256-GCM that is a part of a synthetic tag ([`crate::SivKey`]).
    Synthetic,
    /// The tweak of HCTR2-256, which is never hedged. By design it repeats if it names only an
    /// address.
    Wide,
}

/// One use of a key with a nonce or tweak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonceUse {
    kind: NonceKind,
    key: [u8; 16],
    nonce: Vec<u8>,
    content: [u8; 32],
}

impl NonceUse {
    /// The origin of the nonce.
    pub fn kind(&self) -> NonceKind {
        self.kind
    }

    /// The nonce, or the tweak.
    pub fn nonce(&self) -> &[u8] {
        &self.nonce
    }
}

static USES: Mutex<Option<Vec<NonceUse>>> = Mutex::new(None);
/// Held during a recording: one recording at a time.
static RECORDING: Mutex<()> = Mutex::new(());

static UNHEDGED: AtomicBool = AtomicBool::new(false);

/// [`record_uses`] without hedging: nonces are used as they are drawn, and synthetic tags do not
/// depend on the content. A test must find repetitions in such a run. All data opened in `play`
/// must have been sealed in `play`, and vice versa.
pub fn record_unhedged_uses<T>(play: impl FnOnce() -> T) -> (T, Vec<NonceUse>) {
    record_uses(|| {
        UNHEDGED.store(true, Ordering::Relaxed);
        let played = play();
        UNHEDGED.store(false, Ordering::Relaxed);
        played
    })
}

/// Turns hedging off for the rest of this process: nonces and salts are used as they are drawn. For
/// tests that compare, byte for byte, all data that follows from public randomness between two runs
/// with different secrets.
pub fn disable_hedging() {
    UNHEDGED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_unhedged() -> bool {
    UNHEDGED.load(Ordering::Relaxed)
}

/// Runs `play`, and returns its result with all uses by all threads meanwhile.
pub fn record_uses<T>(play: impl FnOnce() -> T) -> (T, Vec<NonceUse>) {
    let _alone = RECORDING.lock();
    *USES.lock() = Some(Vec::new());
    let played = play();
    (played, USES.lock().take().expect("it was started above"))
}

/// The number of pairs of key and nonce that were used for more than one content.
pub fn count_reused<'u>(uses: impl IntoIterator<Item = &'u NonceUse>) -> usize {
    let mut first = HashMap::new();
    let mut bad = HashSet::new();
    for NonceUse { key, nonce, content, .. } in uses {
        if *first.entry((key, nonce)).or_insert(content) != content {
            bad.insert((key, nonce));
        }
    }
    bad.len()
}

/// Records a use, if a recording is on. `key` returns an identifier of the key.
pub(crate) fn record(
    kind: NonceKind,
    key: impl FnOnce() -> [u8; 16],
    nonce: &[u8],
    bound: &[u8],
    content: &[u8],
) {
    let mut uses = USES.lock();
    if let Some(uses) = &mut *uses {
        let lengths = [(bound.len() as u64).to_le_bytes(), (content.len() as u64).to_le_bytes()];
        let hash =
            Sha256::new().chain_update(lengths.as_flattened()).chain_update(bound).chain_update(content);
        uses.push(NonceUse { kind, key: key(), nonce: nonce.to_vec(), content: hash.finalize().into() });
    }
}
