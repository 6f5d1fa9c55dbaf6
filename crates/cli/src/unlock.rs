//! From a location and passphrases to what a disk is opened with.
//!
//! Unlocking and opening are two steps, because a process may fork between them: an open disk and a connection to
//! a cluster have threads and the random source has state, and none of these may exist on both sides of a fork.
//! The lock on a file crosses a fork; a connection is ended before it and made anew after it, and the header is
//! then compared with what was unlocked.

use crate::args::{HolderArgs, PassphraseArgs};
use crate::cluster::{self, Connection, Site, Target};
use crate::console::Console;
use crate::open_disk::{OnObjects, OpenDisk};
use crate::parameters::Parameters;
use crate::passphrase;
use lacuna_core::{Budget, Error, Kind, Result, Secret, SecretVec};
use lacuna_crypto::SystemRandom;
use lacuna_medium::{Access, FileMedium, Medium};
use lacuna_sealed::{ObjectDisk, ObjectOptions, ObjectParams, OpenOptions, Params, Sealed};
use lacuna_volume::{Location, PublicHeader, Unlocked};
use std::sync::Arc;

/// A medium or disk that is held, with its open header.
pub struct Volume {
    /// The medium of the header; for a file, the medium of everything.
    pub header: Arc<dyn Medium>,
    /// The open header.
    pub unlocked: Unlocked,
    /// The passphrases that opened it.
    pub passphrases: Vec<SecretVec>,
    /// The parameters of the format.
    pub parameters: Parameters,
    /// The connection with the lock, for a disk in RADOS.
    connection: Option<Connection>,
    location: Location,
    steal: bool,
}

/// Takes hold of the disk, then asks for passphrases, then opens the header: what can fail without a passphrase
/// fails before one is asked for.
pub fn unlock(
    location: &Location,
    holder: &HolderArgs,
    access: Access,
    args: &PassphraseArgs,
    console: Console,
) -> Result<Volume> {
    unlock_with(location, holder, access, console, |shown| passphrase::to_open(args, shown))
}

/// [`unlock`] with passphrases from `ask`, which is given the location in words.
pub fn unlock_with(
    location: &Location,
    holder: &HolderArgs,
    access: Access,
    console: Console,
    ask: impl FnOnce(&str) -> Result<Vec<SecretVec>>,
) -> Result<Volume> {
    let (header, connection) = match Site::held(location, holder)? {
        Site::File(path) => (Arc::new(FileMedium::open(path, access)?) as Arc<dyn Medium>, None),
        Site::Pool(target) => {
            let (connection, header) = reach(&target, location, holder.steal)?;
            (header, Some(connection))
        }
    };
    let naming = |e: Error| e.context(location);
    let (public, _) = lacuna_volume::read_public(&*header).map_err(naming)?;
    Parameters::of(&public, location).map_err(naming)?;
    let passphrases = ask(&location.to_string())?;
    let unlocked = lacuna_volume::open(&*header, &passphrases).map_err(naming)?;
    for note in &unlocked.notes {
        console.note(&format!("{location}: {note}"));
    }
    let parameters = Parameters::of(&unlocked.header, location).map_err(naming)?;
    Ok(Volume {
        header,
        unlocked,
        passphrases,
        parameters,
        connection,
        location: location.clone(),
        steal: holder.steal,
    })
}

/// Connects to a disk that is there and takes the lock on it; a snapshot, which nobody writes, needs none.
fn reach(target: &Target, location: &Location, steal: bool) -> Result<(Connection, Arc<dyn Medium>)> {
    let mut connection = Connection::open(target)?;
    let header = connection.header()?;
    match target.snapshot() {
        None => connection.hold(steal)?,
        Some(name) => {
            let found = lacuna_volume::read_public(&*header)
                .and_then(|(public, _)| cluster::snapshot(&connection, public.uuid, name));
            found.map(drop).map_err(|e| e.context(location))?;
        }
    }
    Ok((connection, header))
}

/// What it takes to open the disk. May cross a fork; the lock on a file crosses with it.
pub struct Key {
    place: Place,
    master: Secret<32>,
    uuid: [u8; 16],
}

enum Place {
    Flat { medium: Arc<dyn Medium>, params: Params },
    Objects(Box<Objects>),
}

struct Objects {
    target: Target,
    location: Location,
    steal: bool,
    params: ObjectParams,
    /// As it was unlocked.
    header: PublicHeader,
    /// None if a fork is to come.
    connection: Option<Connection>,
}

impl Volume {
    /// Forgets the passphrases and keeps what opens the disk, in a form that a fork may split if one is to come.
    pub fn into_key(self, forks: bool) -> Result<Key> {
        let Volume { header: medium, unlocked, parameters, connection, location, steal, .. } = self;
        let master = unlocked.master_keys.into_iter().next();
        let master = master.ok_or_else(|| Error::new(Kind::Other, "the header gave no key"))?;
        let uuid = unlocked.header.uuid.0;
        let place = match (parameters, connection) {
            (Parameters::Flat(params), _) => Place::Flat { medium, params },
            (Parameters::Objects(params), Some(connection)) => Place::Objects(Box::new(Objects {
                target: connection.target().clone(),
                location,
                steal,
                params,
                header: unlocked.header,
                connection: (!forks).then_some(connection),
            })),
            (Parameters::Objects(_), None) => unreachable!("a disk on objects is reached over a connection"),
        };
        Ok(Key { place, master, uuid })
    }
}

/// How a disk is opened.
#[derive(Clone, Copy)]
pub struct Opening {
    /// Refuse writes.
    pub read_only: bool,
    /// Memory for all caches.
    pub budget: Budget,
    /// Acknowledge writes when they are durable.
    pub write_through: bool,
}

impl Key {
    /// Opens the disk, and first finishes what a crash interrupted.
    pub fn open(self, opening: Opening) -> Result<OpenDisk> {
        let Opening { read_only, budget, write_through } = opening;
        // Locks on memory do not cross a fork: this copy is locked in the process that goes on.
        let master = self.master.clone();
        let random = Arc::new(SystemRandom::new()?);
        match self.place {
            Place::Flat { medium, params } => {
                let options = OpenOptions { budget, read_only, background: true, random };
                Sealed::open(medium, &params, &master, &self.uuid, options).map(OpenDisk::Flat)
            }
            Place::Objects(mut objects) => {
                let connection = objects.connect()?;
                let options = ObjectOptions {
                    budget,
                    read_only: read_only || objects.target.snapshot().is_some(),
                    background: true,
                    write_through,
                    snapshot: objects.target.snapshot().map(str::to_owned),
                    random,
                };
                let stores = connection.stores(objects.header.uuid)?;
                let disk = ObjectDisk::open(stores, &objects.params, &master, &self.uuid, options)
                    .map_err(|e| e.context(&objects.location))?;
                let prefix = cluster::data_prefix(objects.header.uuid);
                Ok(OpenDisk::Objects(OnObjects::new(disk, prefix, connection)))
            }
        }
    }
}

impl Objects {
    /// The connection that was kept, or one made anew to a disk that must not have changed.
    fn connect(&mut self) -> Result<Connection> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let (connection, header) = reach(&self.target, &self.location, self.steal)?;
        let (public, _) = lacuna_volume::read_public(&*header).map_err(|e| e.context(&self.location))?;
        if public == self.header {
            return Ok(connection);
        }
        Err(Error::new(Kind::Changed, format!("cannot open {}", self.location))
            .found("a header that another client has rewritten since it was unlocked")
            .remedy("try again"))
    }
}

/// How a medium is opened for a disk that is, or is not, to be written.
pub fn access(read_only: bool) -> Access {
    if read_only { Access::Read } else { Access::Write }
}
