//! Purging a disk that a server has open, from another process: one word in, one line of JSON out when it is done.

use crate::close;
use crate::control;
use crate::outcome;
use crate::purge_answer::PurgeRequest;
use lacuna_core::{Action, Advice, Error, Kind, Result};
use lacuna_mount::tool;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

/// Purges the disk that is mounted at `mountpoint`, and gives what was done: counters. What the file system has freed is
/// discarded first, unless the mount is `raw`: nothing that was deleted on it before is recoverable then. `uuid`: the disk that is
/// meant; without it, whatever is open there.
///
/// Errors: [`Kind::PurgeIncomplete`] if something can still be recovered, [`Kind::Usage`] from a format that cannot forget,
/// [`Kind::NotFound`] if nothing is open there, [`Kind::TimedOut`] if the server does not answer.
pub fn purge_mounted(
    mountpoint: &Path,
    raw: bool,
    uuid: Option<&str>,
    run_base: Option<&Path>,
) -> Result<Vec<Value>> {
    check_forgets(mountpoint, run_base)?;
    if !raw {
        if !close::shows_its_disk(mountpoint, run_base)? {
            return Err(Error::new(
                Kind::PurgeIncomplete,
                format!("cannot purge what is open at {}", mountpoint.display()),
            )
            .found("another file system mounted there, or none")
            .expected("the file system of the disk, whose freed blocks are discarded first")
            .remedy(
                Advice::from("unmount what covers it; or ")
                    .action(Action("close"))
                    .text(" it, which purges as well"),
            ));
        }
        discard_freed(mountpoint)?;
    }
    let socket = close::control_socket(mountpoint, run_base)?;
    ask(&socket, uuid, &format!("the server of {}", mountpoint.display()))
}

/// The same of a disk that is served without being mounted; `socket` is that of its server (see
/// [`answers`](crate::answers)). Clients flush and discard by themselves.
pub fn purge_served(socket: &Path, uuid: Option<&str>) -> Result<Vec<Value>> {
    ask(socket, uuid, "the server of the disk")
}

/// Asks for the purge, and believes an answer for the disk that is meant alone.
fn ask(socket: &Path, uuid: Option<&str>, server: &str) -> Result<Vec<Value>> {
    let request = PurgeRequest { uuid: uuid.map(str::to_owned) };
    let answer = control::ask(socket, &request.line());
    let incomplete = |found: String| {
        Error::new(Kind::PurgeIncomplete, "cannot tell whether the disk was purged")
            .found(found)
            .expected(format!("an answer from {server}"))
            .remedy("try again")
    };
    match answer {
        Ok(line) => {
            let done = outcome::decode_items(&line)
                .unwrap_or_else(|| Err(incomplete("none that makes sense".into())))?;
            match (uuid, outcome::uuid_in(&line)) {
                (Some(meant), of) if of.as_deref() != Some(meant) => {
                    let of = of.unwrap_or_else(|| "none".into());
                    Err(incomplete(format!("an answer that names the disk {of} instead of {meant}")))
                }
                _ => Ok(done),
            }
        }
        Err(e) if e.kind() == ErrorKind::TimedOut => {
            Err(incomplete("silence for 5 seconds".into()).with_kind(Kind::TimedOut))
        }
        Err(e) => Err(incomplete(e.to_string())),
    }
}

/// Refuses a disk that cannot forget, and a server that does not answer, before anything is done to its file system.
fn check_forgets(mountpoint: &Path, run_base: Option<&Path>) -> Result<()> {
    let status = close::status(mountpoint, run_base)?;
    let items = status["items"].as_array().map_or(&[][..], Vec::as_slice);
    if items.iter().any(|item| item["name"] == "recoverable") {
        return Ok(());
    }
    if items.is_empty() {
        return Err(Error::new(Kind::TimedOut, "cannot purge now")
            .found("a disk that waits for its medium and cannot be asked")
            .remedy("try again"));
    }
    Err(Error::new(Kind::Usage, "the disk cannot be purged")
        .found("a format that does not forget what was deleted")
        .expected("a disk of the format flash"))
}

/// Makes the file system say which blocks it does not use any more.
fn discard_freed(mountpoint: &Path) -> Result<()> {
    let incomplete = |found: String| {
        Error::new(
            Kind::PurgeIncomplete,
            format!("cannot discard what was deleted on {}", mountpoint.display()),
        )
        .found(found)
        .expected("a file system that can be trimmed, and the right to do it")
        .remedy("give the command as the user who mounted it, or run `fstrim` on it first")
    };
    // Blocks are free for fstrim once the transaction that freed them is committed.
    let synced = tool::run("sync", &[OsStr::new("-f"), mountpoint.as_os_str()])?;
    if !synced.success() {
        return Err(incomplete(synced.words()));
    }
    let trimmed = tool::run("fstrim", &[OsStr::new("--"), mountpoint.as_os_str()])?;
    if trimmed.success() { Ok(()) } else { Err(incomplete(trimmed.words())) }
}
