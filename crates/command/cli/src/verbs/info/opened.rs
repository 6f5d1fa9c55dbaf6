//! The part of `info` that needs the key: the ID and the counters, from the server or with a
//! passphrase.

use crate::args::{ExpectArgs, HolderArgs, InfoArgs};
use crate::terminal::console::Console;
use crate::terminal::settings;
use crate::verbs::status;
use crate::verbs::unlock::{self, UnlockArgs};
use crate::verbs::vault;
use lacuna_storage::vault::AboutVault;
use lacuna_storage::{About, AboutMedium, Access, Disk, Error, Kind, Opening, Result, Uuid};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// The note on a passphrase that is given but not needed.
const NOT_LOOKED_AT: &str = "it is open: its server tells of it, and the passphrase was not looked at";

/// Shown instead of a value that needs the key.
pub(crate) const UNKNOWN: &str = "told by its server while the disk is open, or with a passphrase";

/// The results.
#[derive(Default)]
pub(crate) struct Told {
    /// The ID.
    pub id: Option<String>,
    /// The counters of all open levels; of a disk without levels only if it is on flash.
    pub items: Vec<Value>,
    /// Whether a server reported them.
    pub served: bool,
}

impl Told {
    /// Asks the server of the disk, if there is one; otherwise opens the disk read-only with the
    /// given passphrase.
    pub(crate) fn of(args: &InfoArgs, about: &About, console: Console) -> Result<Told> {
        let format = about.parameters.format().info();
        let counts = format.has_levels() || format.forgets;
        let in_use = match about.medium {
            AboutMedium::File { in_use, .. } | AboutMedium::Flash { in_use, .. } => in_use,
            AboutMedium::Pool { .. } => true,
        };
        if counts || in_use {
            let told = match Told::of_server(args, console) {
                // Only the ID is missing then.
                Err(e) if !counts && !args.passphrase.is_given() => {
                    console.note(&format!("the ID is not known: {}", settings::words(&e)));
                    return Ok(Told::default());
                }
                told => told?,
            };
            if told.id.is_some() || !args.passphrase.is_given() {
                return Ok(told);
            }
        }
        if args.passphrase.is_given() { opened(args, about, counts, console) } else { Ok(Told::default()) }
    }

    /// [`Told::of`] for a vault.
    pub(crate) fn of_vault(
        dir: &Path,
        args: &InfoArgs,
        about: &AboutVault,
        console: Console,
    ) -> Result<Told> {
        if about.in_use {
            let told = Told::of_server(args, console)?;
            if told.id.is_some() {
                return Ok(told);
            }
        }
        if !args.passphrase.is_given() {
            return Ok(Told::default());
        }
        let given = UnlockArgs { passphrase: &args.passphrase, expect: ExpectArgs { expect: None } };
        let key = vault::key(dir, Access::Read, given, console)?;
        check_same(args, about.header.uuid, key.uuid())?;
        Ok(Told { id: Some(key.id().to_string()), ..Told::default() })
    }

    fn of_server(args: &InfoArgs, console: Console) -> Result<Told> {
        let cluster = args.cluster.of(&args.location)?;
        let servers = status::servers_of(&args.location, &cluster, console)?;
        let items =
            |server: &Value| server["items"].as_array().into_iter().flatten().cloned().collect::<Vec<_>>();
        let id = servers.iter().find_map(|server| server["id"].as_str());
        let told = Told {
            id: id.map(str::to_owned),
            items: servers.iter().flat_map(items).collect(),
            served: !servers.is_empty(),
        };
        if told.id.is_some() && args.passphrase.is_given() {
            console.note(NOT_LOOKED_AT);
        }
        Ok(told)
    }
}

/// Unlocks the disk, and opens it read-only if it `counts` values that `info` shows.
fn opened(args: &InfoArgs, about: &About, counts: bool, console: Console) -> Result<Told> {
    let holder = HolderArgs { cluster: args.cluster.clone(), steal: false };
    let volume = unlock::unlock(&args.location, &holder, Access::Read, &args.passphrase, console)?;
    check_same(args, about.header.uuid, volume.unlocked.header.uuid)?;
    let id = Some(volume.id().to_string());
    if !counts {
        return Ok(Told { id, ..Told::default() });
    }
    let opening = Opening { read_only: true, ..Opening::default() };
    let disk = Arc::new(unlock::open(volume.into_key(false)?, opening)?);
    let items = disk.levels().iter().flat_map(|level| level.status().items).map(|item| json!(item)).collect();
    disk.close()?;
    Ok(Told { id, items, served: false })
}

/// Refuses to mix the facts of two disks.
fn check_same(args: &InfoArgs, seen: Uuid, opened: Uuid) -> Result<()> {
    if seen == opened {
        return Ok(());
    }
    Err(Error::new(Kind::Changed, format!("cannot tell of {}", args.location))
        .found(format!("the UUID {opened}, which was {seen} a moment ago: another one was put in its place"))
        .remedy("try again"))
}
