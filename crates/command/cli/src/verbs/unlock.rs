//! Unlocking with the passphrases that options give or a person types, and opening in a process
//! that keeps its memory small.

use crate::allocator;
use crate::args::{ExpectArgs, HolderArgs, IdleArgs, PassphraseArgs, PurgingArgs, WaitingArgs, WritingArgs};
use crate::terminal::console::Console;
use crate::terminal::passphrase;
use crate::verbs::online;
use crate::verbs::status;
use lacuna_storage::vault::is_vault;
use lacuna_storage::{
    Access, BLOCK_SIZE, ClusterOptions, DEEPER_LEVELS, DiskId, Error, Key, Kind, Location, OpenDisk, Opened,
    Opener, Opening, PublicHeader, Result, Volume, no_write_through, peek, shell_word,
};
use std::fmt::Display;

/// A disk that is to be unlocked, as options name it.
#[derive(Clone, Copy)]
pub(crate) struct DiskArgs<'a> {
    pub location: &'a Location,
    pub holder: &'a HolderArgs,
}

/// What opens a disk or vault, as options say, and which one it has to be.
#[derive(Clone, Copy)]
pub(crate) struct UnlockArgs<'a> {
    pub passphrase: &'a PassphraseArgs,
    pub expect: ExpectArgs,
}

/// Unlocks a disk, and says on one with levels what writing to it may cost.
pub(crate) fn unlock(
    location: &Location,
    holder: &HolderArgs,
    access: Access,
    passphrase: &PassphraseArgs,
    console: Console,
) -> Result<Volume> {
    let with = UnlockArgs { passphrase, expect: ExpectArgs { expect: None } };
    unlock_expected(DiskArgs { location, holder }, access, with, console)
}

/// The same of the disk that it has to be. Another one is refused before it is taken from another
/// client.
pub(crate) fn unlock_expected(
    DiskArgs { location, holder }: DiskArgs<'_>,
    access: Access,
    with: UnlockArgs<'_>,
    console: Console,
) -> Result<Volume> {
    let ask = asking(location, with);
    let volume = lacuna_storage::unlock(location, &holder.of(location)?, access, &console, ask)
        .map_err(|e| say_whose(location, e, console))?;
    if volume.parameters.has_levels() && access == Access::Write {
        // In the same words whatever there is (deniability contract).
        console.note(DEEPER_LEVELS);
    }
    Ok(volume)
}

/// Unlocks what is left of a disk, for reading.
pub(crate) fn unlock_to_rescue(
    DiskArgs { location, holder }: DiskArgs<'_>,
    with: UnlockArgs<'_>,
    console: Console,
) -> Result<Volume> {
    lacuna_storage::unlock_to_rescue(location, &holder.of(location)?, &console, asking(location, with))
        .map_err(|e| say_whose(location, e, console))
}

/// Gets the passphrase and opens the header, which has to be that of the expected disk.
fn asking<'a>(
    location: &'a Location,
    with: UnlockArgs<'a>,
) -> impl FnOnce(&PublicHeader, Opener<'_>) -> Result<Opened> + 'a {
    move |disk: &PublicHeader, open: Opener<'_>| {
        let opened = passphrase::to_open(with.passphrase, &location.to_string(), disk, open)?;
        check_id(opened, with.expect.expect, location)
    }
}

/// Refuses what was opened if it is another disk or vault than the expected one. `shown`: its
/// location.
pub(crate) fn check_id(opened: Opened, expect: Option<DiskId>, shown: impl Display) -> Result<Opened> {
    opened.0.id().check(expect).map_err(|e| e.context(shown))?;
    Ok(opened)
}

/// Says whose a disk or vault is that is in use, if that is the error: this user's, who is told how
/// to close it, or another's.
pub(crate) fn say_whose(location: &Location, e: Error, console: Console) -> Error {
    let is_file = location.path().is_some_and(|path| path.is_file() || is_vault(path));
    if e.kind() != Kind::Busy || !(is_file || location.is_block_device()) {
        return e;
    }
    // Deniability contract: where it is mounted says how many levels are open, and a log may keep
    // this.
    match open_as(location, console) {
        Err(unseen) => e.remedy(format!("who has it open cannot be told: {}", unseen.finding())),
        Ok(Some(open)) => {
            let shown = if open == status::canonical(location) { String::new() } else { format!(" as {open}") };
            e.remedy(format!("this user has it open{shown}: `lacuna close {}` ends that", shell_word(&open)))
        }
        // A device may be in use by anything.
        Ok(None) if !is_file => e,
        Ok(None) => e.remedy(
            "no server of this user has it. If another user has it open, that user alone sees and closes it; if another command is \
             at work on it, wait for that",
        ),
    }
}

/// The location of what a server of this user has open there. Errors: what keeps its servers from
/// being seen.
fn open_as(location: &Location, console: Console) -> Result<Option<String>> {
    let cluster = ClusterOptions::default();
    let servers = status::servers_of(location, &cluster, console)?;
    if let Some(open) = servers.first().and_then(status::location_now) {
        return Ok(Some(open));
    }
    // A copy of the disk may be what is open.
    match online::claimer(location, &cluster) {
        Some(process) => status::of_process(process, console),
        None => Ok(None),
    }
}

/// Opens a disk.
pub(crate) fn open(key: Key, opening: Opening) -> Result<OpenDisk> {
    if key.keeps_large_memory() {
        allocator::keep_large_apart();
    }
    key.open(opening)
}

/// Opens a disk that may have sensitive blocks.
pub(crate) fn open_to_serve(key: Key, opening: Opening, purging: &PurgingArgs) -> Result<OpenDisk> {
    let disk = open(key, opening)?;
    let block = BLOCK_SIZE as u64;
    for (from, to) in &purging.sensitive {
        disk.mark_sensitive(from / block..to.div_ceil(block));
    }
    Ok(disk)
}

/// How a medium is opened for a disk that is, or is not, to be written.
pub(crate) fn access(read_only: bool) -> Access {
    if read_only { Access::Read } else { Access::Write }
}

/// Whether it is a disk with levels, as far as it says what it is. In a pool and on flash there are
/// none.
fn has_levels(location: &Location) -> Result<Option<bool>> {
    match location {
        Location::Path(_) => Ok(peek(location)?.map(|disk| disk.has_levels())),
        Location::Rados { .. } | Location::Nand(_) | Location::Ubi(_) => Ok(Some(false)),
    }
}

/// Refuses to close a disk with levels after a time without use.
///
/// Deniability contract: its cover would end at a time that follows from when the last level,
/// perhaps a hidden one, was used.
pub(crate) fn check_idle(location: &Location, args: &IdleArgs) -> Result<()> {
    let levels = args.idle_timeout.is_some() && has_levels(location)? == Some(true);
    refuse_idle(levels, args)
}

/// The same once the disk is unlocked: what was at the location before may have been another one.
pub(crate) fn refuse_idle(has_levels: bool, args: &IdleArgs) -> Result<()> {
    if args.idle_timeout.is_none() || !has_levels {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "cannot use --idle-timeout here")
        .found("a disk with levels: the end of its cover would tell when one of them was used last")
        .expected("a disk of another format, or a vault")
        .remedy("leave it out, and close the disk by hand or at a time that does not depend on its use"))
}

/// Refuses options about writing that mean nothing for the disk, as far as it says what it is.
pub(crate) fn check_writing(
    location: &Location,
    args: &WritingArgs,
    waiting: &WaitingArgs,
    purging: &PurgingArgs,
) -> Result<()> {
    let is_flash = matches!(location, Location::Nand(_) | Location::Ubi(_));
    if let Some(option) = purging.given().filter(|_| !is_flash) {
        return Err(Error::new(Kind::Usage, format!("cannot use {option} here"))
            .found("a disk that is not on flash, of which nothing is purged")
            .expected("a location ubi: or nand:")
            .remedy("leave it out"));
    }
    if !args.write_through && waiting.cover_timeout.is_none() {
        return Ok(());
    }
    match has_levels(location)? {
        Some(true) if args.write_through => Err(no_write_through().context("cannot use --write-through")),
        Some(false) if waiting.cover_timeout.is_some() => {
            Err(Error::new(Kind::Usage, "cannot use --cover-timeout here")
                .found("a disk without levels, of which nothing waits for cover")
                .expected("a disk of the format deniable or oblivious")
                .remedy("leave it out"))
        }
        _ => Ok(()),
    }
}
