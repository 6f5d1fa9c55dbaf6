//! Changes the passphrases of a disk: adds, replaces or removes one, or rewrites all key slots.
//!
//! If the header shows which slots are used, one slot changes and all other passphrases keep
//! working. On formats with levels, and for a refresh, all slots are rewritten for exactly the
//! given passphrases, so that the writes to the medium do not depend on the existing passphrases
//! (deniability contract).

use crate::backing::{DiskRef, refuse_snapshot};
use crate::cost::Cost;
use crate::former_copies;
use crate::observer::Observer;
use crate::unlock::{OpenHeader, Opened, Opener, Volume, unlock, unlock_held};
use lacuna_contracts::{Advice, Error, Kind, Result, SecretVec, Setting};
use lacuna_crypto::{SystemRandom, constant_time_eq};
use lacuna_header::{
    Keyring, PublicHeader, Uuid, add_passphrase, change_keys, change_passphrase, check_free_slot,
    lost_slots_warning, remove_passphrase,
};
use lacuna_medium::Access;
use std::cell::Cell;

/// The key slots that an operation rewrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrites {
    /// One slot. All other passphrases keep working.
    One,
    /// All slots. Passphrases that are not given stop working; the text is a warning to show before
    /// any is requested.
    All(&'static str),
}

impl Rewrites {
    /// The slots that a change rewrites on a disk with this header, with the new cost, if any.
    /// Errors: all slots share one cost, which cannot change while some slots stay.
    fn of(public: &PublicHeader, all: bool, cost: Option<Cost>) -> Result<Rewrites> {
        if all || !public.keeps_others() {
            return Ok(Rewrites::All(lost_slots_warning(public.format)));
        }
        if cost.is_none() {
            return Ok(Rewrites::One);
        }
        Err(Error::new(Kind::Usage, "cannot change the cost of one passphrase")
            .found("a new cost")
            .expected("one cost for all passphrases of a disk")
            .remedy(
                Advice::from("refresh all passphrases that are to keep working, with ")
                    .setting(Setting("cost")),
            ))
    }
}

/// A disk unlocked for a change of its passphrases. Nothing is written before [`Keys::write`].
pub struct Keys {
    volume: Volume,
    /// The given passphrases, without duplicates.
    given: Vec<SecretVec>,
    plan: Plan,
}

/// The closure that opens the header with passphrases.
type Asking<'a> = Box<dyn FnOnce(&PublicHeader, Opener<'_>) -> Result<Opened> + 'a>;

/// The planned write.
enum Plan {
    One(Option<Change>),
    All { keyring: Keyring, cost: Option<Cost> },
}

/// A change of one passphrase.
enum Change {
    Add(SecretVec),
    /// Replaces the first given passphrase.
    Replace(SecretVec),
    Remove(SecretVec),
}

impl Keys {
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
        ask: impl FnOnce(Rewrites, &PublicHeader, Opener<'_>) -> Result<Opened>,
    ) -> Result<Keys> {
        refuse_snapshot(disk.location, "change the passphrases of")?;
        let unlocking =
            |ask: Asking<'_>| unlock(disk.location, disk.pool_access, Access::Write, observer, ask);
        Self::unlock_with(&unlocking, all, cost, ask)
    }

    /// As [`Keys::unlock`], for a disk that another process has open. Errors: the same.
    pub fn unlock_open(
        disk: &OpenHeader<'_>,
        all: bool,
        cost: Option<Cost>,
        observer: &dyn Observer,
        ask: impl FnOnce(Rewrites, &PublicHeader, Opener<'_>) -> Result<Opened>,
    ) -> Result<Keys> {
        let unlocking = |ask: Asking<'_>| unlock_held(disk, observer, ask);
        Self::unlock_with(&unlocking, all, cost, ask)
    }

    fn unlock_with(
        unlocking: &dyn Fn(Asking<'_>) -> Result<Volume>,
        all: bool,
        cost: Option<Cost>,
        ask: impl FnOnce(Rewrites, &PublicHeader, Opener<'_>) -> Result<Opened>,
    ) -> Result<Keys> {
        let shown = Cell::new(None);
        let asked = |public: &PublicHeader, open: Opener<'_>| {
            let rewrites = Rewrites::of(public, all, cost)?;
            shown.set(Some(public.format));
            ask(rewrites, public, open)
        };
        let mut volume = unlocking(Box::new(asked))?;
        if shown.get() != Some(volume.unlocked.header.format) {
            // The questions relied on a header that was not authenticated.
            return Err(Error::new(Kind::Corrupt, "nothing was changed")
                .found("header copies of which one names another format: it was altered")
                .remedy("repair the header first"));
        }
        let passphrases = std::mem::take(&mut volume.passphrases);
        let mut given: Vec<SecretVec> = Vec::new();
        for passphrase in &passphrases {
            if !given.iter().any(|known| same(known, passphrase)) {
                given.push(SecretVec::new(passphrase.expose().to_vec()));
            }
        }
        let plan = match Rewrites::of(&volume.unlocked.header, all, cost)? {
            Rewrites::One => Plan::One(None),
            Rewrites::All(_) => {
                Plan::All { keyring: Keyring::from_opened(&volume.unlocked, passphrases)?, cost }
            }
        };
        Ok(Keys { volume, given, plan })
    }

    /// The UUID of the disk.
    pub fn uuid(&self) -> Uuid {
        self.volume.unlocked.header.uuid
    }

    /// The number of distinct passphrases that were given.
    pub fn given(&self) -> usize {
        self.given.len()
    }

    /// Whether the format has levels, regardless of the number of levels.
    pub fn has_levels(&self) -> bool {
        self.volume.parameters.has_levels()
    }

    /// If all slots are rewritten: the level of each passphrase that works afterwards.
    pub fn levels(&self) -> Option<Vec<u8>> {
        match &self.plan {
            Plan::One(_) => None,
            Plan::All { keyring, .. } => Some(keyring.levels().collect()),
        }
    }

    /// Refuses an additional passphrase if all key slots are used, before it is created. Errors:
    /// [`Kind::Usage`].
    pub fn check_free_slot(&self) -> Result<()> {
        match &self.plan {
            Plan::One(_) => check_free_slot(&self.volume.unlocked),
            Plan::All { keyring, .. } => keyring.check_free_slot(),
        }
    }

    /// Adds a passphrase for the deepest level that the given ones open. Errors: [`Kind::Exists`]
    /// if it works already; if only one slot changes, [`Keys::write`] reports that.
    pub fn add(&mut self, new: SecretVec) -> Result<()> {
        match &mut self.plan {
            Plan::One(change) => *change = Some(Change::Add(new)),
            Plan::All { keyring, .. } => keyring.add(self.volume.unlocked.level, new)?,
        }
        Ok(())
    }

    /// Replaces the first given passphrase. Errors: as for [`Keys::add`].
    pub fn change(&mut self, new: SecretVec) -> Result<()> {
        match &mut self.plan {
            Plan::One(change) => *change = Some(Change::Replace(new)),
            Plan::All { keyring, .. } => keyring.change(&self.given[0], new)?,
        }
        Ok(())
    }

    /// Removes a passphrase that is none of the given ones. Errors: [`Kind::Passphrase`] if it
    /// opens nothing; if only one slot changes, [`Keys::write`] reports that.
    pub fn remove(&mut self, gone: SecretVec) -> Result<()> {
        if self.given.iter().any(|given| same(given, &gone)) {
            return Err(Error::new(Kind::Usage, "cannot remove the passphrase")
                .found("the same passphrase among those to keep")
                .remedy("give another one to keep, or change it"));
        }
        match &mut self.plan {
            Plan::One(change) => {
                *change = Some(Change::Remove(gone));
                Ok(())
            }
            // Otherwise a mistyped passphrase would seem to be removed, although the intended one
            // still works.
            Plan::All { .. } => {
                let opened = lacuna_header::open(&*self.volume.header, &[gone]);
                opened.map(drop).map_err(|e| match e.kind() {
                    Kind::Passphrase => {
                        Error::new(e.kind(), "the passphrase to remove does not open this disk")
                            .remedy("to be rid of all but those you know, refresh the key slots")
                    }
                    _ => e,
                })
            }
        }
    }

    /// Refuses an additional level before its passphrase is created. Errors: those of
    /// [`Keys::add_level`].
    pub fn check_new_level(&self) -> Result<()> {
        let Volume { parameters, unlocked, .. } = &self.volume;
        if !matches!(self.plan, Plan::All { .. }) || !parameters.has_levels() {
            return Err(no_levels(&unlocked.header));
        }
        // Deniability contract: the error reveals the number of levels.
        parameters.check_levels(unlocked.master_keys.len() + 1).map_err(Error::private)
    }

    /// Adds an empty level with this passphrase. Errors: [`Kind::Usage`] if not all slots of a disk
    /// with levels are rewritten, or if the number of levels is exceeded; [`Kind::Exists`] if the
    /// passphrase works already.
    pub fn add_level(&mut self, passphrase: SecretVec) -> Result<()> {
        self.check_new_level()?;
        let unlocked = &mut self.volume.unlocked;
        let Plan::All { keyring, .. } = &mut self.plan else { return Err(no_levels(&unlocked.header)) };
        let level = unlocked.add_level(&SystemRandom::new()?)?;
        keyring.add(level, passphrase)
    }

    /// Writes the header, durably. Returns the number of passphrases that work now. Writes nothing
    /// if nothing was to change.
    pub fn write(self, observer: &dyn Observer) -> Result<usize> {
        let Volume { header, mut unlocked, .. } = self.volume;
        let (header, unlocked, random) = (&*header, &mut unlocked, SystemRandom::new()?);
        let working = match self.plan {
            Plan::One(None) => return Ok(self.given.len()),
            Plan::One(Some(Change::Add(new))) => add_passphrase(header, unlocked, &new, &random)?,
            Plan::One(Some(Change::Replace(new))) => change_passphrase(header, unlocked, &new, &random)?,
            Plan::One(Some(Change::Remove(gone))) => remove_passphrase(header, unlocked, &gone, &random)?,
            Plan::All { keyring, cost } => {
                let cost = cost.map_or(unlocked.header.cost, |wanted| wanted.settle(observer));
                change_keys(header, unlocked, &keyring, cost, &random)?;
                keyring.levels().count()
            }
        };
        if !former_copies::forget_at_end(header, &unlocked.header)? {
            observer.note(
                "what lies behind the disk cannot be read whole: an older copy of the header there still opens with passphrases that \
                 were removed",
            );
        }
        Ok(working)
    }
}

/// Whether two passphrases are equal, in time that depends only on their lengths.
pub fn same(a: &SecretVec, b: &SecretVec) -> bool {
    constant_time_eq(a.expose(), b.expose())
}

fn no_levels(header: &PublicHeader) -> Error {
    Error::new(Kind::Usage, "cannot add a level")
        .found(format!("the format {}", header.format))
        .expected("a disk of the format deniable or oblivious")
}
