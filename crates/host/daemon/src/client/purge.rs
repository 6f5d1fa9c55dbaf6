//! Purging a disk that a server has open, from another process.

use crate::client::peer::Peer;
use crate::client::{CallOutcome, silence};
use crate::protocol::ControlOp;
use crate::status::{Counter, PurgeReport};
use lacuna_contracts::{Action, Error, Hint, Kind, Result};
use lacuna_mount::mount_table;
use std::path::Path;

/// Purges the disk that a server has open, and returns counters of the purge. Unless the mount is
/// raw, first discards the blocks that the mounted file system has freed, so that nothing deleted
/// before is recoverable. Clients of other servers flush and discard by themselves. `uuid` is the
/// UUID that the disk must have; `None` accepts any disk.
///
/// Errors: [`Kind::PurgeIncomplete`] if some deleted data may still be recoverable, [`Kind::Usage`]
/// from a format that cannot forget, [`Kind::NotFound`] if nothing is open there,
/// [`Kind::TimedOut`] if the server does not answer.
pub fn purge(peer: &Peer, uuid: Option<&str>) -> Result<Vec<Counter>> {
    if let Some(mount) = peer.mount() {
        check_can_purge(peer)?;
        if !mount.is_raw() {
            let top = mount_table::at(&mount.mountpoint)?;
            if !top.map_or(Ok(false), |top| peer.shows_disk(&top))? {
                return Err(covered_mount_error(&mount.mountpoint));
            }
            discard_freed(&mount.mountpoint)?;
        }
    }
    ask(peer, uuid)
}

/// Sends the purge request, and accepts only an answer that names the disk `uuid`.
fn ask(peer: &Peer, uuid: Option<&str>) -> Result<Vec<Counter>> {
    let incomplete = |found: String| {
        Error::new(Kind::PurgeIncomplete, "cannot tell whether the disk was purged")
            .found(found)
            .expected(format!("an answer from {}", peer.server()))
            .hint("try again")
    };
    let nonsense = || incomplete("an invalid answer".into());
    let purged = match peer.call(&ControlOp::Purge { uuid: uuid.map(str::to_owned) }) {
        Ok(CallOutcome::Done(answer)) => {
            serde_json::from_value::<PurgeReport>(answer).map_err(|_| nonsense())?
        }
        Ok(CallOutcome::Refused(e, _)) => return Err(e),
        Ok(CallOutcome::Ended | CallOutcome::Malformed) => return Err(nonsense()),
        Ok(CallOutcome::Silent(limit)) => return Err(incomplete(silence(limit)).with_kind(Kind::TimedOut)),
        Err(e) => return Err(incomplete(e.to_string())),
    };
    if let Some(meant) = uuid.filter(|meant| purged.uuid.as_deref() != Some(*meant)) {
        let of = purged.uuid.unwrap_or_else(|| "none".into());
        return Err(incomplete(format!("an answer that names the disk {of} instead of {meant}")));
    }
    Ok(purged.items)
}

/// Refuses a disk that cannot forget, and a server that does not answer, before its file system is
/// changed.
fn check_can_purge(peer: &Peer) -> Result<()> {
    let items = peer.status()?.items;
    if items.iter().any(|item| item.name == "recoverable") {
        return Ok(());
    }
    if items.is_empty() {
        return Err(Error::new(Kind::TimedOut, "cannot purge the disk now")
            .found("a disk that waits for its medium")
            .hint("try again"));
    }
    Err(Error::new(Kind::Usage, "the disk cannot be purged")
        .found("a format that does not forget deleted data")
        .expected("a disk of the format flash"))
}

fn covered_mount_error(mountpoint: &Path) -> Error {
    Error::new(Kind::PurgeIncomplete, format!("cannot purge the disk mounted at {}", mountpoint.display()))
        .found("another file system mounted there, or none")
        .expected("the file system of the disk: its freed blocks are discarded first")
        .hint(
            Hint::from("unmount what covers it; or close it with ")
                .action(Action("close"))
                .text(", which purges as well"),
        )
}

/// Trims the file system, so that it discards the blocks that it does not use any more.
fn discard_freed(mountpoint: &Path) -> Result<()> {
    lacuna_mount::trim(mountpoint).map_err(|e| {
        Error::new(
            Kind::PurgeIncomplete,
            format!("cannot discard the freed blocks of {}", mountpoint.display()),
        )
        .found(e.to_string())
        .expected("a file system that can be trimmed, and the right to do it")
        .hint("give the command as the user that mounted it, or run `fstrim` on it first")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_fails_if_the_file_system_cannot_be_trimmed() {
        for at in ["/proc", "/no/such/directory"] {
            let e = discard_freed(Path::new(at)).unwrap_err();
            assert_eq!(e.kind(), Kind::PurgeIncomplete, "{e}");
            assert!(e.to_string().contains(at) && e.get_hint().is_some(), "{e}");
        }
    }
}
