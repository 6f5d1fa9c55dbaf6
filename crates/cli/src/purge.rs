//! `purge`: what was deleted is gone for good when it returns, or it says that it is not.

use crate::args::PurgeArgs;
use crate::console::{self, Console};
use crate::size::budget;
use crate::status;
use crate::unlock;
use crate::working;
use lacuna::{Access, ClusterOptions, Disk, Error, Holder, Kind, Location, Opening, Result, Uuid};
use serde_json::{Value, json};
use std::path::Path;

/// `lacuna purge`.
pub(crate) fn run(args: &PurgeArgs, console: Console) -> Result<()> {
    let what = format!("purging {}", args.location);
    let mut servers = status::servers_of(&args.location, &ClusterOptions::default(), console)?;
    let uuid = if servers.is_empty() { None } else { meant(&args.location)? };
    servers.retain(|server| uuid.is_none_or(|uuid| is_of(server, uuid)));
    let uuid = uuid.map(|uuid| uuid.to_string());
    let items = match servers.first() {
        Some(server) => working::show(console, &what, |_| ask(server, uuid.as_deref()))?,
        None => closed(args, console, &what)?,
    };
    let count = |name: &str| {
        let item = items.iter().find(|item| item["name"] == name);
        item.and_then(|item| item["value"].as_u64()).unwrap_or(0)
    };
    if args.json {
        return console::json(
            &json!({ "location": args.location.to_string(), "complete": true, "items": items }),
        );
    }
    let gone = gone(count("purged_keys"), count("purged_known"), count("purged_key_blocks"));
    console.done(&format!("purged {}: {gone}", args.location))
}

/// What a purge says that ended `most` keys, of which `known` encrypted a deleted block for sure.
fn gone(most: u64, known: u64, key_blocks: u64) -> String {
    if most == 0 {
        return "nothing was deleted since the last purge".to_owned();
    }
    let deleted = match most.saturating_sub(known) {
        0 => format!("{} gone for good", many(known, "deleted block")),
        more => format!("{} gone for good, and {more} more at most", many(known, "deleted block")),
    };
    format!("{deleted}; {} of keys replaced", many(key_blocks, "block"))
}

/// The disk that is at this location now; none where a mount point is named, at which whatever is open is meant.
///
/// Errors: what keeps its header from being read. Then nothing can tell which server has the disk.
fn meant(location: &Location) -> Result<Option<Uuid>> {
    match location {
        Location::Nand(_) | Location::Ubi(_) => {
            Ok(Some(lacuna::about(location, &ClusterOptions::default())?.header.uuid))
        }
        Location::Path(_) | Location::Rados { .. } => Ok(None),
    }
}

/// Whether a server has this disk open: the one that it opened at the same location may have been moved since.
fn is_of(server: &Value, uuid: Uuid) -> bool {
    // Readers claim nothing. Where the system lets nobody claim a disk, opening it says that it is in use.
    lacuna::process_of(uuid).is_some_and(|pid| server["pid"] == pid) || server["read_only"] == true
}

/// Asks the server that has the disk open, which says whether it is the one that is meant.
fn ask(server: &Value, uuid: Option<&str>) -> Result<Vec<Value>> {
    if server["died"] == true {
        let at = server["mountpoint"].as_str().unwrap_or_default();
        return Err(Error::new(Kind::Busy, "cannot purge the disk")
            .found(format!("what a server left that died, at {at}"))
            .remedy(format!("clear it away with `lacuna close {at}`, then try again")));
    }
    if server["silent"] == true {
        let process = server["pid"].as_u64().map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
        return Err(Error::new(Kind::TimedOut, "the disk was not purged")
            .found("a server that does not answer")
            .expected("an answer within 5 seconds")
            .remedy(format!(
                "if the process was stopped, `kill -CONT {process}` lets it go on; then try again"
            )));
    }
    if let Some(mountpoint) = server["mountpoint"].as_str() {
        return lacuna_service::purge_mounted(Path::new(mountpoint), server["raw"] == true, uuid, None);
    }
    // Several servers may have the same location: another disk may have been there before.
    let mut answers = lacuna_service::answers()?.into_iter();
    match answers.find(|(_, account)| account["pid"] == server["pid"]) {
        Some((socket, _)) => lacuna_service::purge_served(&socket, uuid),
        None => Err(Error::new(Kind::PurgeIncomplete, "the disk was not purged")
            .found("a server that does not answer any more")
            .remedy("`lacuna status` shows what is open; then try again")),
    }
}

/// Opens a disk that no server has open, for the purge alone.
fn closed(args: &PurgeArgs, console: Console, what: &str) -> Result<Vec<Value>> {
    lacuna::check_forgets(&args.location)?;
    let budget = budget(args.cache)?;
    let ask = |disk: &lacuna::PublicHeader, open: lacuna::Opener<'_>| {
        crate::passphrase::to_open(&args.passphrase, &args.location.to_string(), disk.uuid, open)
    };
    let volume = lacuna::unlock(&args.location, &Holder::default(), Access::Write, &console, ask)?;
    let opening = Opening { budget, purging: None, ..Opening::default() };
    let disk = unlock::open(volume.into_key(false)?, opening)?;
    let purged = working::show(console, what, |_| disk.purge());
    let closed = disk.close().map_err(|e| e.context(&args.location));
    let done = console::both(purged, closed)?;
    Ok(done.items.iter().map(|item| json!(item)).collect())
}

/// So many of something, in words.
fn many(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_told_as_far_as_it_is_known() {
        assert_eq!(gone(0, 0, 0), "nothing was deleted since the last purge");
        assert_eq!(gone(200, 200, 1), "200 deleted blocks gone for good; 1 block of keys replaced");
        assert_eq!(
            gone(201, 1, 3),
            "1 deleted block gone for good, and 200 more at most; 3 blocks of keys replaced"
        );
    }
}
