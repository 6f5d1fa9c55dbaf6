//! Unlocks a disk: from a location and passphrases to an [`UnlockedDisk`] for opening it.
//!
//! Unlocking and opening are two steps, because a process may fork between them: an open disk and a
//! connection to a cluster have threads, and the random source has state, and none of these may
//! exist on both sides of a fork. The lock on a file survives a fork. A connection is closed before
//! it and opened again after it, and the header is then compared with the unlocked one.

use crate::backing::held_disk::HeldDisk;
use crate::backing::rados::{ReconnectInfo, check_header_unchanged};
use crate::backing::{Backing, DiskRef, FileLocation, PoolAccess, refuse_snapshot};
use crate::foreign;
use crate::format::Params;
use crate::formats::table;
use crate::header::copy_remedy::CopyRemedy;
use crate::inspect::examine::remedy_for;
use crate::observer::{Observer, run_step};
use crate::opening::claim::DiskClaim;
use crate::opening::close_marks::CloseMarks;
use crate::opening::disk::OpenDisk;
use crate::opening::open_disk_options::OpenDiskOptions;
use crate::opening::unlocked_disk::{DiskAccess, UnlockedDisk, UnlockedIdentity};
use lacuna_contracts::{Error, Kind, Result, SecretVec};
use lacuna_header::{DiskId, Location, OpenHeader, PublicHeader};
use lacuna_medium::{Access, Medium};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The note about a disk with levels on a medium that records the time of the last read. Its text
/// does not depend on the levels.
const ACCESS_TIME_NOTE: &str = "the access time of the file will show when the disk was last read, whichever level that was \
    for: the system lets only the owner of a file prevent it. Own the file, or mount the file system that holds it with \
    `noatime`.";

/// The note about a disk with levels, whatever levels it has, if the system refuses a second
/// descriptor for reads without traces in the cache.
const CACHED_READS_NOTE: &str = "the system's cache may show which blocks of the disk are read while it is \
    open, whichever level that is for: its file could not be opened once more. Allow more open files \
    (`ulimit -n`), and mount /proc.";

/// A held medium or disk, with its open header.
pub struct UnlockedHeader {
    /// The medium of the header; for a file, the medium of everything. For a snapshot it is the
    /// header of the disk, which must not be written: the disk is not held then.
    pub header: Arc<dyn Medium>,
    /// The open header.
    pub unlocked: OpenHeader,
    /// The passphrases that opened it.
    pub passphrases: Vec<SecretVec>,
    /// The parameters of the disk.
    pub parameters: Box<dyn Params>,
    /// The backing of the disk, with the lock on it. `None` for a disk that another process has
    /// open.
    backing: Option<Backing>,
    /// The claim of a disk in a file that is unlocked for writing.
    claim: Option<Arc<DiskClaim>>,
    /// The file or device that is held.
    file: Option<OwnedFd>,
    /// Whether `file` is a block device: the path may lead elsewhere by now.
    on_device: bool,
    /// Open a damaged disk, for reading.
    rescue: bool,
    /// Where to mark the disk when it was closed well.
    marks: Option<Arc<CloseMarks>>,
    location: Location,
    steal: bool,
}

/// An open header, with the passphrases that opened it in the given order.
pub type PassphraseMatch = (OpenHeader, Vec<SecretVec>);

/// Opens a header with passphrases: all of them must open something.
pub type HeaderOpener<'a> = &'a dyn Fn(&[SecretVec]) -> Result<OpenHeader>;

/// Holds the disk, then gets passphrases, then opens the header: all checks without a passphrase
/// are made before `ask` is called. `ask` gets the public header and a function that opens the
/// header, which it may call several times.
///
/// Errors: [`Kind::Passphrase`], [`Kind::Busy`] while another process or client has the disk,
/// [`Kind::NotFound`], [`Kind::Corrupt`], [`Kind::Usage`] for writing to a disk with content of
/// another program in the place of the first copy of its header, and all errors of `ask`.
pub fn unlock(
    location: &Location,
    pool_access: &PoolAccess,
    access: Access,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
) -> Result<UnlockedHeader> {
    unlock_to_serve(location, pool_access, access, None, observer, ask)
}

/// As [`unlock`], for a disk that is then used, rather than checked or changed in its header. With
/// `marks`, a disk without levels in a file is marked there when it was closed well, and the pages
/// of its file that the system has cached stay if it has such a mark. Errors: those of [`unlock`].
pub fn unlock_to_serve(
    location: &Location,
    pool_access: &PoolAccess,
    access: Access,
    marks: Option<CloseMarks>,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
) -> Result<UnlockedHeader> {
    let disk = DiskRef { location, pool_access };
    let held = disk.hold(access, marks.as_ref(), observer)?;
    let claims = held.connection().is_none() && access == Access::Write;
    let volume = unlock_held_disk(held, disk, claims, observer, ask)?;
    Ok(UnlockedHeader { marks: marks.map(Arc::new), ..volume })
}

/// As [`unlock`], for reading a disk on a damaged or truncated medium. The disk is later opened as
/// far as possible: a block that cannot be read or does not verify fails alone. Errors: those of
/// [`unlock`]; [`Kind::Corrupt`] if no copy of the header is intact.
pub fn unlock_to_rescue(
    location: &Location,
    pool_access: &PoolAccess,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
) -> Result<UnlockedHeader> {
    let disk = DiskRef { location, pool_access };
    let held = disk.hold_to_rescue(observer)?;
    let volume = unlock_held_disk(held, disk, false, observer, ask)?;
    Ok(UnlockedHeader { rescue: true, ..volume })
}

/// The rest of [`unlock`]. `claims`: claim the disk for this process.
fn unlock_held_disk(
    held: HeldDisk,
    disk: DiskRef<'_>,
    claims: bool,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
) -> Result<UnlockedHeader> {
    let DiskRef { location, pool_access } = disk;
    let header = &held.header;
    let naming = |e: Error| e.context(location);
    let (public, _) = lacuna_header::read_public(&**header)
        .map_err(|e| naming(foreign::named_in(e, &**header, location)))?;
    let parameters = table::parse(&public, location).map_err(naming)?;
    if claims && parameters.has_data_beside_header() {
        // Do not write copies of the header to an incomplete disk.
        parameters.check_length(header.len(), location)?;
    }
    let claim = if claims {
        let what = format!("cannot open {location}");
        DiskClaim::take(public.uuid, public.format, &what, observer)?.map(Arc::new)
    } else {
        None
    };
    let trying = format!("trying the passphrase of {location}");
    let open = |passphrases: &[SecretVec]| {
        run_step(observer, &trying, || lacuna_header::open(&**header, passphrases)).map_err(naming)
    };
    let (unlocked, passphrases) = ask(&public, &open)?;
    // The claim is for the disk with the first header.
    if unlocked.header.uuid != public.uuid {
        return Err(Error::new(Kind::Changed, format!("cannot open {location}"))
            .found("another header than at the first read")
            .hint("try again"));
    }
    let parameters = table::parse(&unlocked.header, location).map_err(naming)?;
    let remedy = match &held.backing {
        Some(_) => remedy_for(&unlocked.notes, &**header, location),
        // A process with the disk open for writing lends the copies of its header alone.
        None => CopyRemedy::Repair,
    };
    let notes = unlocked.notes.iter().map(|note| format!("{location}: {note}"));
    notes.for_each(|note| observer.damaged_copy(&note, &remedy));
    let has_levels = parameters.has_levels();
    if has_levels && held.updates_atime {
        observer.note(ACCESS_TIME_NOTE);
    }
    if has_levels && let Err(e) = header.expect_discreet_reads() {
        observer.note(&format!("{CACHED_READS_NOTE} ({})", e.summary()));
    }
    if let Some(connection) = held.connection().filter(|_| pool_access.steal) {
        connection.take_lock(true, observer)?;
        check_header_unchanged(&**header, &unlocked.header, location)?;
    }
    let HeldDisk { header, backing, file, on_device, .. } = held;
    Ok(UnlockedHeader {
        header,
        unlocked,
        passphrases,
        parameters,
        backing,
        claim,
        file,
        on_device,
        rescue: false,
        marks: None,
        location: location.clone(),
        steal: pool_access.steal,
    })
}

/// The header of a disk that another process has open; that process reads and writes it for this
/// one ([`HeaderLease`](crate::HeaderLease)).
pub struct LeasedHeader<'d> {
    /// The location of the disk.
    pub location: &'d Location,
    /// The medium of the header.
    pub medium: Arc<dyn Medium>,
}

/// As [`unlock`], for the header of a disk that another process has open. The result cannot open
/// the disk.
pub(crate) fn unlock_leased(
    disk: &LeasedHeader<'_>,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
) -> Result<UnlockedHeader> {
    let held = HeldDisk::of_leased_header(Arc::clone(&disk.medium));
    let pool_access = PoolAccess::default();
    unlock_held_disk(
        held,
        DiskRef { location: disk.location, pool_access: &pool_access },
        false,
        observer,
        ask,
    )
}

/// Opens a disk. The deepest level that one of the passphrases opens determines the number of open
/// levels. A disk that another process has open is refused; a copy or snapshot of it can be read.
/// Errors: those of [`unlock`] and [`UnlockedDisk::open`].
pub fn open(
    location: &Location,
    passphrases: Vec<SecretVec>,
    opening: OpenDiskOptions,
    observer: &dyn Observer,
) -> Result<Arc<OpenDisk>> {
    let given = |_: &PublicHeader, open: HeaderOpener<'_>| Ok((open(&passphrases)?, passphrases));
    let volume = unlock(location, &PoolAccess::default(), access_mode(opening.read_only), observer, given)?;
    volume.into_disk(false)?.open(opening).map(Arc::new)
}

/// The public parameters of a disk in a file. `None` if the location is not a path, or if there is
/// no valid header: an opening of the disk then reports the reason. Errors: if the header cannot be
/// read.
pub fn read_public_params(location: &Location) -> Result<Option<Box<dyn Params>>> {
    let Location::Path(path) = location else { return Ok(None) };
    // Without holding it: another program may have it open.
    let seen = FileLocation::Named(path).probe().and_then(|look| lacuna_header::read_public(&look));
    match seen.and_then(|(public, _)| table::parse(&public, location)) {
        Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt) => Ok(None),
        // Errors name the path.
        params => params.map(Some),
    }
}

impl UnlockedHeader {
    /// Refuses a snapshot. Its header is that of the disk, and another client may hold the disk.
    pub(crate) fn refuse_snapshot(&self, verb: &str) -> Result<()> {
        refuse_snapshot(&self.location, verb)
    }

    /// The length in bytes of the block device of the disk; `None` if it is not on a block device.
    pub(crate) fn device_len(&self) -> Option<u64> {
        self.on_device.then(|| self.header.len())
    }

    /// The parts for a vault: the medium of the header, the open header, and the claim.
    pub(crate) fn into_vault_parts(self) -> (Arc<dyn Medium>, OpenHeader, Option<Arc<DiskClaim>>) {
        (self.header, self.unlocked, self.claim)
    }

    /// The identity that lets the owner recognise the disk.
    pub fn id(&self) -> DiskId {
        self.unlocked.id()
    }

    /// The held file or device, opened as a path only: it neither reads nor locks, and it stays the
    /// same if the location changes. `None` in a pool, and after it was taken.
    pub fn take_file(&mut self) -> Option<OwnedFd> {
        self.file.take()
    }

    /// Drops the passphrases and keeps the keys, in a form that survives a fork if `forks` is set.
    ///
    /// Errors: [`Kind::Usage`] for a vault, [`Kind::Busy`] for a disk that another process has
    /// open.
    pub fn into_disk(self, forks: bool) -> Result<UnlockedDisk> {
        let UnlockedHeader {
            unlocked,
            parameters,
            backing,
            claim,
            on_device,
            location,
            steal,
            rescue,
            marks,
            ..
        } = self;
        if parameters.is_vault() {
            return Err(not_a_disk(&location));
        }
        let backing = backing.ok_or_else(|| {
            Error::new(Kind::Busy, format!("cannot open {location}"))
                .found("a disk that another process has open")
        })?;
        let (id, uuid) = (unlocked.id(), unlocked.header.uuid);
        let reach = match backing {
            Backing::Pool(connection) if forks => DiskAccess::AfterFork(Box::new(ReconnectInfo {
                pool_location: connection.location().clone(),
                location: location.clone(),
                steal,
                header: unlocked.header,
            })),
            held => DiskAccess::Held(held),
        };
        let masters = unlocked.master_keys;
        let identity = UnlockedIdentity { masters, id, uuid, on_device, claim, marks, location };
        Ok(UnlockedDisk { access: reach, parameters, rescue, identity })
    }
}

/// The error for a vault that is used as a disk.
fn not_a_disk(location: &Location) -> Error {
    Error::new(Kind::Usage, format!("cannot use {location} as a disk"))
        .found("a vault, which is a file system and has no blocks to serve")
        .expected("a disk")
        .hint("open it as a vault: it is mounted then")
}

/// The access to the medium of a disk that is opened read-only or for writing.
fn access_mode(read_only: bool) -> Access {
    if read_only { Access::Read } else { Access::Write }
}

#[cfg(test)]
#[path = "unlock_tests.rs"]
mod tests;
