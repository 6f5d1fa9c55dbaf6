//! `header backup|restore|repair`: questions and messages around the operations of
//! [`lacuna_storage::header`].

use crate::args::{ExpectArgs, HeaderBackupArgs, HeaderRepairArgs, HeaderRestoreArgs};
use crate::terminal::console::{self, Console};
use crate::terminal::passphrase;
use crate::verbs::online;
use crate::verbs::unlock::say_whose;
use lacuna_storage::header::{self, MayLose};
use lacuna_storage::{DiskRef, Error, Kind, Location, OpenHeader, Result};

/// `lacuna header backup`.
pub(crate) fn backup(args: &HeaderBackupArgs, console: Console) -> Result<()> {
    let backup = header::backup(&args.location, &args.cluster.of(&args.location)?, &console)?;
    header::save(&backup, &args.file)?;
    console.done(&format!(
        "wrote the header of {} (UUID {}, generation {}) to {}\n\
         it opens with the passphrases of today, even after they are removed: keep it as safe as the disk",
        args.location,
        backup.public().uuid,
        backup.public().generation,
        args.file.display()
    ))
}

/// `lacuna header restore`.
pub(crate) fn restore(args: &HeaderRestoreArgs, console: Console) -> Result<()> {
    let backup = header::load(&args.file).map_err(|e| match &args.location {
        Location::Path(path) if header::load(path).is_ok() => {
            e.remedy("the disk comes first: `lacuna header restore LOCATION BACKUP`")
        }
        _ => e,
    })?;
    let holder = args.holder.of(&args.location)?;
    let may_lose = MayLose { older: args.older, replace: args.replace };
    let opens = format!("the backup of {}", args.location);
    header::restore(
        DiskRef { location: &args.location, pool_access: &holder },
        &backup,
        may_lose,
        &console,
        |open| passphrase::to_open(&args.passphrase, &opens, backup.public(), open),
        |words| {
            console.note(words);
            if args.yes { Ok(()) } else { agree(&args.location) }
        },
    )
    .map_err(|e| say_whose(&args.location, e, console))?;
    let generation = backup.public().generation;
    console.done(&format!("restored the header of {} (generation {generation})", args.location))
}

fn agree(location: &Location) -> Result<()> {
    if console::can_ask() {
        return console::confirm();
    }
    Err(Error::new(Kind::Usage, format!("cannot restore the header of {location}"))
        .found("no terminal to ask whether to go on")
        .remedy("if that is what you want, give --yes"))
}

/// `lacuna header repair`.
pub(crate) fn repair(args: &HeaderRepairArgs, console: Console) -> Result<()> {
    let location = &args.location;
    let shown = location.to_string();
    let ask = |disk: &lacuna_storage::PublicHeader, open: lacuna_storage::Opener<'_>| {
        passphrase::to_open(&args.passphrase, &shown, disk, open)
    };
    match online::header(location, &args.holder, ExpectArgs { expect: None })? {
        Some(medium) => header::repair_open(&OpenHeader { location, medium }, &console, ask)?,
        None => header::repair(DiskRef { location, pool_access: &args.holder.of(location)? }, &console, ask)
            .map_err(|e| say_whose(location, e, console))?,
    }
    console.done(&format!("wrote all copies of the header of {location} anew"))
}
