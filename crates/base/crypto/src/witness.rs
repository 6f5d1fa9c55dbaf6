//! What a tracing cipher sees: every key and nonce, or tweak, with the content encrypted under
//! them, recorded for tests that look for one that served twice. It is compiled with the feature
//! `witness` alone, which no program has, and keeps hashes, neither keys nor plaintext.

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a nonce comes from, and so what is to keep it from serving twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseKind {
    /// The nonce of AES-256-GCM, or the tweak of AES-256-XTS, as the caller gives it. Most are
    /// drawn, and hedged ([`crate::HedgedNonce`]).
    Given,
    /// The nonce of AES-256-GCM that is a part of a synthetic tag ([`crate::SivKey`]).
    Synthetic,
    /// The tweak of HCTR2-256, which is never hedged. It repeats by design where it names a place
    /// alone.
    Wide,
}

/// One use of a key and a nonce, or a tweak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    kind: UseKind,
    key: [u8; 16],
    nonce: Vec<u8>,
    content: [u8; 32],
}

impl Use {
    /// Where the nonce comes from.
    pub fn kind(&self) -> UseKind {
        self.kind
    }

    /// The nonce, or the tweak.
    pub fn nonce(&self) -> &[u8] {
        &self.nonce
    }
}

static USES: Mutex<Option<Vec<Use>>> = Mutex::new(None);
/// Held while something is recorded: one play at a time.
static PLAY: Mutex<()> = Mutex::new(());

static UNHEDGED: AtomicBool = AtomicBool::new(false);

/// [`uses_of`], with nonces as they are drawn, and synthetic tags that do not depend on the
/// content: what a game must notice. All that is sealed in the play must be opened in it, and
/// nothing else.
pub fn uses_unhedged<T>(play: impl FnOnce() -> T) -> (T, Vec<Use>) {
    uses_of(|| {
        UNHEDGED.store(true, Ordering::Relaxed);
        let played = play();
        UNHEDGED.store(false, Ordering::Relaxed);
        played
    })
}

/// From now on, in this process, nonces and salts are as they are drawn: for tests that compare all
/// that follows from public randomness, byte for byte, between plays that differ in what must not
/// show.
pub fn never_hedge() {
    UNHEDGED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_unhedged() -> bool {
    UNHEDGED.load(Ordering::Relaxed)
}

/// Plays something, and gives what all threads used meanwhile.
pub fn uses_of<T>(play: impl FnOnce() -> T) -> (T, Vec<Use>) {
    let _alone = PLAY.lock();
    *USES.lock() = Some(Vec::new());
    let played = play();
    (played, USES.lock().take().expect("it was started above"))
}

/// How many pairs of key and nonce were used for more than one content.
pub fn repeated<'u>(uses: impl IntoIterator<Item = &'u Use>) -> usize {
    let mut first = HashMap::new();
    let mut bad = HashSet::new();
    for Use { key, nonce, content, .. } in uses {
        if *first.entry((key, nonce)).or_insert(content) != content {
            bad.insert((key, nonce));
        }
    }
    bad.len()
}

/// Records a use, if anything is recorded. `key` tells keys apart.
pub(crate) fn record(
    kind: UseKind,
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
        uses.push(Use { kind, key: key(), nonce: nonce.to_vec(), content: hash.finalize().into() });
    }
}
