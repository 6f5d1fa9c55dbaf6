//! What a vault is opened from, what passes at an opening, and what it found.

use crate::WallClock;
use crate::namespace::Namespace;
use crate::options::OpenOptions;
use crate::settings::Settings;
use lacuna_contracts::{Action, Advice, Error, Kind, Result};
use lacuna_crypto::RandomSource;
use lacuna_medium::Folder;
use lacuna_vault_store::{Anchor, CommitInfo, PastDamage, StoreBase, StoreOptions, Superblocks};
use std::sync::Arc;

/// How lenient an opening is: which parts it lets pass that do not verify.
pub(crate) trait Leniency {
    /// The namespace: by the newest root, or by the one before it and all changes since, if a
    /// checkpoint was not finished.
    fn namespace(
        &self,
        newest: Result<Namespace>,
        before: &dyn Fn() -> Option<Result<Namespace>>,
    ) -> Result<Namespace>;
    /// Its settings.
    fn settings(&self, namespace: &Namespace) -> Result<Settings>;
    /// What of the store it passes over. Unless that is nothing, the third files of the namespace
    /// count as well.
    fn past(&self) -> PastDamage {
        PastDamage::Nothing
    }
}

/// Nothing passes.
pub(crate) struct Strict;

impl Leniency for Strict {
    fn namespace(
        &self,
        newest: Result<Namespace>,
        _: &dyn Fn() -> Option<Result<Namespace>>,
    ) -> Result<Namespace> {
        newest
    }

    fn settings(&self, namespace: &Namespace) -> Result<Settings> {
        Settings::read(namespace)
    }
}

/// What opening found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The vault was never opened on this machine before: nobody could tell whether this is its
    /// newest state.
    pub first_opening: bool,
    /// The state does not descend from what the anchor remembered, and was accepted.
    pub accepted: bool,
    /// The state.
    pub state: CommitInfo,
    /// Commits that were read from the journal; none after an orderly end.
    pub records: u64,
    /// The two superblocks of the store.
    pub superblocks: Superblocks,
}

/// What a vault rests on.
#[derive(Clone)]
pub struct Base {
    /// The backing directory.
    pub folder: Arc<dyn Folder>,
    /// Where the last commit is remembered.
    pub anchor: Arc<dyn Anchor>,
    /// Where randomness comes from.
    pub random: Arc<dyn RandomSource>,
    /// What time stamps are made of.
    pub clock: Arc<dyn WallClock>,
}

/// The namespace of a state that is anchored does not verify: files of another state lie beside the
/// superblock.
pub(crate) fn incomplete(e: Error, backing: &str) -> Error {
    if e.kind() != Kind::Corrupt {
        return e;
    }
    e.context(format!("the directory does not hold one whole state of the backing files {backing}, which hold all names")).remedy(
        Advice::from(
            "if a program keeps it in step with another place, let it finish, or run it once more with the vault closed; otherwise \
             bring these files back as they were when the vault was last closed, or restore the directory from a backup; ",
        )
        .action(Action("vault::rescue"))
        .text(" brings out what still verifies"),
    )
}

/// What the store rests on, and how it is opened.
pub(crate) fn store_base(base: &Base, uuid: [u8; 16], options: &OpenOptions) -> (StoreBase, StoreOptions) {
    let clock = base.clock.clone();
    let rests = StoreBase {
        folder: base.folder.clone(),
        anchor: base.anchor.clone(),
        random: base.random.clone(),
        now: Arc::new(move || clock.now().secs.max(0) as u64),
        uuid,
    };
    let choices = StoreOptions {
        read_only: options.read_only,
        accept: options.accept.clone(),
        // Without a timer there are no threads: a test decides what happens when.
        background: options.commit_period.is_some(),
        journal: options.journal,
        past: PastDamage::Nothing,
    };
    (rests, choices)
}
