//! `purge`: what was deleted is gone for good when it returns, or it says that it is not.

use crate::args::PurgeArgs;
use crate::console::{self, Console};
use crate::size::budget;
use crate::status;
use crate::unlock;
use crate::working;
use lacuna::{Access, ClusterOptions, Disk, Error, Holder, Kind, Location, Opening, Result};
use serde_json::{Value, json};
use std::path::Path;

/// `lacuna purge`.
pub(crate) fn run(args: &PurgeArgs, console: Console) -> Result<()> {
    let what = format!("purging {}", args.location);
    let mut servers = status::servers_of(&args.location, &ClusterOptions::default(), console);
    servers.retain(|server| is_of(server, &args.location));
    let items = match servers.first() {
        Some(server) => working::show(console, &what, |_| ask(server))?,
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
    let gone = match count("purged_keys") {
        0 => "nothing was deleted since the last purge".to_owned(),
        keys => format!(
            "{} gone for good; {} of keys replaced",
            many(keys, "deleted block"),
            many(count("purged_key_blocks"), "block")
        ),
    };
    console.done(&format!("purged {}: {gone}", args.location))
}

/// Whether a server has the disk open that is at this location now: the one that it opened there may have been moved since.
fn is_of(server: &Value, location: &Location) -> bool {
    if !matches!(location, Location::Nand(_) | Location::Ubi(_)) {
        return true;
    }
    let Ok(about) = lacuna::about(location, &ClusterOptions::default()) else { return true };
    // Readers claim nothing. Where the system lets nobody claim a disk, opening it says that it is in use.
    lacuna::process_of(about.header.uuid).is_some_and(|pid| server["pid"] == pid)
        || server["read_only"] == true
}

/// Asks the server that has the disk open.
fn ask(server: &Value) -> Result<Vec<Value>> {
    if server["died"] == true {
        let at = server["mountpoint"].as_str().unwrap_or_default();
        return Err(Error::new(Kind::Busy, "cannot purge the disk")
            .found(format!("what a server left that died, at {at}"))
            .remedy(format!("clear it away with `lacuna close {at}`, then try again")));
    }
    match (server["mountpoint"].as_str(), server["location"].as_str()) {
        (Some(mountpoint), _) => {
            lacuna_service::purge_mounted(Path::new(mountpoint), server["raw"] == true, None)
        }
        (None, Some(location)) => lacuna_service::purge_served(location),
        (None, None) => Err(Error::new(Kind::Other, "a server of the disk does not say where it is")),
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
    let closed = disk.close();
    let items = purged?.items.iter().map(|item| json!(item)).collect();
    closed.map(|()| items).map_err(|e| e.context(&args.location))
}

/// So many of something, in words.
fn many(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
