//! Backup, check, restoration and repair of a disk's header.

pub(crate) mod copy_remedy;
pub(crate) mod header_lease;
pub(crate) mod stale_headers;

use crate::backing::{DiskRef, ResolvedLocation, refuse_snapshot};
use crate::foreign::{self, Foreign};
use crate::format::Params;
use crate::formats::table;
use crate::inspect::examine::remedy_for;
use crate::observer::Observer;
use crate::opening::claim::DiskClaim;
use crate::rados::ClusterOptions;
use crate::sync_directory::sync_directory;
use crate::unlock::{HeaderOpener, LeasedHeader, PassphraseMatch, UnlockedHeader, unlock, unlock_leased};
use crate::vault::directory::{self, HEADER_FILE};
use lacuna_contracts::{Action, Error, Hint, Kind, Result, Setting};
pub use lacuna_header::HeaderBackup;
use lacuna_header::{COPY_B, Diagnosis, HEADER_LEN, Location, PublicHeader, medium_len};
use lacuna_medium::{Access, Medium};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Takes a backup of the header. It needs no passphrase, and opens with the present passphrases
/// even after they are removed.
pub fn backup(
    location: &Location,
    cluster: &ClusterOptions,
    observer: &dyn Observer,
) -> Result<HeaderBackup> {
    refuse_snapshot(location, "back up the header of")?;
    let seen = ResolvedLocation::of(location, cluster).probe()?;
    let medium = seen.backing.header()?;
    let (backup, notes) =
        take_backup(&*medium).map_err(|e| foreign::named_in(e, &*medium, location).context(location))?;
    let remedy = remedy_for(&notes, &*medium, location);
    notes.iter().for_each(|note| observer.damaged_copy(&format!("{location}: {note}"), &remedy));
    table::parse(backup.public(), location).map_err(|e| e.context(location))?;
    Ok(backup)
}

fn take_backup(medium: &dyn Medium) -> Result<(HeaderBackup, Vec<String>)> {
    HeaderBackup::take(medium.len(), &|offset, buf| medium.read_at(offset, buf))
}

/// Saves a backup in a new file that only its owner can read, durably. Errors: [`Kind::Usage`] if
/// the file exists.
pub fn save(backup: &HeaderBackup, path: &Path) -> Result<()> {
    let failed = |e: std::io::Error| {
        let error = Error::io(format!("cannot write {}", path.display()), &e);
        match e.kind() {
            ErrorKind::AlreadyExists => {
                error.with_kind(Kind::Usage).hint("choose another name: a backup may be the last one")
            }
            _ => error,
        }
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let written = file.write_all(backup.bytes()).and_then(|()| file.sync_all()).map_err(failed);
    written.and_then(|()| sync_directory(path)).inspect_err(|_| {
        // An incomplete backup is useless. The file is ours: it was created here.
        let _ = std::fs::remove_file(path);
    })
}

/// Reads a backup from a file. Errors: those of [`read`].
pub fn load(path: &Path) -> Result<HeaderBackup> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| Error::io(format!("cannot read {name}"), &e))?;
    read(file, &name)
}

/// The backup in a file at a location. `None` for anything that differs from a backup in its length
/// or in its first bytes. Errors: those of [`load`].
pub fn backup_at(location: &Location) -> Result<Option<HeaderBackup>> {
    let Location::Path(path) = location else { return Ok(None) };
    let has_length = |about: std::fs::Metadata| about.is_file() && about.len() == HEADER_LEN as u64;
    if !std::fs::metadata(path).is_ok_and(has_length) {
        return Ok(None);
    }
    match load(path) {
        Err(e) if e.kind() == Kind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Reads a backup from a file or a pipe; `name` is its name in errors.
///
/// Errors: [`Kind::NotFound`] if it is no backup, [`Kind::Corrupt`] if it is a damaged one.
pub fn read(from: impl Read, name: &str) -> Result<HeaderBackup> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + 1);
    let read = from.take(HEADER_LEN as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|e| Error::io(format!("cannot read {name}"), &e))?;
    HeaderBackup::parse(&bytes).map_err(|e| e.context(format!("{name} is no backup of a header")))
}

/// The parameters of the disk in a backup of its header, on the day of the backup. Nothing of them
/// is authenticated before the backup is opened. Errors: [`Kind::NotFound`] for an unknown format,
/// [`Kind::Corrupt`] for impossible parameters.
pub fn parameters(backup: &HeaderBackup) -> Result<Box<dyn Params>> {
    table::parse_backup(backup.public())
}

/// The losses that are allowed when a header is restored.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreOverrides {
    /// A newer header of the same disk: removed passphrases work again, and added ones are lost.
    pub older: bool,
    /// The header of another disk, or content of another program on a medium without a header or
    /// with the last copy alone.
    pub replace: bool,
}

/// Writes a backup to all places of the header. `ask` opens the backup with passphrases. `agree`
/// gets a sentence about the fate of the present header, if it changes; an error of `agree` stops
/// the restoration before anything is written. If the disk's file is too short for the last copy,
/// it is extended; on a device without space for the last copy, the other copies are written and a
/// note is sent.
///
/// Errors: [`Kind::RolledBack`] for a backup that is older than the header, and [`Kind::Usage`] for
/// the backup of another disk or a medium with content of another program, unless `may_lose` allows
/// it; [`Kind::Passphrase`], [`Kind::Busy`], and all errors of the medium. A medium with such
/// content and the last copy alone may be a whole device with the disk as its last partition.
pub fn restore(
    disk: DiskRef<'_>,
    backup: &HeaderBackup,
    may_lose: RestoreOverrides,
    observer: &dyn Observer,
    ask: impl FnOnce(HeaderOpener<'_>) -> Result<PassphraseMatch>,
    agree: impl FnOnce(&str) -> Result<()>,
) -> Result<()> {
    let location = disk.location;
    let what = format!("cannot restore the header of {location}");
    let naming = |e: Error| e.context(&what);
    refuse_snapshot(location, "restore the header of")?;
    let public = backup.public();
    let parameters = table::parse(public, location).map_err(naming)?;
    let is_vault = parameters.is_vault();
    let made = match location.path().filter(|_| is_vault) {
        Some(dir) => directory::NewHeaderFile::make(dir)?,
        None => directory::NewHeaderFile::default(),
    };
    let (medium, _connection) = disk.hold_header(observer)?;
    // A vault's header is a file of its own, which is extended to its proper length.
    if medium.len() < parameters.end() && !is_vault {
        return Err(Error::new(Kind::Usage, what)
            .found(format!("{} bytes", medium.len()))
            .expected(format!("at least the {} bytes of the disk in the backup", parameters.end()))
            .hint("make sure that it is the right medium, and whole"));
    }
    let _claim = DiskClaim::take(public.uuid, public.format, &what, observer).map_err(open_elsewhere)?;
    // One reading gives the content of the device and the effect of the restore.
    let (found, present) =
        HeaderBackup::take_with_diagnosis(medium.len(), &|offset, buf| medium.read_at(offset, buf));
    let change = RestoreEffect::of(present, backup).map_err(naming)?;
    change
        .overwritten()
        .map_or(Ok(()), |present| table::refuse_disk_header_in_directory(present, location))
        .map_err(naming)?;
    change.check(may_lose, public).map_err(naming)?;
    change.check_size(&*parameters, location).map_err(naming)?;
    let (foreign, last_alone) = (foreign_content(&*medium, location, &found), found.has_only_last_copy());
    change.check_foreign(&foreign, last_alone, may_lose, &what)?;
    ask(&|passphrases| backup.open(passphrases))?;
    let foreign_words = change.foreign_words(&foreign, last_alone);
    let words = change.warning(&*medium, public).into_iter().chain(foreign_words);
    let words: Vec<String> = words.collect();
    if !words.is_empty() {
        agree(&words.join("; "))?;
    }
    if let Err(e) = extend_medium(&*medium, &*parameters) {
        observer.note(&format!("there is no space for the last copy of the header of {location}: {e}"));
    }
    backup.restore(&*medium).and_then(|()| write_length_record(location, &*medium)).map_err(naming)?;
    made.keep();
    Ok(())
}

/// The error for a header of a disk that is open, perhaps at another location.
fn open_elsewhere(e: Error) -> Error {
    if e.kind() != Kind::Busy {
        return e;
    }
    e.expected("no open disk or vault with the UUID in the backup; a copy has the same UUID")
        .hint("close it there first")
}

/// The content of another program that the copies of the header overwrite. Errors: the medium
/// cannot be searched.
fn foreign_content(medium: &dyn Medium, location: &Location, found: &Diagnosis) -> Result<Option<Foreign>> {
    match location {
        Location::Path(_) => foreign::over_copies(medium, found),
        Location::Nand(_) | Location::Ubi(_) | Location::Rados { .. } => Ok(None),
    }
}

/// Rewrites all copies of the header from the copy that opens. If only the space of the last copy
/// was cut off from a file, the file is extended.
///
/// Errors: [`Kind::Corrupt`] for a medium that lost part of the disk; [`Kind::NoSpace`] for a
/// device without space for the last copy (the other copies are written); those of [`unlock`].
pub fn repair(
    disk: DiskRef<'_>,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
) -> Result<()> {
    let DiskRef { location, pool_access } = disk;
    refuse_snapshot(location, "repair the header of")?;
    let mut volume = unlock(location, pool_access, Access::Write, observer, ask)?;
    let room = write_copies(location, &mut volume)?;
    room.map_err(|e| {
        if location.is_block_device() {
            return no_space_for_last_copy(location, &volume, e.kind(), LENGTHEN_DEVICE);
        }
        e.context(format!(
            "there is no space for the last copy of the header of {location}; the other copies are written"
        ))
    })?;
    write_length_record(location, &*volume.header)
}

/// Writes the copies that fit. The inner result says whether all of them fit, if necessary after an
/// extension.
fn write_copies(location: &Location, volume: &mut UnlockedHeader) -> Result<Result<()>> {
    let what = format!("cannot write all copies of the header of {location}");
    let (len, end) = (volume.header.len(), volume.parameters.end());
    // The file with the header of a vault has no other content, so its end is no loss.
    if len < end && !volume.parameters.is_vault() {
        return Err(Error::new(Kind::Corrupt, what)
            .found(format!("a medium of {len} bytes, which was cut short"))
            .expected(format!("the {end} bytes of the disk"))
            .hint(
                Hint::from("restore it from a backup; ")
                    .action(Action("examine"))
                    .text(" shows how to go on without one"),
            ));
    }
    let room = extend_medium(&*volume.header, &*volume.parameters);
    lacuna_header::repair(&*volume.header, &mut volume.unlocked).map_err(|e| e.context(location))?;
    Ok(room)
}

/// The remedy for a device with its end missing.
const LENGTHEN_DEVICE: &str = "make the device as long as it was";

/// The error for a last copy without space; `first` is the step before the next repair of the
/// header.
fn no_space_for_last_copy(location: &Location, volume: &UnlockedHeader, kind: Kind, first: &str) -> Error {
    let needed = volume.parameters.medium_len();
    Error::new(
        kind,
        format!("cannot write the last copy of the header of {location}; the other copies are written"),
    )
    .found(format!("a medium of {} bytes", volume.header.len()))
    .expected(format!("at least {needed} bytes, as it had"))
    .hint(format!("{first}; then repair the header again"))
}

/// Extends a medium that holds the disk to the length that all copies of its header need.
fn extend_medium(medium: &dyn Medium, parameters: &dyn Params) -> Result<()> {
    let needed = parameters.medium_len();
    if medium.len() < needed { medium.set_len(needed) } else { Ok(()) }
}

/// As [`repair`], for a disk that another process has open; that process reads and writes the
/// header for this one. Errors: also [`Kind::Busy`] for a disk in a pool, and if there is no space
/// for the last copy (the other copies are written).
pub fn repair_leased(
    disk: &LeasedHeader<'_>,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
) -> Result<()> {
    let location = disk.location;
    if matches!(location, Location::Rados { .. }) {
        return Err(Error::new(Kind::Busy, format!("cannot repair the header of {location}"))
            .found("a disk that is open; in a pool a repair writes the length of the header too")
            .hint("close it first"));
    }
    let mut volume = unlock_leased(disk, observer, ask)?;
    let room = write_copies(location, &mut volume)?;
    let longer = if location.is_block_device() { format!(" and {LENGTHEN_DEVICE}") } else { String::new() };
    room.map_err(|_| {
        no_space_for_last_copy(location, &volume, Kind::Busy, &format!("close the disk{longer}"))
    })
}

/// Rewrites the length record of a header in RADOS, which lies next to the first two copies.
fn write_length_record(location: &Location, medium: &dyn Medium) -> Result<()> {
    match location {
        Location::Rados { .. } => medium.set_len(medium.len()),
        Location::Path(_) | Location::Nand(_) | Location::Ubi(_) => Ok(()),
    }
}

/// The effect of a restoration.
enum RestoreEffect {
    /// The header stays the same; damaged copies are repaired.
    Repairs,
    /// The header is replaced by a newer one of the same disk.
    Newer,
    /// The header is replaced by an older one, or by a different one of the same generation.
    Older { present: PublicHeader },
    /// The header of another disk is overwritten.
    Replaces { other: PublicHeader },
    /// There is no readable header.
    Creates,
}

impl RestoreEffect {
    /// Compares the newest copy on the medium with the backup.
    fn of(present: Result<HeaderBackup>, backup: &HeaderBackup) -> Result<RestoreEffect> {
        match present {
            Ok(present) if present.bytes() == backup.bytes() => Ok(RestoreEffect::Repairs),
            Ok(present) => {
                let (present, backup) = (present.public().clone(), backup.public());
                Ok(if present.uuid != backup.uuid {
                    RestoreEffect::Replaces { other: present }
                } else if present.generation >= backup.generation {
                    RestoreEffect::Older { present }
                } else {
                    RestoreEffect::Newer
                })
            }
            // An unreadable place can often be written.
            Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt | Kind::Io) => {
                Ok(RestoreEffect::Creates)
            }
            Err(e) => Err(e),
        }
    }

    /// The header that is overwritten, if it is of another disk, or of the same disk and not older
    /// than the backup.
    fn overwritten(&self) -> Option<&PublicHeader> {
        match self {
            RestoreEffect::Older { present } => Some(present),
            RestoreEffect::Replaces { other } => Some(other),
            RestoreEffect::Repairs | RestoreEffect::Newer | RestoreEffect::Creates => None,
        }
    }

    /// Refuses a loss that is not allowed.
    fn check(&self, may_lose: RestoreOverrides, backup: &PublicHeader) -> Result<()> {
        match self {
            RestoreEffect::Replaces { other } if !may_lose.replace => {
                let advice = "make sure that it is the right medium, and the right backup; to undo the restoring of a wrong \
                    one, give ";
                Err(Error::new(Kind::Usage, format!("it holds another {}", other.format.noun()))
                    .found(format!("UUID {}", other.uuid))
                    .expected(format!("UUID {}, that of the backup", backup.uuid))
                    .hint(Hint::from(advice).setting(Setting("replace"))))
            }
            RestoreEffect::Older { present } if present.end > backup.end => {
                Err(Error::new(Kind::RolledBack, "the disk has grown since the backup was made")
                    .found(format!(
                        "data up to byte {} in the backup, {} on the disk",
                        backup.end, present.end
                    ))
                    .expected("a backup that was made after the disk was resized")
                    .hint("make a new one"))
            }
            RestoreEffect::Older { present } if !may_lose.older => {
                let advice = "an older header makes removed passphrases work again and loses passphrases \
                    that were added since: to go on, give ";
                let place = if present.format.is_vault() { "in the vault" } else { "on the disk" };
                Err(Error::new(Kind::RolledBack, "the backup is older than the header")
                    .found(format!(
                        "generation {} in the backup, {} {place}",
                        backup.generation, present.generation
                    ))
                    .expected(format!(
                        "a backup that is as new as the header of the {}",
                        present.format.noun()
                    ))
                    .hint(Hint::from(advice).setting(Setting("older"))))
            }
            _ => Ok(()),
        }
    }

    /// Refuses to overwrite content of another program on a medium without a header, or with the
    /// last copy alone (`last_alone`), which may be that of a partition.
    fn check_foreign(
        &self,
        foreign: &Result<Option<Foreign>>,
        last_alone: bool,
        may_lose: RestoreOverrides,
        what: &str,
    ) -> Result<()> {
        let is_whole_medium = last_alone || matches!(self, RestoreEffect::Creates);
        match foreign {
            Ok(Some(foreign)) if is_whole_medium && !may_lose.replace => {
                Err(foreign.refusal_to_restore(what, last_alone))
            }
            _ => Ok(()),
        }
    }

    /// The warning about content of another program that is overwritten.
    fn foreign_words(&self, foreign: &Result<Option<Foreign>>, last_alone: bool) -> Option<String> {
        match (self, foreign) {
            (_, Ok(None)) => None,
            (RestoreEffect::Creates, Ok(Some(foreign))) => {
                Some(format!("{foreign} is there, and is overwritten"))
            }
            (_, Ok(Some(foreign))) => {
                let second = if last_alone {
                    format!(", with {} KiB at byte {COPY_B} that hold no header", HEADER_LEN >> 10)
                } else {
                    String::new()
                };
                Some(format!("{foreign} lies {}, and is overwritten{second}", foreign.place()))
            }
            // An unreadable place can often be written.
            (_, Err(e)) => Some(format!(
                "the medium cannot be searched for content of other programs ({}): such content is overwritten",
                e.summary()
            )),
        }
    }

    /// Refuses a header that makes the disk shorter than it is, in cases where the end of its data
    /// does not show that.
    fn check_size(&self, backup: &dyn Params, location: &Location) -> Result<()> {
        let RestoreEffect::Older { present } = self else { return Ok(()) };
        let (was, is) = (backup.describe().size, table::parse(present, location)?.describe().size);
        if is <= was {
            return Ok(());
        }
        Err(Error::new(Kind::RolledBack, "the disk has grown since the backup was made")
            .found(format!("{was} bytes in the backup, {is} now"))
            .expected("a backup that was made after the disk was resized")
            .hint("make a new one"))
    }

    /// The warning before the restoration. `None` if nothing can be lost.
    fn warning(&self, medium: &dyn Medium, backup: &PublicHeader) -> Option<String> {
        match self {
            RestoreEffect::Repairs => None,
            RestoreEffect::Newer => Some("this replaces the header by one that is newer".to_owned()),
            RestoreEffect::Older { present } => Some(format!(
                "this restores a header that is older than the present one (generation {}): passphrases that \
                 were removed since work again, and passphrases that were added since are lost",
                present.generation
            )),
            RestoreEffect::Replaces { other } => Some(format!(
                "this overwrites the header of another {} (UUID {}), which is lost unless there is a backup of it",
                other.format.noun(),
                other.uuid
            )),
            RestoreEffect::Creates if backup.format.is_vault() => Some(format!(
                "there is no intact header there: make sure that it is the right directory, because its file \
                 {HEADER_FILE} is overwritten, and that this is the newest backup, because lacuna cannot tell"
            )),
            RestoreEffect::Creates => {
                let longer = medium.len() > medium_len(backup.end);
                let grown = if longer {
                    "; the medium is longer than the disk was then: if it has grown since, resize it to the size that it had \
                     before you open it"
                } else {
                    ""
                };
                Some(format!(
                    "there is no intact header there: make sure that it is the right medium, because 48 KiB of it are \
                     overwritten, and that this is the newest backup, because lacuna cannot tell{grown}"
                ))
            }
        }
    }
}
