//! A mount point that is given in the place of the disk or vault that is mounted there.

use crate::args::{HeaderVerb, KeyVerb, Verb};
use crate::open_at;
use crate::status;
use crate::status_words::moved_to;
use lacuna::Location;
use serde_json::json;

/// Puts what is mounted at a mount point in its place, for the verbs that work on what is open.
///
/// Deniability contract: of a disk with levels each mount point names the disk.
pub(crate) fn name(verb: &mut Verb) {
    let Some(given) = location(verb) else { return };
    if given.path().is_none() {
        return;
    }
    let path = status::canonical(given);
    let record = open_at::records().find(|record| record.mountpoint.to_str() == Some(&path));
    let disk = record.and_then(|record| {
        let disk = Location::parse(&record.location).ok()?;
        // A file that was moved is where it is now.
        let status = lacuna_service::status(&record.mountpoint, None).unwrap_or_default();
        let server = json!({ "location": record.location, "file": status["file"] });
        Some(moved_to(&server).map(|path| disk.with_path(path.into())).unwrap_or(disk))
    });
    // A location in a pool does not say in which namespace and cluster.
    if let Some(disk) = disk.filter(|disk| !matches!(disk, Location::Rados { .. })) {
        *given = disk;
    }
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
