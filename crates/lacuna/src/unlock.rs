//! From a location and passphrases to what a disk is opened with.
//!
//! Unlocking and opening are two steps, because a process may fork between them: an open disk and a connection to
//! a cluster have threads and the random source has state, and none of these may exist on both sides of a fork.
//! The lock on a file crosses a fork; a connection is ended before it and made anew after it, and the header is
//! then compared with what was unlocked.

use crate::claim::Claim;
use crate::cluster::{self, Connection, Holder, Site, Target};
use crate::file_place::FilePlace;
use crate::growing::{Growing, Opener as Reopener};
use crate::held_header::HeldHeader;
use crate::observer::{Observer, Silent, during};
use crate::open_disk::{Engine, OnFlash, OnObjects, OpenDisk};
use crate::parameters::Parameters;
use crate::partition_table;
use lacuna_core::{Budget, Error, Kind, Result, Secret, SecretVec, SystemClock};
use lacuna_crypto::SystemRandom;
use lacuna_deniable::Params as DeniableParams;
use lacuna_flash::{
    FlashDisk, HeaderMedium, OpenOptions as FlashOptions, Params as FlashParams, Policy as PurgePolicy,
};
use lacuna_header::{FormatId, Location, PublicHeader, Unlocked, Uuid};
use lacuna_levels::{LevelFormat, Masters, OpenOptions as LevelOptions, Randomness};
use lacuna_medium::{Access, Medium};
use lacuna_nand::Flash;
use lacuna_oblivious::Params as ObliviousParams;
use lacuna_sealed::Params;
use lacuna_sealed_objects::{ObjectDisk, ObjectOptions, ObjectParams};
use std::sync::Arc;
use std::time::Duration;

/// What a person should know who opens a disk with levels for writing: the same words whatever levels it has (deniability
/// contract).
pub const DEEPER_LEVELS: &str = "What lies deeper than the levels opened now is not protected: writing to the disk overwrites \
    it. If you have a passphrase of a deeper level, give that one.";

/// What is said of a disk with levels whose medium keeps the time of its last reading, whichever levels it has.
const ACCESS_TIMES: &str = "the access time of the file will show when the disk was last read, whichever level that was \
    for: the system lets only the owner of a file prevent it. Own the file, or mount the file system that holds it with \
    `noatime`.";

/// A medium or disk that is held, with its open header.
pub struct Volume {
    /// The medium of the header; for a file, the medium of everything. Of a snapshot it is the header of the disk, which must not
    /// be written: nobody holds the disk then.
    pub header: Arc<dyn Medium>,
    /// The open header.
    pub unlocked: Unlocked,
    /// The passphrases that opened it.
    pub passphrases: Vec<SecretVec>,
    /// The parameters of the format.
    pub parameters: Parameters,
    /// For a disk on flash.
    flash: Option<Arc<dyn Flash>>,
    /// The connection with the lock, for a disk in RADOS.
    connection: Option<Connection>,
    /// Of a disk in a file that is unlocked for writing.
    claim: Option<Arc<Claim>>,
    location: Location,
    steal: bool,
}

/// An open header, with the passphrases that opened it in the order in which they were given.
pub type Opened = (Unlocked, Vec<SecretVec>);

/// Opens a header with passphrases: all of them must open something.
pub type Opener<'a> = &'a dyn Fn(&[SecretVec]) -> Result<Unlocked>;

/// Takes hold of the disk, then gets passphrases, then opens the header: what can fail without a passphrase fails before `ask` is
/// called. `ask` is given what the header says without one, and the way to open the header, which it may try several times.
///
/// Errors: [`Kind::Passphrase`], [`Kind::Busy`] while another process or client has the disk, [`Kind::NotFound`],
/// [`Kind::Corrupt`], [`Kind::Usage`] for writing to what may be a whole device with the disk as its last partition, and what `ask`
/// says.
pub fn unlock(
    location: &Location,
    holder: &Holder,
    access: Access,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, Opener<'_>) -> Result<Opened>,
) -> Result<Volume> {
    let (mut touches, mut flash) = (false, None);
    let (header, connection) = match Site::of(location, &holder.cluster) {
        Site::File(place) => {
            let medium = place.open(access)?;
            // After a failed sync the system's cache may hold a header that the medium does not.
            medium.forget_cached()?;
            if access == Access::Write {
                partition_table::refuse(&medium).map_err(|e| e.context(location))?;
            }
            touches = medium.touches_access_times();
            (Arc::new(medium) as Arc<dyn Medium>, None)
        }
        Site::Flash(place) => {
            let opened = flash.insert(place.open(access)?);
            (Arc::new(HeaderMedium::new(opened.clone())) as Arc<dyn Medium>, None)
        }
        Site::Pool(target) => {
            // Nothing is taken from another client before the passphrase has opened the header.
            let (mut connection, header) = look(&target, location)?;
            if !holder.steal {
                hold(&mut connection, false, observer)?;
            }
            (header, Some(connection))
        }
    };
    let claims = connection.is_none() && access == Access::Write;
    let held = Held { header, flash, connection, touches };
    unlock_in(held, (location, holder), claims, observer, ask)
}

/// A medium or disk that is held, by whatever means.
struct Held {
    header: Arc<dyn Medium>,
    flash: Option<Arc<dyn Flash>>,
    connection: Option<Connection>,
    /// Whether reading it leaves a trace.
    touches: bool,
}

/// The rest of [`unlock`]. `claims`: the disk is to be claimed for this process.
fn unlock_in(
    Held { header, flash, mut connection, touches }: Held,
    (location, holder): (&Location, &Holder),
    claims: bool,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, Opener<'_>) -> Result<Opened>,
) -> Result<Volume> {
    let naming = |e: Error| e.context(location);
    let (public, _) = lacuna_header::read_public(&*header).map_err(naming)?;
    let parameters = Parameters::of(&public, location).map_err(naming)?;
    if claims && parameters.has_data_beside_header() {
        // Copies of the header are not written to what is no whole disk.
        parameters.check_length(header.len(), public.version, location)?;
    }
    let claim = if claims {
        Claim::take(public.uuid, &format!("cannot open {location}"), observer)?.map(Arc::new)
    } else {
        None
    };
    let trying = format!("trying the passphrase of {location}");
    let open = |passphrases: &[SecretVec]| {
        during(observer, &trying, || lacuna_header::open(&*header, passphrases)).map_err(naming)
    };
    let (unlocked, passphrases) = ask(&public, &open)?;
    let parameters = Parameters::of(&unlocked.header, location).map_err(naming)?;
    // Where part of the disk is gone, no copy is written to the end.
    let whole = header.len() >= parameters.end();
    for note in unlocked.notes.iter().map(|note| format!("{location}: {note}")) {
        if whole { observer.damaged_copy(&note) } else { observer.note(&note) }
    }
    if parameters.has_levels() && touches {
        observer.note(ACCESS_TIMES);
    }
    if let Some(connection) = connection.as_mut().filter(|_| holder.steal) {
        hold(connection, true, observer)?;
        check_unchanged(&*header, &unlocked.header, location)?;
    }
    Ok(Volume {
        header,
        unlocked,
        passphrases,
        parameters,
        flash,
        connection,
        claim,
        location: location.clone(),
        steal: holder.steal,
    })
}

/// [`unlock`] of the header of a disk that another process has open, and has it read and written for this one. What is given
/// back opens no disk.
pub(crate) fn unlock_held(
    location: &Location,
    header: Arc<dyn Medium>,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, Opener<'_>) -> Result<Opened>,
) -> Result<Volume> {
    let held = Held { header, flash: None, connection: None, touches: false };
    unlock_in(held, (location, &Holder::default()), false, observer, ask)
}

/// Opens a disk: the deepest level that one of the passphrases opens decides how many levels are open. A disk that another
/// process has open is refused; a copy or snapshot of it can be read.
///
/// Errors: those of [`unlock`] and [`Key::open`].
pub fn open(
    location: &Location,
    passphrases: Vec<SecretVec>,
    opening: Opening,
    observer: &dyn Observer,
) -> Result<Arc<OpenDisk>> {
    let given = |_: &PublicHeader, open: Opener<'_>| Ok((open(&passphrases)?, passphrases));
    let volume = unlock(location, &Holder::default(), access(opening.read_only), observer, given)?;
    volume.into_key(false)?.open(opening).map(Arc::new)
}

/// What the header of a disk in a file says without a passphrase. None of what is no file, and where there is no header that says
/// anything: whatever opens the disk then says why.
///
/// Errors: what keeps the header from being read.
pub fn peek(location: &Location) -> Result<Option<Parameters>> {
    let Location::Path(path) = location else { return Ok(None) };
    // Without a hold: another program may have it open.
    let seen = FilePlace::Named(path).look().and_then(|look| {
        let (public, _) = lacuna_header::read_public_with(look.len, &|offset, buf| look.read(offset, buf))?;
        Parameters::of(&public, location)
    });
    match seen {
        Ok(parameters) => Ok(Some(parameters)),
        Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt) => Ok(None),
        Err(e) => Err(e.context(location)),
    }
}

/// Connects to a disk that is there.
fn look(target: &Target, location: &Location) -> Result<(Connection, Arc<dyn Medium>)> {
    let connection = Connection::open(target)?;
    let header = connection.header()?;
    if let Some(name) = target.snapshot() {
        let found = lacuna_header::read_public(&*header)
            .and_then(|(public, _)| cluster::snapshot(&connection, public.uuid, name));
        found.map(drop).map_err(|e| e.context(location))?;
    }
    Ok((connection, header))
}

/// Takes the lock on a disk; a snapshot, which nobody writes, needs none.
fn hold(connection: &mut Connection, steal: bool, observer: &dyn Observer) -> Result<()> {
    if connection.target().snapshot().is_some() { Ok(()) } else { connection.hold(steal, observer) }
}

/// Refuses a header that is no longer what was unlocked.
fn check_unchanged(header: &dyn Medium, unlocked: &PublicHeader, location: &Location) -> Result<()> {
    let (public, _) = lacuna_header::read_public(header).map_err(|e| e.context(location))?;
    if public == *unlocked {
        return Ok(());
    }
    Err(Error::new(Kind::Changed, format!("cannot open {location}"))
        .found("a header that another client has rewritten since it was unlocked")
        .remedy("try again"))
}

/// What it takes to open the disk. May cross a fork; the lock on a file crosses with it.
pub struct Key {
    place: Place,
    claim: Option<Arc<Claim>>,
    has_levels: bool,
    /// The keys of the opened levels, from 0 up; formats without levels have one.
    masters: Vec<Secret<32>>,
    uuid: [u8; 16],
    /// The version of the header.
    version: u32,
    /// For errors.
    location: Location,
}

enum Place {
    Flat { medium: Arc<dyn Medium>, params: Params },
    Deniable { medium: Arc<dyn Medium>, params: DeniableParams },
    Oblivious { medium: Arc<dyn Medium>, params: ObliviousParams },
    Objects(Box<Objects>),
    Flash { flash: Arc<dyn Flash>, params: FlashParams },
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
    /// Refuses a snapshot, whose header is that of the disk, which another client may hold.
    pub(crate) fn refuse_snapshot(&self, verb: &str) -> Result<()> {
        cluster::refuse_snapshot(&self.location, verb)
    }

    /// What a vault needs of it: the medium of the header, the open header, and the claim.
    pub(crate) fn into_held(self) -> (Arc<dyn Medium>, Unlocked, Option<Arc<Claim>>) {
        (self.header, self.unlocked, self.claim)
    }

    /// Forgets the passphrases and keeps what opens the disk, in a form that a fork may split if one is to come.
    pub fn into_key(self, forks: bool) -> Result<Key> {
        let Volume {
            header: medium, unlocked, parameters, flash, connection, claim, location, steal, ..
        } = self;
        let masters = unlocked.master_keys;
        let uuid = unlocked.header.uuid.0;
        let version = unlocked.header.version;
        let has_levels = parameters.has_levels();
        let place = match (parameters, connection) {
            (Parameters::Flat(params), _) => Place::Flat { medium, params },
            (Parameters::Deniable(params), _) => Place::Deniable { medium, params },
            (Parameters::Oblivious(params), _) => Place::Oblivious { medium, params },
            (Parameters::Objects(params), Some(connection)) => Place::Objects(Box::new(Objects {
                target: connection.target().clone(),
                location: location.clone(),
                steal,
                params,
                header: unlocked.header,
                connection: (!forks).then_some(connection),
            })),
            (Parameters::Flash(params), _) => {
                Place::Flash { flash: flash.expect("a disk on flash is unlocked on flash"), params }
            }
            (Parameters::Vault(_), _) => return Err(not_a_disk(&location)),
            (Parameters::Objects(_), None) => unreachable!("a disk on objects is reached over a connection"),
        };
        Ok(Key { place, claim, has_levels, masters, uuid, version, location })
    }
}

/// The refusal to use a vault as a disk.
fn not_a_disk(location: &Location) -> Error {
    Error::new(Kind::Usage, format!("cannot use {location} as a disk"))
        .found("a vault, which is a file system and has no blocks to serve")
        .expected("a disk")
        .remedy("open it as a vault: it is mounted then")
}

/// Why a disk with levels acknowledges no write only when it is durable: in the same words whatever levels there are.
///
/// Deniability contract: what is hidden waits for a write to the medium that comes anyway, and must cause none.
pub fn no_write_through() -> Error {
    Error::new(Kind::Usage, "cannot write through here")
        .found("a disk with levels, whose hidden writes wait for writes that public ones cause, and must cause none")
        .expected("a disk of the format sealed")
        .remedy("leave it out, and flush (sync) after what must not be lost")
}

/// How a disk is opened.
#[derive(Clone, Copy)]
pub struct Opening {
    /// Refuse writes.
    pub read_only: bool,
    /// Memory for all caches.
    pub budget: Budget,
    /// Acknowledge writes when they are durable. Not for disks with levels.
    pub write_through: bool,
    /// How long something hidden waits for public writes on a disk that does not refresh itself.
    pub cover_timeout: Duration,
    /// When a disk on flash is purged unasked. Without it on request and before it is closed, and not else. A purge that was cut is
    /// finished at the opening in any case.
    pub purging: Option<PurgePolicy>,
}

impl Default for Opening {
    /// For reading and writing, with the usual memory, and a minute of patience for cover.
    fn default() -> Self {
        Opening {
            read_only: false,
            budget: Budget::default(),
            write_through: false,
            cover_timeout: Duration::from_secs(60),
            purging: Some(PurgePolicy::default()),
        }
    }
}

impl Opening {
    /// For a format with levels.
    fn of_levels(self, random: Arc<SystemRandom>) -> LevelOptions {
        LevelOptions {
            budget: self.budget,
            read_only: self.read_only,
            background: true,
            cover_timeout: self.cover_timeout,
            random: Randomness::of(random),
        }
    }
}

impl Key {
    /// Whether the disk is of a format with levels, however many are open.
    pub fn has_levels(&self) -> bool {
        self.has_levels
    }

    /// The format of the disk.
    pub fn format(&self) -> FormatId {
        match self.place {
            Place::Flat { .. } => FormatId::SEALED,
            Place::Objects(_) => FormatId::SEALED_OBJECTS,
            Place::Deniable { .. } => FormatId::DENIABLE,
            Place::Oblivious { .. } => FormatId::OBLIVIOUS,
            Place::Flash { .. } => FormatId::FLASH,
        }
    }

    /// Whether the disk keeps large blocks of memory for as long as it is open: one with levels, for its stripes and batches,
    /// and one in RADOS, whose client library copies all that is written.
    pub fn keeps_large_memory(&self) -> bool {
        self.has_levels || matches!(self.place, Place::Objects(_))
    }

    /// How many levels are going to be open; 1 where there are none.
    pub fn levels(&self) -> usize {
        self.masters.len()
    }

    /// Opens the disk, and first finishes what a crash interrupted.
    pub fn open(self, opening: Opening) -> Result<OpenDisk> {
        self.claim.iter().for_each(|claim| claim.renew());
        let Opening { read_only, budget, write_through, .. } = opening;
        // Locks on memory do not cross a fork: this copy is locked in the process that goes on.
        let masters: Vec<Secret<32>> = self.masters.clone();
        let master = masters.first().ok_or_else(|| Error::new(Kind::Other, "the header gave no key"))?;
        let keys = Masters { keys: &masters, uuid: &self.uuid };
        let random = Arc::new(SystemRandom::new()?);
        if self.has_levels && write_through {
            return Err(no_write_through());
        }
        let held = |medium: &Arc<dyn Medium>| HeldHeader::new(Arc::clone(medium), self.version, read_only);
        let whole = |medium: &Arc<dyn Medium>, parameters: Parameters| {
            parameters.check_length(medium.len(), self.version, &self.location)
        };
        let (engine, header) = match self.place {
            Place::Flat { medium, params } => {
                whole(&medium, Parameters::Flat(params))?;
                let (header, master, uuid) = (held(&medium), master.clone(), self.uuid);
                let opener = Reopener { master, uuid, budget, read_only, write_through, random };
                (Growing::open(medium, &params, opener).map(Engine::Flat), header)
            }
            Place::Deniable { medium, params } => {
                whole(&medium, Parameters::Deniable(params))?;
                let header = held(&medium);
                (with_levels(&params, medium, keys, opening.of_levels(random)), header)
            }
            Place::Oblivious { medium, params } => {
                whole(&medium, Parameters::Oblivious(params))?;
                let header = held(&medium);
                (with_levels(&params, medium, keys, opening.of_levels(random)), header)
            }
            Place::Flash { flash, params } => {
                let options = FlashOptions {
                    budget,
                    read_only,
                    policy: opening.purging,
                    clock: Arc::new(SystemClock),
                    random,
                };
                let header =
                    HeldHeader::new(Arc::new(HeaderMedium::new(flash.clone())), self.version, read_only);
                let disk = FlashDisk::open(flash, &params, master, &options)
                    .map_err(|e| e.context(&self.location))?;
                (Ok(Engine::Flash(OnFlash { disk, write_through })), header)
            }
            Place::Objects(mut objects) => {
                let connection = objects.connect()?;
                let read_only = read_only || objects.target.snapshot().is_some();
                let header = HeldHeader::new(connection.header()?, self.version, read_only);
                let options = ObjectOptions {
                    budget,
                    read_only,
                    background: true,
                    write_through,
                    snapshot: objects.target.snapshot().map(str::to_owned),
                    random,
                };
                let stores = connection.stores(objects.header.uuid)?;
                let disk = ObjectDisk::open(stores, &objects.params, master, &self.uuid, options)
                    .map_err(|e| e.context(&objects.location))?;
                let prefix = cluster::data_prefix(objects.header.uuid);
                (Ok(Engine::Objects(OnObjects::new(disk, prefix, connection))), header)
            }
        };
        let engine = engine.map_err(|e| e.context(&self.location))?;
        Ok(OpenDisk::new(Uuid(self.uuid), engine, header, self.claim))
    }
}

impl Objects {
    /// The connection that was kept, or one made anew to a disk that must not have changed.
    fn connect(&mut self) -> Result<Connection> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let (mut connection, header) = look(&self.target, &self.location)?;
        // The process that unlocked the disk took it over, and has told.
        hold(&mut connection, self.steal, &Silent)?;
        check_unchanged(&*header, &self.header, &self.location)?;
        Ok(connection)
    }
}

/// How a medium is opened for a disk that is, or is not, to be written.
fn access(read_only: bool) -> Access {
    if read_only { Access::Read } else { Access::Write }
}

/// Opens a disk with levels. Its errors are private.
fn with_levels(
    params: &impl LevelFormat,
    medium: Arc<dyn Medium>,
    masters: Masters<'_>,
    options: LevelOptions,
) -> Result<Engine> {
    params.open(medium, masters, options).map(Engine::with_levels).map_err(Error::private)
}
