//! The part of `info` that needs the key: the ID and the counters, from the server or with a
//! passphrase.

use crate::args::{ExpectArgs, InfoArgs, PoolAccessArgs};
use crate::terminal::console::Console;
use crate::terminal::option_names;
use crate::verbs::status;
use crate::verbs::unlock::{self, UnlockArgs};
use crate::verbs::vault;
use lacuna_storage::vault::VaultInfo;
use lacuna_storage::{Access, Disk, Error, Kind, MediumInfo, OpenDiskOptions, PublicInfo, Result, Uuid};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// The note on a passphrase that is given but not needed.
const PASSPHRASE_UNUSED: &str = "it is open: its server answered, and the passphrase was not used";

/// Shown instead of a value that needs the key.
pub(crate) const UNKNOWN: &str = "shown while the disk is open, or with a passphrase";
/// Shown instead of the number of passphrases.
const UNCOUNTED: &str = "counted with a passphrase, while the disk is closed";

/// The results.
#[derive(Default)]
pub(crate) struct OpenFacts {
    /// The ID.
    pub id: Option<String>,
    /// The number of passphrases that work; only if a passphrase opened a header that records it.
    pub passphrases: Option<usize>,
    /// The counters of all open levels; of a disk without levels only if it is on flash.
    pub items: Vec<Value>,
    /// Whether a server reported them.
    pub served: bool,
}

/// The words for the number of passphrases that work.
pub(crate) fn count_text(passphrases: Option<usize>) -> String {
    passphrases.map_or_else(|| UNCOUNTED.to_owned(), |count| count.to_string())
}

impl OpenFacts {
    /// Asks the server of the disk, if there is one; otherwise opens the disk read-only with the
    /// given passphrase.
    pub(crate) fn of(args: &InfoArgs, about: &PublicInfo, console: Console) -> Result<OpenFacts> {
        let format = about.parameters.format().info();
        let counts = format.has_levels() || format.can_purge;
        let in_use = match about.medium {
            MediumInfo::File { in_use, .. } | MediumInfo::Flash { in_use, .. } => in_use,
            MediumInfo::Pool { .. } => true,
        };
        if counts || in_use {
            let facts = match OpenFacts::of_server(args, console) {
                // Only the ID is missing then.
                Err(e) if !counts && !args.passphrase.is_given() => {
                    console.note(&format!("the ID is not known: {}", option_names::render(&e)));
                    return Ok(OpenFacts::default());
                }
                facts => facts?,
            };
            if facts.id.is_some() || !args.passphrase.is_given() {
                return Ok(facts);
            }
        }
        if args.passphrase.is_given() {
            open_read_only(args, about, counts, console)
        } else {
            Ok(OpenFacts::default())
        }
    }

    /// [`OpenFacts::of`] for a vault.
    pub(crate) fn of_vault(
        dir: &Path,
        args: &InfoArgs,
        about: &VaultInfo,
        console: Console,
    ) -> Result<OpenFacts> {
        if about.in_use {
            let facts = OpenFacts::of_server(args, console)?;
            if facts.id.is_some() {
                return Ok(facts);
            }
        }
        if !args.passphrase.is_given() {
            return Ok(OpenFacts::default());
        }
        let given = UnlockArgs { passphrase: &args.passphrase, expect: ExpectArgs { expect: None } };
        let key = vault::unlock_vault(dir, Access::Read, given, console)?;
        check_same(args, about.header.uuid, key.uuid())?;
        Ok(OpenFacts {
            id: Some(key.id().to_string()),
            passphrases: key.passphrase_count()?,
            ..OpenFacts::default()
        })
    }

    fn of_server(args: &InfoArgs, console: Console) -> Result<OpenFacts> {
        let cluster = args.cluster.options_for(&args.location)?;
        let servers = status::find_servers_json(&args.location, &cluster, console)?;
        let items =
            |server: &Value| server["items"].as_array().into_iter().flatten().cloned().collect::<Vec<_>>();
        let id = servers.iter().find_map(|server| server["id"].as_str());
        let facts = OpenFacts {
            id: id.map(str::to_owned),
            items: servers.iter().flat_map(items).collect(),
            served: !servers.is_empty(),
            ..OpenFacts::default()
        };
        if facts.id.is_some() && args.passphrase.is_given() {
            console.note(PASSPHRASE_UNUSED);
        }
        Ok(facts)
    }
}

/// Unlocks the disk, and opens it read-only if it `counts` values that `info` shows.
fn open_read_only(args: &InfoArgs, about: &PublicInfo, counts: bool, console: Console) -> Result<OpenFacts> {
    let holder = PoolAccessArgs { cluster: args.cluster.clone(), steal: false };
    let volume = unlock::unlock(&args.location, &holder, Access::Read, &args.passphrase, console)?;
    check_same(args, about.header.uuid, volume.unlocked.header.uuid)?;
    let (id, passphrases) = (Some(volume.id().to_string()), volume.unlocked.passphrase_count()?);
    if !counts {
        return Ok(OpenFacts { id, passphrases, ..OpenFacts::default() });
    }
    let opening = OpenDiskOptions { read_only: true, ..OpenDiskOptions::default() };
    let disk = Arc::new(unlock::open(volume.into_disk(false)?, opening)?);
    let items = disk.levels().iter().flat_map(|level| level.status().items).map(|item| json!(item)).collect();
    disk.close()?;
    Ok(OpenFacts { id, passphrases, items, served: false })
}

/// Refuses to mix the facts of two disks.
fn check_same(args: &InfoArgs, seen: Uuid, opened: Uuid) -> Result<()> {
    if seen == opened {
        return Ok(());
    }
    Err(Error::new(Kind::Changed, format!("cannot describe {}", args.location))
        .found(format!("the UUID {opened}, which was {seen} a moment ago: the disk or vault was exchanged"))
        .hint("try again"))
}
