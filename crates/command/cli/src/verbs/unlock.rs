//! Unlocks disks with passphrases from options or the terminal, and opens them with the right
//! allocator settings.

use crate::allocator;
use crate::args::{ExpectArgs, IdleArgs, OpeningArgs, PassphraseArgs, PoolAccessArgs, PurgingArgs};
use crate::terminal::console::Console;
use crate::terminal::option_names;
use crate::terminal::passphrase;
use crate::verbs::remote_ops;
use crate::verbs::status;
use lacuna_daemon::{OtherUsers, default_run_base};
use lacuna_storage::vault::is_vault;
use lacuna_storage::{
    Access, BLOCK_SIZE, CloseMarks, ClusterOptions, DiskId, Error, HeaderOpener, Kind, Location,
    MemoryKeeper, OpenDisk, OpenDiskOptions, PassphraseMatch, PublicHeader, Result, UnlockedDisk,
    UnlockedHeader, Uuid, read_public_params, shell_word, write_through_refused,
};
use std::fmt::Display;
use std::sync::Arc;

/// The directory of the marks of disks that were closed well, among the run directories.
const CLOSED: &str = "closed";

/// A disk to unlock, as the options name it.
#[derive(Clone, Copy)]
pub(crate) struct DiskArgs<'a> {
    pub location: &'a Location,
    pub pool_access: &'a PoolAccessArgs,
}

/// The passphrases from the options, and the required identity.
#[derive(Clone, Copy)]
pub(crate) struct UnlockArgs<'a> {
    pub passphrase: &'a PassphraseArgs,
    pub expect: ExpectArgs,
}

/// Unlocks a disk. For writing to a disk with levels, prints a note on the risk for deeper levels.
pub(crate) fn unlock(
    location: &Location,
    holder: &PoolAccessArgs,
    access: Access,
    passphrase: &PassphraseArgs,
    console: Console,
) -> Result<UnlockedHeader> {
    let with = UnlockArgs { passphrase, expect: ExpectArgs { expect: None } };
    unlock_expected(DiskArgs { location, pool_access: holder }, access, with, console)
}

/// [`unlock`] with a required identity. Another disk is refused before it is taken over from
/// another client.
pub(crate) fn unlock_expected(
    disk: DiskArgs<'_>,
    access: Access,
    with: UnlockArgs<'_>,
    console: Console,
) -> Result<UnlockedHeader> {
    unlock_marked(disk, access, with, None, console)
}

/// [`unlock_expected`] for a server. If the disk was closed well, cached pages of its file stay.
pub(crate) fn unlock_to_serve(
    disk: DiskArgs<'_>,
    access: Access,
    with: UnlockArgs<'_>,
    console: Console,
) -> Result<UnlockedHeader> {
    let base = default_run_base().ok();
    let marks = base.and_then(|base| CloseMarks::in_dir(base.join(CLOSED)));
    unlock_marked(disk, access, with, marks, console)
}

fn unlock_marked(
    DiskArgs { location, pool_access: holder }: DiskArgs<'_>,
    access: Access,
    with: UnlockArgs<'_>,
    marks: Option<CloseMarks>,
    console: Console,
) -> Result<UnlockedHeader> {
    let (ask, cluster) = (passphrase_query(location, with), holder.access_for(location)?);
    let volume = lacuna_storage::unlock_to_serve(location, &cluster, access, marks, &console, ask)
        .map_err(|e| explain_busy(location, e, console))?;
    // Deniability contract: the text follows from the public parameters alone.
    let warning = volume.parameters.describe().overwriting_warning();
    if let Some(warning) = warning.filter(|_| access == Access::Write) {
        console.note(&warning.render_with(option_names::name));
    }
    Ok(volume)
}

/// Unlocks a damaged disk, for reading.
pub(crate) fn unlock_to_rescue(
    DiskArgs { location, pool_access: holder }: DiskArgs<'_>,
    with: UnlockArgs<'_>,
    console: Console,
) -> Result<UnlockedHeader> {
    lacuna_storage::unlock_to_rescue(
        location,
        &holder.access_for(location)?,
        &console,
        passphrase_query(location, with),
    )
    .map_err(|e| explain_busy(location, e, console))
}

/// Gets the passphrase and opens the header, which must be that of the required disk.
fn passphrase_query<'a>(
    location: &'a Location,
    with: UnlockArgs<'a>,
) -> impl FnOnce(&PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch> + 'a {
    move |disk: &PublicHeader, open: HeaderOpener<'_>| {
        let opened = passphrase::open_header(with.passphrase, &location.to_string(), disk, open)?;
        check_id(opened, with.expect.expect, location)
    }
}

/// Refuses a disk or vault that is not the required one. `shown`: its location.
pub(crate) fn check_id(
    opened: PassphraseMatch,
    expect: Option<DiskId>,
    shown: impl Display,
) -> Result<PassphraseMatch> {
    opened.0.check_id(expect).map_err(|e| e.context(shown))?;
    Ok(opened)
}

/// Adds to [`Kind::Busy`] whether this user has the disk or vault open, with advice to close it, or
/// another user.
pub(crate) fn explain_busy(location: &Location, e: Error, console: Console) -> Error {
    let claimer = || remote_ops::writer_process(location, &ClusterOptions::default());
    explain_claimed(location, &claimer, e, console)
}

/// [`explain_busy`] for a medium that is to get the header with a UUID: a disk or vault with this
/// UUID may be open elsewhere.
pub(crate) fn explain_busy_uuid(location: &Location, uuid: Uuid, e: Error, console: Console) -> Error {
    explain_claimed(location, &|| lacuna_storage::claiming_process(uuid), e, console)
}

/// The explanation of [`explain_busy`]; `claimer` gives the process that has the disk open for
/// writing, wherever it is.
fn explain_claimed(
    location: &Location,
    claimer: &dyn Fn() -> Option<u32>,
    e: Error,
    console: Console,
) -> Error {
    let is_file = location.path().is_some_and(|path| path.is_file() || is_vault(path));
    if e.kind() != Kind::Busy || !(is_file || location.is_block_device()) {
        return e;
    }
    // Deniability contract: the mount points would tell a log the number of open levels.
    match opened_location(location, claimer, console) {
        Err(unseen) => e.hint(format!("cannot determine which user has it open: {}", unseen.summary())),
        Ok(Some(open)) => {
            let shown =
                if open == status::canonical(location) { String::new() } else { format!(" as {open}") };
            let process = claimer().map_or_else(String::new, |process| format!(" in process {process}"));
            let close = shell_word(&open);
            e.hint(format!("this user has it open{shown}{process}: `lacuna close {close}` ends that"))
        }
        // A device may be in use by any program.
        Ok(None) if !is_file => e,
        Ok(None) => {
            let known = claimer().map_or_else(
                || "no server of this user has it".to_owned(),
                |process| format!("process {process} has it open, which is no server of this user"),
            );
            let users = if OtherUsers::may_look() {
                "`lacuna list --all-users` shows whether another user has it open"
            } else {
                "If another user has it open, that user alone sees and closes it"
            };
            e.hint(format!("{known}. {users}; if another command is at work on it, wait for that"))
        }
    }
}

/// The location that a server of this user has open there. Errors: a server that cannot be
/// inspected.
fn opened_location(
    location: &Location,
    claimer: &dyn Fn() -> Option<u32>,
    console: Console,
) -> Result<Option<String>> {
    let cluster = ClusterOptions::default();
    let servers = status::find_servers_json(location, &cluster, console)?;
    if let Some(open) = servers.first().and_then(status::current_location) {
        return Ok(Some(open));
    }
    // The open disk may be a copy of this one.
    match claimer() {
        Some(process) => status::location_of_process(process, console),
        None => Ok(None),
    }
}

/// Opens a disk.
pub(crate) fn open(key: UnlockedDisk, opening: OpenDiskOptions) -> Result<OpenDisk> {
    open_kept(key, opening, None)
}

/// Opens a disk; the keeper, if there is one, holds acknowledged writes.
pub(crate) fn open_kept(
    key: UnlockedDisk,
    opening: OpenDiskOptions,
    keeper: Option<&Arc<dyn MemoryKeeper>>,
) -> Result<OpenDisk> {
    if key.uses_large_memory() {
        allocator::map_large_allocations();
    } else if key.is_in_pool() {
        allocator::reuse_large_allocations();
    }
    key.open_kept(opening, keeper)
}

/// Opens a disk that may have sensitive blocks.
pub(crate) fn open_to_serve(
    key: UnlockedDisk,
    opening: OpenDiskOptions,
    purging: &PurgingArgs,
) -> Result<OpenDisk> {
    let disk = open(key, opening)?;
    mark_sensitive(&disk, purging);
    Ok(disk)
}

/// Marks the sensitive blocks of an open disk.
pub(crate) fn mark_sensitive(disk: &OpenDisk, purging: &PurgingArgs) {
    let block = BLOCK_SIZE as u64;
    for (from, to) in &purging.sensitive {
        disk.mark_sensitive(from / block..to.div_ceil(block));
    }
}

/// The access to the medium for a read-only or a writable disk.
pub(crate) fn access(read_only: bool) -> Access {
    if read_only { Access::Read } else { Access::Write }
}

/// Whether it is a disk with levels, if its header is readable. Pools and flash have none.
fn has_levels(location: &Location) -> Result<Option<bool>> {
    match location {
        Location::Path(_) => Ok(read_public_params(location)?.map(|disk| disk.has_levels())),
        Location::Rados { .. } | Location::Nand(_) | Location::Ubi(_) => Ok(Some(false)),
    }
}

/// Refuses to close a disk with levels after an idle time.
///
/// Deniability contract: the end of its cover would depend on the last use of any level, perhaps a
/// hidden one.
pub(crate) fn check_idle(location: &Location, args: &IdleArgs) -> Result<()> {
    let levels = args.idle_timeout.is_some() && has_levels(location)? == Some(true);
    refuse_idle(levels, args)
}

/// Repeats the check when the disk is unlocked: the location may have held another disk before.
pub(crate) fn refuse_idle(has_levels: bool, args: &IdleArgs) -> Result<()> {
    if args.idle_timeout.is_none() || !has_levels {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "cannot use --idle-timeout here")
        .found("a disk with levels: the end of its cover would tell when one of them was used last")
        .expected("a disk of another format, or a vault")
        .hint("leave it out, and close the disk by hand or at a time that does not depend on its use"))
}

/// Refuses options for writing that do not apply to the disk, if its header is readable.
pub(crate) fn check_writing(location: &Location, args: &OpeningArgs) -> Result<()> {
    let is_flash = matches!(location, Location::Nand(_) | Location::Ubi(_));
    let (write_through, cover_timeout) = (args.writing.write_through, args.waiting.cover_timeout);
    if let Some(option) = args.purging.given_option().filter(|_| !is_flash) {
        return Err(Error::new(Kind::Usage, format!("cannot use {option} here"))
            .found("a disk that is not on flash, and has nothing to purge")
            .expected("a location ubi: or nand:")
            .hint("leave it out"));
    }
    if !write_through && cover_timeout.is_none() {
        return Ok(());
    }
    match has_levels(location)? {
        Some(true) if write_through => Err(write_through_refused().context("cannot use --write-through")),
        Some(false) if cover_timeout.is_some() => {
            Err(Error::new(Kind::Usage, "cannot use --cover-timeout here")
                .found("a disk without levels, which never waits for cover")
                .expected("a disk of the format deniable or oblivious")
                .hint("leave it out"))
        }
        _ => Ok(()),
    }
}
