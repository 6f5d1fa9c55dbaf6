//! Accepts a mount point in place of the disk or vault that is mounted there.

use crate::args::{HeaderVerb, KeyVerb, Verb};
use crate::verbs::file_identity::file_at;
use crate::verbs::status;
use crate::verbs::status::server_text::moved_to;
use lacuna_daemon::{FileIdentity, Registry};
use lacuna_storage::{Error, Kind, Location, Result};

/// Replaces a mount point by the location of its disk or vault, for the verbs that work on open
/// ones.
///
/// Deniability contract: each mount point of a disk with levels stands for the disk.
///
/// Errors: [`Kind::NotFound`] if another file is now at the path of the disk; any failure to find
/// the server; [`Kind::TimedOut`] if a server that has to be asked for the file does not answer.
pub(crate) fn resolve_mountpoint(verb: &mut Verb) -> Result<()> {
    let Some(given) = location(verb) else { return Ok(()) };
    let Location::Path(path) = &*given else { return Ok(()) };
    let path = status::canonical_path(path);
    let peers = match Registry::open(None).and_then(|registry| registry.mounted_at(&path)) {
        // A path that is not mounted needs no server.
        Err(_) if !lacuna_mount::is_mounted(&path)? => return Ok(()),
        peers => peers?,
    };
    let Some(peer) = peers.first() else { return Ok(()) };
    // A location in a pool contains neither the namespace nor the cluster.
    let disk = Location::parse(&peer.record.location).ok();
    let Some(disk) = disk.filter(|disk| disk.path().is_some()) else { return Ok(()) };
    let (file, opened) = (file_at(&disk), peer.record.file);
    if file != opened && opened != FileIdentity::Unknown {
        // Follow a file that was moved.
        let account = status::unless_ended(status::at_mountpoint(&path))?.map(|account| account.to_json());
        let moved = account.as_ref().and_then(moved_to).map(|path| disk.with_path(path.into()));
        if let Some(moved) = moved.filter(|moved| file_at(moved).is_same(opened)) {
            *given = moved;
            return Ok(());
        }
    }
    if !file.may_be_same(opened) {
        let what = format!("cannot find the disk that is mounted at {}", path.display());
        return Err(Error::new(Kind::NotFound, what)
            .found(format!("another file at {disk}, where it was opened"))
            .expected("the file that is open")
            .hint("`lacuna status` says what became of it"));
    }
    *given = disk;
    Ok(())
}

fn location(verb: &mut Verb) -> Option<&mut Location> {
    Some(match verb {
        Verb::Info(args) => &mut args.location,
        Verb::Check(args) => &mut args.location,
        Verb::Doctor(args) => &mut args.location,
        Verb::Resize(args) => &mut args.location,
        Verb::Key(KeyVerb::Add(args) | KeyVerb::Change(args)) => &mut args.key.location,
        Verb::Key(KeyVerb::Remove(args)) => &mut args.key.location,
        Verb::Key(KeyVerb::Refresh(args)) => &mut args.key.location,
        Verb::Header(HeaderVerb::Backup(args)) => &mut args.location,
        Verb::Header(HeaderVerb::Repair(args)) => &mut args.location,
        _ => return None,
    })
}
