//! From a location and passphrases to what a disk is opened with.
//!
//! Unlocking and opening are two steps, because a process may fork between them: [`Sealed`] has threads and the
//! random source has state, and neither may exist on both sides of a fork.

use crate::args::PassphraseArgs;
use crate::console::Console;
use crate::passphrase;
use lacuna_core::{Budget, Error, Kind, Result, Secret, SecretVec};
use lacuna_crypto::SystemRandom;
use lacuna_medium::{Access, FileMedium};
use lacuna_sealed::{OpenOptions, Params, Sealed};
use lacuna_volume::{FormatId, Location, PublicHeader, Unlocked};
use std::path::Path;
use std::sync::Arc;

/// The path of a location; this build has no other kind.
pub fn path_of(location: &Location) -> Result<&Path> {
    location.path().ok_or_else(|| {
        Error::new(Kind::Usage, format!("cannot use the location {location}"))
            .expected("the path of a file or block device")
    })
}

/// A locked medium with its open header.
pub struct Volume {
    /// The medium, held against other processes.
    pub medium: FileMedium,
    /// The open header.
    pub unlocked: Unlocked,
    /// The passphrases that opened it.
    pub passphrases: Vec<SecretVec>,
    /// The parameters of the format.
    pub params: Params,
}

/// Takes hold of the medium, then asks for passphrases, then opens the header: what can fail without a
/// passphrase fails before one is asked for.
pub fn unlock(
    location: &Location,
    access: Access,
    args: &PassphraseArgs,
    console: Console,
) -> Result<Volume> {
    unlock_with(location, access, console, |shown| passphrase::to_open(args, shown))
}

/// [`unlock`] with passphrases from `ask`, which is given the location in words.
pub fn unlock_with(
    location: &Location,
    access: Access,
    console: Console,
    ask: impl FnOnce(&str) -> Result<Vec<SecretVec>>,
) -> Result<Volume> {
    let medium = FileMedium::open(path_of(location)?, access)?;
    let naming = |e: Error| e.context(location);
    let (public, _) = lacuna_volume::read_public(&medium).map_err(naming)?;
    params_of(&public).map_err(naming)?;
    let passphrases = ask(&location.to_string())?;
    let unlocked = lacuna_volume::open(&medium, &passphrases).map_err(naming)?;
    for note in &unlocked.notes {
        console.note(&format!("{location}: {note}"));
    }
    let params = params_of(&unlocked.header).map_err(naming)?;
    Ok(Volume { medium, unlocked, passphrases, params })
}

/// The parameters in a header of the sealed format.
pub fn params_of(header: &PublicHeader) -> Result<Params> {
    if header.format != FormatId::SEALED {
        return Err(Error::new(Kind::NotFound, "cannot use this disk")
            .found(format!("the format {}", header.format))
            .expected(format!("a format that this build knows: {}", FormatId::SEALED))
            .remedy("use a version of lacuna that knows it"));
    }
    Params::parse(&header.params)
}

/// What it takes to open the disk. May cross a fork; the lock on the medium crosses with it.
pub struct Key {
    medium: FileMedium,
    params: Params,
    master: Secret<32>,
    uuid: [u8; 16],
}

impl Volume {
    /// Forgets the passphrases and keeps what opens the disk.
    pub fn into_key(self) -> Result<Key> {
        let Volume { medium, unlocked, params, .. } = self;
        let master = unlocked.master_keys.into_iter().next();
        let master = master.ok_or_else(|| Error::new(Kind::Other, "the header gave no key"))?;
        Ok(Key { medium, params, master, uuid: unlocked.header.uuid.0 })
    }
}

impl Key {
    /// Opens the disk, and first finishes what a crash interrupted.
    pub fn open(self, read_only: bool, budget: Budget) -> Result<Sealed> {
        // Locks on memory do not cross a fork: this copy is locked in the process that goes on.
        let master = self.master.clone();
        let options =
            OpenOptions { budget, read_only, background: true, random: Arc::new(SystemRandom::new()?) };
        Sealed::open(Arc::new(self.medium), &self.params, &master, &self.uuid, options)
    }
}

/// How a medium is opened for a disk that is, or is not, to be written.
pub fn access(read_only: bool) -> Access {
    if read_only { Access::Read } else { Access::Write }
}
