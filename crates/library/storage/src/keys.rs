//! Changes the passphrases of a disk: adds, replaces or removes one, or rewrites all key slots.
//!
//! If the header shows which slots are used, one slot changes and all other passphrases keep
//! working. On formats with levels, and for a refresh, all slots are rewritten for exactly the
//! given passphrases, so that the writes to the medium do not depend on the existing passphrases
//! (deniability contract).

use crate::backing::{DiskRef, refuse_snapshot};
use crate::cost::Cost;
use crate::header::stale_headers;
use crate::observer::Observer;
use crate::unlock::{HeaderOpener, LeasedHeader, PassphraseMatch, UnlockedHeader, unlock, unlock_leased};
use lacuna_contracts::{Error, Hint, Kind, Result, SecretVec, Setting};
use lacuna_crypto::{SystemRandom, constant_time_eq};
use lacuna_header::{
    Keyring, PublicHeader, Uuid, add_passphrase, change_keys, change_passphrase, check_free_slot,
    lost_slots_warning, remove_passphrase,
};
use lacuna_medium::Access;
use std::cell::Cell;

/// The key slots that an operation rewrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotRewrite {
    /// One slot. All other passphrases keep working.
    One,
    /// All slots. Passphrases that are not given stop working; the text is a warning to show before
    /// any is requested.
    All(&'static str),
}

impl SlotRewrite {
    /// The slots that a change rewrites on a disk with this header, with the new cost, if any.
    /// Errors: all slots share one cost, which cannot change while some slots stay.
    fn of(public: &PublicHeader, all: bool, cost: Option<Cost>) -> Result<SlotRewrite> {
        if all || !public.can_change_one_slot() {
            return Ok(SlotRewrite::All(lost_slots_warning(public.format)));
        }
        if cost.is_none() {
            return Ok(SlotRewrite::One);
        }
        Err(Error::new(Kind::Usage, "cannot change the cost of one passphrase")
            .found("a new cost")
            .expected("one cost for all passphrases")
            .hint(
                Hint::from("refresh all passphrases that are to keep working, with ")
                    .setting(Setting("cost")),
            ))
    }
}

/// A disk unlocked for a change of its passphrases. Nothing is written before
/// [`PassphraseChange::write`].
pub struct PassphraseChange {
    volume: UnlockedHeader,
    /// The given passphrases, without duplicates.
    given: Vec<SecretVec>,
    plan: SlotPlan,
}

/// The closure that opens the header with passphrases.
type UnlockPrompt<'a> = Box<dyn FnOnce(&PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch> + 'a>;

/// The planned write.
enum SlotPlan {
    One(Option<SlotChange>),
    All { keyring: Keyring, cost: Option<Cost> },
}

/// A change of one passphrase.
enum SlotChange {
    Add(SecretVec),
    /// Replaces the first given passphrase.
    Replace(SecretVec),
    Remove(SecretVec),
}

impl PassphraseChange {
    /// Unlocks a closed disk, as [`unlock`] does; `ask` gets the affected slots and the public
    /// header before it asks for passphrases. `all`: rewrite all slots, whatever the format.
    /// `cost`: the cost of all passphrases afterwards; unchanged if not given.
    ///
    /// Errors: those of [`unlock`]; [`Kind::Usage`] for a snapshot, and for a new cost if only one
    /// slot changes.
    pub fn unlock(
        disk: DiskRef<'_>,
        all: bool,
        cost: Option<Cost>,
        observer: &dyn Observer,
        ask: impl FnOnce(SlotRewrite, &PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
    ) -> Result<PassphraseChange> {
        refuse_snapshot(disk.location, "change the passphrases of")?;
        let unlocking =
            |ask: UnlockPrompt<'_>| unlock(disk.location, disk.pool_access, Access::Write, observer, ask);
        Self::unlock_with(&unlocking, all, cost, ask)
    }

    /// As [`PassphraseChange::unlock`], for a disk that another process has open. Errors: the same.
    pub fn unlock_leased(
        disk: &LeasedHeader<'_>,
        all: bool,
        cost: Option<Cost>,
        observer: &dyn Observer,
        ask: impl FnOnce(SlotRewrite, &PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
    ) -> Result<PassphraseChange> {
        let unlocking = |ask: UnlockPrompt<'_>| unlock_leased(disk, observer, ask);
        Self::unlock_with(&unlocking, all, cost, ask)
    }

    fn unlock_with(
        unlocking: &dyn Fn(UnlockPrompt<'_>) -> Result<UnlockedHeader>,
        all: bool,
        cost: Option<Cost>,
        ask: impl FnOnce(SlotRewrite, &PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
    ) -> Result<PassphraseChange> {
        let shown = Cell::new(None);
        let asked = |public: &PublicHeader, open: HeaderOpener<'_>| {
            let rewrites = SlotRewrite::of(public, all, cost)?;
            shown.set(Some(public.format));
            ask(rewrites, public, open)
        };
        let mut volume = unlocking(Box::new(asked))?;
        if shown.get() != Some(volume.unlocked.header.format) {
            // The questions relied on a header that was not authenticated.
            return Err(Error::new(Kind::Corrupt, "nothing was changed")
                .found("a header copy that names another format: it was altered")
                .hint("repair the header first"));
        }
        let passphrases = std::mem::take(&mut volume.passphrases);
        let mut given: Vec<SecretVec> = Vec::new();
        for passphrase in &passphrases {
            if !given.iter().any(|known| is_same_passphrase(known, passphrase)) {
                given.push(SecretVec::new(passphrase.expose().to_vec()));
            }
        }
        let plan = match SlotRewrite::of(&volume.unlocked.header, all, cost)? {
            SlotRewrite::One => SlotPlan::One(None),
            SlotRewrite::All(_) => {
                SlotPlan::All { keyring: Keyring::from_opened(&volume.unlocked, passphrases)?, cost }
            }
        };
        Ok(PassphraseChange { volume, given, plan })
    }

    /// The UUID of the disk.
    pub fn uuid(&self) -> Uuid {
        self.volume.unlocked.header.uuid
    }

    /// The number of distinct passphrases that were given.
    pub fn given_count(&self) -> usize {
        self.given.len()
    }

    /// Whether the format has levels, regardless of the number of levels.
    pub fn has_levels(&self) -> bool {
        self.volume.parameters.has_levels()
    }

    /// If all slots are rewritten: the level of each passphrase that works afterwards.
    pub fn levels(&self) -> Option<Vec<u8>> {
        match &self.plan {
            SlotPlan::One(_) => None,
            SlotPlan::All { keyring, .. } => Some(keyring.levels().collect()),
        }
    }

    /// Refuses an additional passphrase if all key slots are used, before it is created. Errors:
    /// [`Kind::Usage`].
    pub fn check_free_slot(&self) -> Result<()> {
        match &self.plan {
            SlotPlan::One(_) => check_free_slot(&self.volume.unlocked),
            SlotPlan::All { keyring, .. } => keyring.check_free_slot(),
        }
    }

    /// Adds a passphrase for the deepest level that the given ones open. Errors: [`Kind::Exists`]
    /// if it works already; if only one slot changes, [`PassphraseChange::write`] reports that.
    pub fn add(&mut self, new: SecretVec) -> Result<()> {
        match &mut self.plan {
            SlotPlan::One(change) => *change = Some(SlotChange::Add(new)),
            SlotPlan::All { keyring, .. } => keyring.add(self.volume.unlocked.level, new)?,
        }
        Ok(())
    }

    /// Replaces the first given passphrase. Errors: as for [`PassphraseChange::add`].
    pub fn replace(&mut self, new: SecretVec) -> Result<()> {
        match &mut self.plan {
            SlotPlan::One(change) => *change = Some(SlotChange::Replace(new)),
            SlotPlan::All { keyring, .. } => keyring.change(&self.given[0], new)?,
        }
        Ok(())
    }

    /// Removes a passphrase that is none of the given ones. Errors: [`Kind::Passphrase`] if it
    /// opens nothing; if only one slot changes, [`PassphraseChange::write`] reports that.
    pub fn remove(&mut self, gone: SecretVec) -> Result<()> {
        if self.given.iter().any(|given| is_same_passphrase(given, &gone)) {
            return Err(Error::new(Kind::Usage, "cannot remove the passphrase")
                .found("the same passphrase among those to keep")
                .hint("give another one to keep, or change it"));
        }
        match &mut self.plan {
            SlotPlan::One(change) => {
                *change = Some(SlotChange::Remove(gone));
                Ok(())
            }
            // Otherwise a mistyped passphrase would seem to be removed, although the intended one
            // still works.
            SlotPlan::All { .. } => {
                let opened = lacuna_header::open(&*self.volume.header, &[gone]);
                opened.map(drop).map_err(|e| match e.kind() {
                    Kind::Passphrase => Error::new(e.kind(), "the passphrase to remove opens nothing here")
                        .hint("to keep only the passphrases you know, refresh the key slots"),
                    _ => e,
                })
            }
        }
    }

    /// Refuses an additional level before its passphrase is created. Errors: those of
    /// [`PassphraseChange::add_level`].
    pub fn check_new_level(&self) -> Result<()> {
        let UnlockedHeader { parameters, unlocked, .. } = &self.volume;
        if !matches!(self.plan, SlotPlan::All { .. }) || !parameters.has_levels() {
            return Err(cannot_add_level(&unlocked.header));
        }
        // Deniability contract: the error reveals the number of levels.
        parameters.check_levels(unlocked.master_keys.len() + 1).map_err(Error::confidential)
    }

    /// Adds an empty level with this passphrase. Errors: [`Kind::Usage`] if not all slots of a disk
    /// with levels are rewritten, or if the number of levels is exceeded; [`Kind::Exists`] if the
    /// passphrase works already.
    pub fn add_level(&mut self, passphrase: SecretVec) -> Result<()> {
        self.check_new_level()?;
        let unlocked = &mut self.volume.unlocked;
        let SlotPlan::All { keyring, .. } = &mut self.plan else {
            return Err(cannot_add_level(&unlocked.header));
        };
        let level = unlocked.add_level(&SystemRandom::new()?)?;
        keyring.add(level, passphrase)
    }

    /// Writes the header, durably. Returns the number of passphrases that work now. Writes nothing
    /// if nothing was to change.
    pub fn write(self, observer: &dyn Observer) -> Result<usize> {
        let UnlockedHeader { header, mut unlocked, .. } = self.volume;
        let (header, unlocked, random) = (&*header, &mut unlocked, SystemRandom::new()?);
        let working = match self.plan {
            SlotPlan::One(None) => return Ok(self.given.len()),
            SlotPlan::One(Some(SlotChange::Add(new))) => add_passphrase(header, unlocked, &new, &random)?,
            SlotPlan::One(Some(SlotChange::Replace(new))) => {
                change_passphrase(header, unlocked, &new, &random)?
            }
            SlotPlan::One(Some(SlotChange::Remove(gone))) => {
                remove_passphrase(header, unlocked, &gone, &random)?
            }
            SlotPlan::All { keyring, cost } => {
                let cost = cost.map_or(unlocked.header.cost, |wanted| wanted.resolve(observer));
                change_keys(header, unlocked, &keyring, cost, &random)?;
                keyring.levels().count()
            }
        };
        if !stale_headers::wipe_behind_end(header, &unlocked.header)? {
            observer.note(
                "not all of the space behind the disk can be read: an older copy of the header there would still open with passphrases that \
                 were removed",
            );
        }
        Ok(working)
    }
}

/// Whether two passphrases are equal, in time that depends only on their lengths.
pub fn is_same_passphrase(a: &SecretVec, b: &SecretVec) -> bool {
    constant_time_eq(a.expose(), b.expose())
}

fn cannot_add_level(header: &PublicHeader) -> Error {
    Error::new(Kind::Usage, "cannot add a level")
        .found(format!("the format {}", header.format))
        .expected("a disk of the format deniable or oblivious")
}
