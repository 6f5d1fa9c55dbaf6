//! `vault`: the nonces of records are hedged, and those of blocks are synthetic. The tweaks of
//! blocks without a tag of their own (RAND-EINT) are neither: a vault that detects the resumption
//! continues in another session, which no copy shares.

#[path = "../../../../formats/vault/tests/vault_harness/mod.rs"]
mod vault_harness;

use crate::{ExpectedRepeats, assert_no_nonce_repeats, is_nonce};
use lacuna_crypto::nonce_log::{NonceKind, NonceUse, count_reused, record_unhedged_uses, record_uses};
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::Rng;
use lacuna_vault::{NewNode, ROOT, Vault, VaultBacking, VaultOptions};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vault_harness::{UUID, VaultHarness};

const PAGE: usize = 4096;
/// Bytes of the tweak of a block: its index, the session and the pass
/// (`docs/format/integrity.md`). The tweak of a page, which is only its place, has 9 bytes, and is
/// used for every version of the page.
const BLOCK_TWEAK: usize = 20;
/// The number of blocks that both copies write in one session and pass, with different contents.
const DIVERGING_BLOCKS: u64 = 20;

/// The generator of a copy: identical in both until a resumption is detected.
struct CopiedRandom {
    shared: SeededRandom,
    own: SeededRandom,
    resumptions: AtomicU64,
}

impl CopiedRandom {
    fn for_copy(copy: u64) -> Arc<CopiedRandom> {
        let (shared, own) = (SeededRandom::new(7), SeededRandom::new(100 + copy));
        Arc::new(CopiedRandom { shared, own, resumptions: AtomicU64::new(0) })
    }

    fn resume(&self) {
        self.resumptions.fetch_add(1, Ordering::Relaxed);
    }
}

impl RandomSource for CopiedRandom {
    fn fill(&self, buf: &mut [u8]) {
        let source = if self.resumptions() == 0 { &self.shared } else { &self.own };
        source.fill(buf);
    }

    fn resumptions(&self) -> u64 {
        self.resumptions.load(Ordering::Relaxed)
    }
}

fn text(stamp: u64) -> Vec<u8> {
    format!("version {stamp} of this, ").into_bytes().into_iter().cycle().take(PAGE).collect()
}

/// Runs both copies from the beginning; they are identical, byte for byte, until they diverge. If
/// `noticed`, each vault detects the resumption then.
fn copies(choice: Choice, noticed: bool) {
    for copy in 1..3 {
        let (mut world, random) = (VaultHarness::new(7), CopiedRandom::for_copy(copy));
        let base = VaultBacking { random: random.clone(), ..world.base() };
        let options = VaultOptions { choice, open: world.options(), ..VaultOptions::default() };
        let vault = Vault::create(base, &VaultHarness::master(), UUID, &options).unwrap();
        let ino = vault.create_node(ROOT, b"file", NewNode::File, 0o600, 0, 0).unwrap().ino;
        let write = |vault: &Vault, block: u64, content: &[u8]| {
            assert_eq!(vault.write(ino, block * PAGE as u64, content).unwrap(), content.len());
        };
        (0..8).for_each(|block| write(&vault, block, &text(block)));
        vault.fsync(ino).unwrap();
        // The copies diverge here. Some writes are still equal.
        if noticed {
            random.resume();
        }
        for block in 0..DIVERGING_BLOCKS {
            write(&vault, block, &text(100 * copy + block));
        }
        write(&vault, 20, &text(7));
        write(&vault, 21, &Rng::new(copy).bytes(PAGE));
        vault.fsync(ino).unwrap();
        (0..4).for_each(|block| write(&vault, block, &text(1000 * copy + block)));
        vault
            .create_node(ROOT, format!("of copy {copy}").as_bytes(), NewNode::Directory, 0o700, 0, 0)
            .unwrap();
        vault.close().unwrap();
    }
}

fn choices() -> impl Iterator<Item = Choice> {
    [Scheme::Mt, Scheme::Comp, Scheme::Rand].map(Choice::Fixed).into_iter().chain([Choice::Auto])
}

/// Whether it is the tweak of a block.
fn is_block_tweak(one: &&NonceUse) -> bool {
    one.kind() == NonceKind::Wide && one.nonce().len() == BLOCK_TWEAK
}

/// Whether it may never be used for two contents: a nonce or the tweak of a block.
fn must_not_repeat(one: &&NonceUse) -> bool {
    is_nonce(one) || is_block_tweak(one)
}

/// The sessions in the tweaks of blocks.
fn sessions(uses: &[NonceUse]) -> BTreeSet<&[u8]> {
    uses.iter().filter(is_block_tweak).map(|one| &one.nonce()[8..16]).collect()
}

#[test]
fn vaults_repeat_no_nonce() {
    for choice in choices() {
        // In RAND-EINT only one of the written blocks needs a tag.
        let synthetic = if choice == Choice::Fixed(Scheme::Rand) { 1 } else { DIVERGING_BLOCKS as usize };
        let repeats = ExpectedRepeats { drawn: 1, synthetic };
        assert_no_nonce_repeats(&format!("{choice:?}"), 21, repeats, || copies(choice, false));
    }
}

#[test]
fn blocks_without_tags_repeat_no_tweak_if_the_resumption_is_detected() {
    let choice = Choice::Fixed(Scheme::Rand);
    let ((), noticed) = record_uses(|| copies(choice, true));
    assert!(noticed.iter().filter(is_block_tweak).count() >= 2 * DIVERGING_BLOCKS as usize);
    assert_eq!(count_reused(noticed.iter().filter(must_not_repeat)), 0);
    assert_eq!(sessions(&noticed).len(), 3, "the session that the copies share, and one of each");
    let ((), unnoticed) = record_uses(|| copies(choice, false));
    assert!(count_reused(unnoticed.iter().filter(is_block_tweak)) >= DIVERGING_BLOCKS as usize);
    assert_eq!(sessions(&unnoticed).len(), 1);
}

/// The session is part of every nonce or key: a new session suffices even if no nonce depends on
/// the content.
#[test]
fn a_vault_that_detects_a_resumption_continues_in_a_new_session() {
    for choice in choices() {
        let ((), noticed) = record_unhedged_uses(|| copies(choice, true));
        assert_eq!(count_reused(noticed.iter().filter(must_not_repeat)), 0, "{choice:?}");
        let ((), unnoticed) = record_unhedged_uses(|| copies(choice, false));
        let found = count_reused(unnoticed.iter().filter(must_not_repeat));
        assert!(found >= DIVERGING_BLOCKS as usize, "{choice:?}: the game notices {found}");
    }
}
