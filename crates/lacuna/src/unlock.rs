//! From a location and passphrases to what a disk is opened with.
//!
//! Unlocking and opening are two steps, because a process may fork between them: an open disk and a connection to
//! a cluster have threads and the random source has state, and none of these may exist on both sides of a fork.
//! The lock on a file crosses a fork; a connection is ended before it and made anew after it, and the header is
//! then compared with what was unlocked.

use crate::claim::Claim;
use crate::cluster::{self, Connection, Holder, Site};
use crate::file_place::FilePlace;
use crate::observer::{Observer, during};
use crate::open_disk::OpenDisk;
use crate::opening::{Key, Objects, Opening, Place};
use crate::parameters::Parameters;
use crate::partition_table;
use lacuna_core::{Error, Kind, Result, SecretVec};
use lacuna_flash::HeaderMedium;
use lacuna_header::{DiskId, Location, PublicHeader, Unlocked};
use lacuna_medium::{Access, Medium};
use lacuna_nand::Flash;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a person should know who opens a disk with levels for writing: the same words whatever levels it has (deniability
/// contract).
pub const DEEPER_LEVELS: &str = "What lies deeper than the levels opened now is not protected: writing to the disk overwrites \
    it. If you have a passphrase of a deeper level, give that one.";

/// What is said of a disk with levels whose medium keeps the time of its last reading, whichever levels it has.
const ACCESS_TIMES: &str = "the access time of the file will show when the disk was last read, whichever level that was \
    for: the system lets only the owner of a file prevent it. Own the file, or mount the file system that holds it with \
    `noatime`.";

/// What is said of a disk with levels, whichever it has, where the system gives no second descriptor for reads that leave nothing behind.
const CACHED_READS: &str = "the system's cache may show what is read of the disk while it is open, whichever level that is for: its file     could not be opened once more. Allow more open files (`ulimit -n`), and mount /proc.";

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
    /// The file or device that is held.
    file: Option<OwnedFd>,
    /// What is left of the disk is to be read.
    rescue: bool,
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
    let held = Held::take(location, holder, (access, false), observer)?;
    let claims = held.connection.is_none() && access == Access::Write;
    unlock_in(held, (location, holder), claims, observer, ask)
}

/// [`unlock`] for reading of a disk whose medium is damaged or was cut short. It is opened with what is left of it: a block that cannot
/// be read, or does not verify, fails alone.
///
/// Errors: those of [`unlock`]; [`Kind::Corrupt`] where no copy of the header is whole.
pub fn unlock_to_rescue(
    location: &Location,
    holder: &Holder,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, Opener<'_>) -> Result<Opened>,
) -> Result<Volume> {
    let held = Held::take(location, holder, (Access::Read, true), observer)?;
    let volume = unlock_in(held, (location, holder), false, observer, ask)?;
    Ok(Volume { rescue: true, ..volume })
}

/// A medium or disk that is held, by whatever means.
struct Held {
    header: Arc<dyn Medium>,
    flash: Option<Arc<dyn Flash>>,
    connection: Option<Connection>,
    file: Option<OwnedFd>,
    /// Whether reading it leaves a trace.
    touches: bool,
}

impl Held {
    /// Takes hold of the disk at a location; to `rescue` it, of whatever is left of it.
    fn take(
        location: &Location,
        holder: &Holder,
        (access, rescue): (Access, bool),
        observer: &dyn Observer,
    ) -> Result<Held> {
        let (mut touches, mut flash, mut file) = (false, None, None);
        let (header, connection) = match Site::of(location, &holder.cluster) {
            Site::File(place) => {
                let medium = place.open(access)?;
                // After a failed sync the system's cache may hold a header that the medium does not.
                medium.forget_cached()?;
                if access == Access::Write {
                    partition_table::refuse(&medium).map_err(|e| e.context(location))?;
                }
                touches = medium.touches_access_times();
                file = Some(medium.path_only()?);
                (Arc::new(medium) as Arc<dyn Medium>, None)
            }
            Site::Flash(place) => {
                let (opened, held) = if rescue { place.open_to_rescue()? } else { place.open(access)? };
                (flash, file) = (Some(opened.clone()), Some(held));
                (Arc::new(HeaderMedium::new(opened)) as Arc<dyn Medium>, None)
            }
            Site::Pool(target) => {
                // Nothing is taken from another client before the passphrase has opened the header.
                let (mut connection, header) = cluster::look(&target, location)?;
                if !holder.steal {
                    cluster::hold(&mut connection, false, observer)?;
                }
                (header, Some(connection))
            }
        };
        Ok(Held { header, flash, connection, file, touches })
    }
}

/// The rest of [`unlock`]. `claims`: the disk is to be claimed for this process.
fn unlock_in(
    Held { header, flash, mut connection, file, touches }: Held,
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
        parameters.check_length(header.len(), location)?;
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
    // The claim is on the disk that was looked at.
    if unlocked.header.uuid != public.uuid {
        return Err(Error::new(Kind::Changed, format!("cannot open {location}"))
            .found("the header of another disk than a moment ago")
            .remedy("try again"));
    }
    let parameters = Parameters::of(&unlocked.header, location).map_err(naming)?;
    // Where part of the disk is gone, no copy is written to the end.
    let whole = header.len() >= parameters.end();
    for note in unlocked.notes.iter().map(|note| format!("{location}: {note}")) {
        if whole { observer.damaged_copy(&note) } else { observer.note(&note) }
    }
    if parameters.has_levels() && touches {
        observer.note(ACCESS_TIMES);
    }
    if parameters.has_levels()
        && let Err(e) = header.expect_discreet_reads()
    {
        observer.note(&format!("{CACHED_READS} ({})", e.finding()));
    }
    if let Some(connection) = connection.as_mut().filter(|_| holder.steal) {
        cluster::hold(connection, true, observer)?;
        cluster::check_unchanged(&*header, &unlocked.header, location)?;
    }
    Ok(Volume {
        header,
        unlocked,
        passphrases,
        parameters,
        flash,
        connection,
        claim,
        file,
        rescue: false,
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
    let held = Held { header, flash: None, connection: None, file: None, touches: false };
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

impl Volume {
    /// Refuses a snapshot, whose header is that of the disk, which another client may hold.
    pub(crate) fn refuse_snapshot(&self, verb: &str) -> Result<()> {
        cluster::refuse_snapshot(&self.location, verb)
    }

    /// What a vault needs of it: the medium of the header, the open header, and the claim.
    pub(crate) fn into_held(self) -> (Arc<dyn Medium>, Unlocked, Option<Arc<Claim>>) {
        (self.header, self.unlocked, self.claim)
    }

    /// By which its owner knows the disk again.
    pub fn id(&self) -> DiskId {
        self.unlocked.id()
    }

    /// The file or device that is held, opened as a path alone: it neither reads nor locks, and is the same one whatever is at the
    /// location by now. None in a pool, and when it was taken.
    pub fn take_file(&mut self) -> Option<OwnedFd> {
        self.file.take()
    }

    /// Forgets the passphrases and keeps what opens the disk, in a form that a fork may split if one is to come.
    pub fn into_key(self, forks: bool) -> Result<Key> {
        let Volume {
            header: medium,
            unlocked,
            parameters,
            flash,
            connection,
            claim,
            location,
            steal,
            rescue,
            ..
        } = self;
        let id = unlocked.id();
        let masters = unlocked.master_keys;
        let uuid = unlocked.header.uuid.0;
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
        Ok(Key { place, claim, has_levels, masters, id, uuid, rescue, location })
    }
}

/// The refusal to use a vault as a disk.
fn not_a_disk(location: &Location) -> Error {
    Error::new(Kind::Usage, format!("cannot use {location} as a disk"))
        .found("a vault, which is a file system and has no blocks to serve")
        .expected("a disk")
        .remedy("open it as a vault: it is mounted then")
}

/// How a medium is opened for a disk that is, or is not, to be written.
fn access(read_only: bool) -> Access {
    if read_only { Access::Read } else { Access::Write }
}

#[cfg(test)]
#[path = "unlock_tests.rs"]
mod tests;
