//! `header backup|restore|repair`: the header of a disk outside its medium, and its copies on it.

use crate::args::{HeaderBackupArgs, HeaderRepairArgs, HeaderRestoreArgs};
use crate::console::{self, Console};
use crate::passphrase;
use lacuna::{Access, Claim, Connection, FileMedium, Look, Medium, Parameters, Site};
use lacuna_core::{Error, Kind, Result};
use lacuna_header::{HEADER_LEN, HeaderBackup, Location, PublicHeader, medium_len};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// `lacuna header backup`.
pub(crate) fn backup(args: &HeaderBackupArgs, console: Console) -> Result<()> {
    lacuna::refuse_snapshot(&args.location, "back up the header of")?;
    let taken = match Site::of(&args.location, &args.cluster.of(&args.location)?) {
        Site::File(path) => {
            let look = Look::at(path)?;
            HeaderBackup::take(look.len, &|offset, buf| look.read(offset, buf))
        }
        Site::Pool(target) => {
            let medium = Connection::open(&target)?.header()?;
            HeaderBackup::take(medium.len(), &|offset, buf| medium.read_at(offset, buf))
        }
    };
    let (backup, notes) = taken.map_err(|e| e.context(&args.location))?;
    notes.iter().for_each(|note| console.note(&format!("{}: {note}", args.location)));
    Parameters::of(backup.public(), &args.location).map_err(|e| e.context(&args.location))?;
    write(&args.file, backup.bytes())?;
    console.done(&format!(
        "wrote the header of {} (UUID {}, generation {}) to {}\n\
         it opens with the passphrases of today, even after they are removed: keep it as safe as the disk",
        args.location,
        backup.public().uuid,
        backup.public().generation,
        args.file.display()
    ))
}

/// Makes a file that only its owner reads, durably.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e: std::io::Error| {
        let error = Error::io(format!("cannot write {}", path.display()), &e);
        match e.kind() {
            ErrorKind::AlreadyExists => {
                error.with_kind(Kind::Usage).remedy("choose another name: a backup may be the last one")
            }
            _ => error,
        }
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed);
    written.and_then(|()| lacuna::sync_directory(path)).inspect_err(|_| {
        // Half a backup is none. That the file is ours is sure: it was created here.
        let _ = std::fs::remove_file(path);
    })
}

fn read(path: &Path) -> Result<HeaderBackup> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + 1);
    let file = File::open(path).and_then(|file| file.take(HEADER_LEN as u64 + 1).read_to_end(&mut bytes));
    file.map_err(|e| Error::io(format!("cannot read {}", path.display()), &e))?;
    HeaderBackup::parse(&bytes).map_err(|e| e.context(format!("{} is no backup of a header", path.display())))
}

/// `lacuna header restore`.
pub(crate) fn restore(args: &HeaderRestoreArgs, console: Console) -> Result<()> {
    let what = || format!("cannot restore the header of {}", args.location);
    lacuna::refuse_snapshot(&args.location, "restore the header of")?;
    let backup = read(&args.file).map_err(|e| match &args.location {
        Location::Path(path) if read(path).is_ok() => {
            e.remedy("the disk comes first: `lacuna header restore LOCATION BACKUP`")
        }
        _ => e,
    })?;
    let public = backup.public();
    let parameters = Parameters::of(public, &args.location).map_err(|e| e.context(what()))?;
    let (medium, _connection) = medium(args)?;
    if medium.len() < parameters.end() {
        return Err(Error::new(Kind::Usage, what())
            .found(format!("{} bytes", medium.len()))
            .expected(format!("at least the {} bytes of the disk that the backup is of", parameters.end()))
            .remedy("make sure that it is the right medium, and whole"));
    }
    let _claim = Claim::take(public.uuid, &what(), &console)?;
    let change = Change::of(&*medium, &backup).map_err(|e| e.context(what()))?;
    change.check(args, public).map_err(|e| e.context(what()))?;
    let opens = format!("the backup of {}", args.location);
    passphrase::to_open(&args.passphrase, &opens, &|passphrases| backup.open(passphrases))?;
    if let Some(words) = change.words(&*medium, public) {
        console.note(&words);
        if !args.yes {
            agree(&what())?;
        }
    }
    backup.restore(&*medium).map_err(|e| e.context(what()))?;
    write_record(&args.location, &*medium).map_err(|e| e.context(what()))?;
    console.done(&format!("restored the header of {} (generation {})", args.location, public.generation))
}

/// Writes the record of the length of a header in RADOS anew, which lies beside the first two copies.
fn write_record(location: &Location, medium: &dyn Medium) -> Result<()> {
    match location {
        Location::Rados { .. } => medium.set_len(medium.len()),
        Location::Path(_) => Ok(()),
    }
}

fn agree(what: &str) -> Result<()> {
    if console::can_ask() {
        return console::confirm();
    }
    Err(Error::new(Kind::Usage, what)
        .found("no terminal to ask whether to go on")
        .remedy("if that is what you want, give --yes"))
}

/// The medium of the header, held for writing, with the connection that holds it in a pool.
fn medium(args: &HeaderRestoreArgs) -> Result<(Arc<dyn Medium>, Option<Connection>)> {
    match Site::of(&args.location, &args.holder.of(&args.location)?.cluster) {
        Site::File(path) => {
            let medium = FileMedium::open(path, Access::Write)?;
            medium.forget_cached()?;
            Ok((Arc::new(medium), None))
        }
        Site::Pool(target) => {
            let mut connection = Connection::open(&target)?;
            connection.hold(args.holder.steal)?;
            Ok((connection.header_to_mend()?, Some(connection)))
        }
    }
}

/// What restoring changes.
enum Change {
    /// The header stays as it is; damaged copies are mended.
    Mends,
    /// The header becomes a newer one of the same disk.
    Newer,
    /// The header becomes an older one, or one that is as old and says something else.
    Older { present: PublicHeader },
    /// The header of another disk goes.
    Replaces { other: PublicHeader },
    /// There is no header that can be read.
    Makes,
}

impl Change {
    /// Looks at what is on the medium.
    fn of(medium: &dyn Medium, backup: &HeaderBackup) -> Result<Change> {
        let found = HeaderBackup::take(medium.len(), &|offset, buf| medium.read_at(offset, buf));
        match found.map(|(present, _)| present) {
            Ok(present) if present.bytes() == backup.bytes() => Ok(Change::Mends),
            Ok(present) => {
                let (present, backup) = (present.public().clone(), backup.public());
                Ok(if present.uuid != backup.uuid {
                    Change::Replaces { other: present }
                } else if present.generation >= backup.generation {
                    Change::Older { present }
                } else {
                    Change::Newer
                })
            }
            // What cannot be read can often be written.
            Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt | Kind::Io) => Ok(Change::Makes),
            Err(e) => Err(e),
        }
    }

    /// Refuses what loses something, unless the options ask for it.
    fn check(&self, args: &HeaderRestoreArgs, backup: &PublicHeader) -> Result<()> {
        match self {
            Change::Replaces { other } if !args.replace => {
                Err(Error::new(Kind::Usage, "it holds another disk")
                    .found(format!("UUID {}", other.uuid))
                    .expected(format!("UUID {}, of which the backup is", backup.uuid))
                    .remedy(
                        "make sure that it is the right medium, and the right backup; to undo the restoring of a wrong \
                         one, give --replace",
                    ))
            }
            Change::Older { present } if present.end > backup.end => {
                Err(Error::new(Kind::RolledBack, "the disk has grown since the backup was made")
                    .found(format!("data up to byte {} in the backup, {} on the disk", backup.end, present.end))
                    .expected("a backup that was made after `resize`")
                    .remedy("make a new one with `lacuna header backup`"))
            }
            Change::Older { present } if !args.older => {
                Err(Error::new(Kind::RolledBack, "the backup is older than the header")
                    .found(format!(
                        "generation {} in the backup, {} on the disk",
                        backup.generation, present.generation
                    ))
                    .expected("a backup that is as new as the header of the disk")
                    .remedy(
                        "an older header makes removed passphrases work again and loses those that were added since: \
                         if that is what you want, give --older",
                    ))
            }
            _ => Ok(()),
        }
    }

    /// What a person is told before it is done. None if nothing can be lost.
    fn words(&self, medium: &dyn Medium, backup: &PublicHeader) -> Option<String> {
        match self {
            Change::Mends => None,
            Change::Newer => Some("this replaces the header by one that is newer".to_owned()),
            Change::Older { present } => Some(format!(
                "this brings back a header that is older than the present one (generation {}): passphrases that were \
                 removed since work again, and those that were added since are lost",
                present.generation
            )),
            Change::Replaces { other } => Some(format!(
                "this overwrites the header of another disk (UUID {}), which is lost unless there is a backup of it",
                other.uuid
            )),
            Change::Makes => {
                let longer = medium.len() > medium_len(backup.end);
                let grown = if longer {
                    "; the medium is longer than the disk was then: if it has grown since, run `lacuna resize` with the \
                     size it had before you open it"
                } else {
                    ""
                };
                Some(format!(
                    "there is no whole header there: make sure that it is the right medium, because 48 KiB of it are \
                     overwritten, and that this is the newest backup, because nothing can tell{grown}"
                ))
            }
        }
    }
}

/// `lacuna header repair`.
pub(crate) fn repair(args: &HeaderRepairArgs, console: Console) -> Result<()> {
    lacuna::refuse_snapshot(&args.location, "repair the header of")?;
    let location: &Location = &args.location;
    let mut volume =
        lacuna::unlock(location, &args.holder.of(location)?, Access::Write, &console, |_, open| {
            passphrase::to_open(&args.passphrase, &location.to_string(), open)
        })?;
    lacuna_header::repair(&*volume.header, &mut volume.unlocked).map_err(|e| e.context(location))?;
    write_record(location, &*volume.header)?;
    console.done(&format!("wrote all copies of the header of {location} anew"))
}
