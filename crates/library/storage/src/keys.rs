//! The passphrases of a disk: one more, another, one less, or all key slots anew.
//!
//! Where the header tells which slots are used, one slot changes and all other passphrases keep
//! working. On formats with levels, and to refresh, all slots are rewritten for exactly the
//! passphrases that are given, so that what happens on the medium is the same whatever there was
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

/// Which key slots an operation rewrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrites {
    /// One. All other passphrases keep working.
    One,
    /// All. Passphrases that are not given stop working, as these words tell a person before any is
    /// asked for.
    All(&'static str),
}

impl Rewrites {
    /// Those of a disk with this header, with a new cost if there is one. Errors: all slots have
    /// one cost, which cannot change while some stay.
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

/// A disk that is unlocked for an operation on its passphrases. Nothing is written before
/// [`Keys::write`].
pub struct Keys {
    volume: Volume,
    /// Those that were given, each once.
    given: Vec<SecretVec>,
    plan: Plan,
}

/// What opens a header that is read.
type Asking<'a> = Box<dyn FnOnce(&PublicHeader, Opener<'_>) -> Result<Opened> + 'a>;

/// What is going to be written.
enum Plan {
    One(Option<Change>),
    All { keyring: Keyring, cost: Option<Cost> },
}

/// What becomes of one passphrase.
enum Change {
    Add(SecretVec),
    /// Another in place of the first that was given.
    Replace(SecretVec),
    Remove(SecretVec),
}

impl Keys {
    /// Unlocks a disk that is closed, as [`unlock`] does; `ask` is told which slots of which disk
    /// are rewritten before it asks for passphrases. `all`: all of them, whatever the format.
    /// `cost` is that of all passphrases afterwards; as before if not given.
    ///
    /// Errors: those of [`unlock`]; [`Kind::Usage`] for a snapshot, and for a cost where one slot
    /// changes.
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

    /// The same of a disk that another process has open. Errors: the same.
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
            // What was asked and said went by a header that nobody had authenticated.
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

    /// How many passphrases were given that differ.
    pub fn given(&self) -> usize {
        self.given.len()
    }

    /// Whether the disk is of a format with levels, however many there are.
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

    /// Refuses a passphrase more if all key slots are used, before it is made. Errors:
    /// [`Kind::Usage`].
    pub fn check_free_slot(&self) -> Result<()> {
        match &self.plan {
            Plan::One(_) => check_free_slot(&self.volume.unlocked),
            Plan::All { keyring, .. } => keyring.check_free_slot(),
        }
    }

    /// One passphrase more, for the deepest level that those given open. Errors: [`Kind::Exists`]
    /// if it works already, which [`Keys::write`] tells where one slot changes.
    pub fn add(&mut self, new: SecretVec) -> Result<()> {
        match &mut self.plan {
            Plan::One(change) => *change = Some(Change::Add(new)),
            Plan::All { keyring, .. } => keyring.add(self.volume.unlocked.level, new)?,
        }
        Ok(())
    }

    /// Another passphrase in place of the first that was given. Errors: as of [`Keys::add`].
    pub fn change(&mut self, new: SecretVec) -> Result<()> {
        match &mut self.plan {
            Plan::One(change) => *change = Some(Change::Replace(new)),
            Plan::All { keyring, .. } => keyring.change(&self.given[0], new)?,
        }
        Ok(())
    }

    /// One passphrase less, which is none of those given. Errors: [`Kind::Passphrase`] if it opens
    /// nothing, which [`Keys::write`] tells where one slot changes.
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
            // With a typing error here, a person would believe that a passphrase is gone which
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

    /// Refuses a level more before its passphrase is made. Errors: those of [`Keys::add_level`].
    pub fn check_new_level(&self) -> Result<()> {
        let Volume { parameters, unlocked, .. } = &self.volume;
        if !matches!(self.plan, Plan::All { .. }) || !parameters.has_levels() {
            return Err(no_levels(&unlocked.header));
        }
        // Deniability contract: it says how many levels there are.
        parameters.check_levels(unlocked.master_keys.len() + 1).map_err(Error::private)
    }

    /// One level more, empty, with this passphrase. Errors: [`Kind::Usage`] unless all slots of a
    /// disk with levels are rewritten, and if there cannot be as many levels; [`Kind::Exists`] if
    /// the passphrase works already.
    pub fn add_level(&mut self, passphrase: SecretVec) -> Result<()> {
        self.check_new_level()?;
        let unlocked = &mut self.volume.unlocked;
        let Plan::All { keyring, .. } = &mut self.plan else { return Err(no_levels(&unlocked.header)) };
        let level = unlocked.add_level(&SystemRandom::new()?)?;
        keyring.add(level, passphrase)
    }

    /// Writes the header, durably. Gives how many passphrases work now; nothing is written where
    /// nothing was to change.
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

/// Whether two passphrases are the same. How long that takes tells nothing of them.
pub fn same(a: &SecretVec, b: &SecretVec) -> bool {
    constant_time_eq(a.expose(), b.expose())
}

fn no_levels(header: &PublicHeader) -> Error {
    Error::new(Kind::Usage, "cannot add a level")
        .found(format!("the format {}", header.format))
        .expected("a disk of the format deniable or oblivious")
}
