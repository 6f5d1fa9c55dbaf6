//! The environment of a vault, the damage that an opening tolerates, and its result.

use crate::WallClock;
use crate::namespace::Namespace;
use crate::options::VaultOpenOptions;
use crate::settings::Settings;
use lacuna_contracts::{Action, Error, Hint, Kind, Result};
use lacuna_crypto::RandomSource;
use lacuna_medium::Folder;
use lacuna_vault_store::{Anchor, CommitInfo, StoreBacking, StoreOptions, SuperblockStatus, ToleratedDamage};
use std::sync::Arc;

/// The leniency of an opening: the damage that it tolerates.
pub(crate) trait Leniency {
    /// Chooses the namespace: by the newest root, or, if a checkpoint was not finished, by the root
    /// before it with all changes since.
    fn choose_namespace(
        &self,
        newest: Result<Namespace>,
        before: &dyn Fn() -> Option<Result<Namespace>>,
    ) -> Result<Namespace>;
    /// Reads the settings.
    fn settings(&self, namespace: &Namespace) -> Result<Settings>;
    /// The damage of the store that it tolerates. If any, the third files of the namespace are used
    /// as well.
    fn tolerated_damage(&self) -> ToleratedDamage {
        ToleratedDamage::Nothing
    }
}

/// Tolerates no damage.
pub(crate) struct Strict;

impl Leniency for Strict {
    fn choose_namespace(
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

/// The result of an opening.
#[derive(Clone, Copy, Debug)]
pub struct OpeningReport {
    /// This machine never opened the vault before: this may not be its newest state.
    pub first_opening: bool,
    /// The state does not descend from the anchored state, and was accepted.
    pub accepted: bool,
    /// The state.
    pub state: CommitInfo,
    /// Records that were read from the journal; none after an orderly close.
    pub records: u64,
    /// The two superblocks of the store.
    pub superblocks: SuperblockStatus,
}

/// The environment of a vault.
#[derive(Clone)]
pub struct VaultBacking {
    /// The backing directory.
    pub folder: Arc<dyn Folder>,
    /// The anchor, which remembers the last commit.
    pub anchor: Arc<dyn Anchor>,
    /// The source of randomness.
    pub random: Arc<dyn RandomSource>,
    /// The clock for time stamps.
    pub clock: Arc<dyn WallClock>,
}

/// The error of an anchored state with a namespace that does not verify: the directory mixes files
/// of several states.
pub(crate) fn mixed_states(e: Error, backing: &str) -> Error {
    if e.kind() != Kind::Corrupt {
        return e;
    }
    e.context(format!("the backing files {backing}, which hold all names, are not all of one state")).hint(
        Hint::from(
            "if a program synchronises the directory, let it finish, or run it again with the vault closed; otherwise \
             restore these files as they were when the vault was last closed, or restore the directory from a backup; ",
        )
        .action(Action("vault::rescue"))
        .text(" copies out the data that still verifies"),
    )
}

/// The environment and the options of the store.
pub(crate) fn store_backing(
    base: &VaultBacking,
    uuid: [u8; 16],
    options: &VaultOpenOptions,
) -> (StoreBacking, StoreOptions) {
    let clock = base.clock.clone();
    let backing = StoreBacking {
        folder: base.folder.clone(),
        anchor: base.anchor.clone(),
        random: base.random.clone(),
        clock: Arc::new(move || clock.now().secs.max(0) as u64),
        uuid,
    };
    let store_options = StoreOptions {
        read_only: options.read_only,
        on_rollback: options.on_rollback.clone(),
        // Without a timer there are no threads, so that a test decides the order of events.
        background: options.commit_period.is_some(),
        journal: options.journal,
        tolerated: ToleratedDamage::Nothing,
    };
    (backing, store_options)
}
