//! `erase`: destroys a disk or vault. Questions and messages around [`lacuna_storage::erase`].

use crate::args::EraseArgs;
use crate::terminal::console::{self, Console};
use crate::terminal::observer::RemovalObserver;
use crate::verbs::rados_target;
use crate::verbs::status;
use lacuna_storage::vault::is_vault;
use lacuna_storage::{ClusterOptions, ErasePlan, Erased, Error, Kind, Location, Result};

/// `lacuna erase`.
pub(crate) fn run(args: &EraseArgs, console: Console) -> Result<()> {
    let location = &args.location;
    // No client is blocked from the cluster before the user has confirmed.
    if args.pool_access.steal {
        require_confirmation(args)?;
    }
    refuse_open(location, &args.pool_access.cluster.options_for(location)?, console)?;
    let observer = RemovalObserver::new(console, false);
    let erased =
        lacuna_storage::erase(location, &args.pool_access.access_for(location)?, &observer, |doomed| {
            if doomed.last_copy_alone && args.yes {
                return Err(last_copy_error(location));
            }
            require_confirmation(args)?;
            console.confirm(&warning(location, doomed), args.yes)
        })
        .map_err(|e| unerased(location, e))?;
    drop(observer);
    console.done(&format!(
        "erased {location}: all copies of its header are overwritten{}",
        stale_copies_text(&erased)
    ))?;
    surviving_copies(location, &erased).iter().for_each(|sentence| console.note(sentence));
    Ok(())
}

/// Adds the advice for this verb to an error of the medium.
fn unerased(location: &Location, e: Error) -> Error {
    let is_missing = || location.path().is_some_and(|path| !path.exists());
    match e.kind() {
        Kind::NotFound if is_missing() => e.hint("nothing is there to erase: check the path"),
        Kind::ReadOnly => e.hint("make it writable, or destroy the medium"),
        _ => e,
    }
}

/// Refuses to erase without `--yes` if the user cannot be asked.
fn require_confirmation(args: &EraseArgs) -> Result<()> {
    if args.yes || console::can_ask() {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, format!("cannot erase {}", args.location))
        .found("no terminal to ask whether to go on")
        .hint("to make it unreadable for good, give --yes"))
}

/// Refuses a disk that a server of this user has open, with advice to close it.
fn refuse_open(location: &Location, cluster: &ClusterOptions, console: Console) -> Result<()> {
    let servers = status::find_servers_json(location, cluster, console)?;
    let Some(server) = servers.first() else { return Ok(()) };
    // Deniability contract: do not print the mount point, which may be that of a hidden level.
    Err(Error::new(Kind::Busy, format!("cannot erase {location}"))
        .found(format!("a server that has it open, or left it mounted (process {})", server["pid"]))
        .expected("a disk or vault that is closed")
        .hint(format!("`lacuna close {}` first", rados_target::as_argument(location, cluster))))
}

fn warning(location: &Location, doomed: &ErasePlan<'_>) -> String {
    let what = doomed.header.map_or_else(
        || "its header is damaged already".to_owned(),
        |header| format!("format {}, UUID {}", header.format, header.uuid),
    );
    let doom = format!("{location} ({what}) will be unreadable for good, whatever passphrases are known");
    if doomed.last_copy_alone {
        return format!(
            "{doom}. Only the last copy of its header is there, and something else lies in the place of the first: it may belong to the last \
             partition of {location}. Its 64 KiB at the end are overwritten, and the beginning is left as it is"
        );
    }
    doom
}

/// A program that gives `--yes` cannot judge which disk this copy belongs to.
fn last_copy_error(location: &Location) -> Error {
    Error::new(Kind::Usage, format!("cannot erase {location} without a question"))
        .found("a copy of a header only at its end, and other data in place of the first copy")
        .expected("a disk of lacuna, not a device with such a disk as its last partition")
        .hint("name the partition; if it is a disk that was overwritten, use a terminal, without --yes")
}

fn stale_copies_text(erased: &Erased) -> String {
    match erased.stale_headers {
        0 => String::new(),
        1 => ", with one where its medium ended before it grew".to_owned(),
        count => format!(", with {count} where its medium ended before it grew"),
    }
}

/// Notes on copies of the data or the header that may survive.
fn surviving_copies(location: &Location, erased: &Erased) -> Vec<String> {
    let mut notes = Vec::new();
    match location {
        Location::Path(path) if is_vault(path) => notes.push(
            "a program that synchronises the directory, or a snapshot of it, may keep earlier versions of the file lacuna.vault: delete \
             them there"
                .to_owned(),
        ),
        Location::Path(_) => {
            let trimmed = if erased.discarded { "was asked to discard them, and may ignore that" } else { "cannot be asked to discard them" };
            let medium = if location.is_block_device() { "a solid-state device" } else { "a file system on a solid-state device, or one that copies on write," };
            notes.push(format!(
                "{medium} may keep the overwritten pages for a while (it {trimmed}); if that matters, use the erase command of the device \
                 (`nvme format`, `hdparm --security-erase`), or destroy it"
            ));
        }
        Location::Nand(_) | Location::Ubi(_) => {
            notes.push("every old copy on the flash is erased, in blocks that went bad as well as it can be told".to_owned());
        }
        Location::Rados { .. } => {
            notes.push("snapshots of the pool itself, and backups of it, are not reached from here".to_owned());
            if erased.header.is_none() {
                notes.push("its data objects stay in the pool: the header did not say which they are".to_owned());
            }
        }
    }
    if !erased.searched_all {
        notes.push(
            "a copy of an older header may lie where the medium ended before it grew: not all of it could be searched"
                .to_owned(),
        );
    }
    let copies = match location {
        Location::Path(path) if is_vault(path) => "copies of the vault",
        _ => "copies of the disk, or of the medium that held it,",
    };
    notes.push(format!(
        "backups of the header (`lacuna header backup`) and {copies} still open with their passphrases: destroy them \
         as well"
    ));
    notes
}
