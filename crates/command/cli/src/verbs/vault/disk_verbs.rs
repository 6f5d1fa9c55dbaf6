//! Refuses verbs that do not apply to a vault before any question, and names the alternative.

use crate::args::{HeaderVerb, KeyVerb, SnapshotVerb, Verb};
use lacuna_storage::vault::is_vault;
use lacuna_storage::{Error, Kind, Location, Result, shell_word};

/// Refuses a verb for disks if its location is a vault.
pub(crate) fn check(verb: &Verb) -> Result<()> {
    let Some((what, location, instead)) = misplaced(verb) else { return Ok(()) };
    let Some(dir) = location.path().filter(|dir| is_vault(dir)) else { return Ok(()) };
    Err(Error::new(Kind::Usage, format!("cannot {what} {location}"))
        .found("a vault, which is a file system in a directory")
        .expected("a disk")
        .hint(instead.replace("DIR", &shell_word(dir))))
}

/// The verb's action, its location, and the alternative for a vault.
fn misplaced(verb: &Verb) -> Option<(&'static str, &Location, &'static str)> {
    const MOUNT: &str = "`lacuna open DIR MOUNTPOINT` mounts it";
    const COPIES: &str =
        "copy the directory while the vault is closed, and after copying it back `lacuna vault accept DIR`";
    Some(match verb {
        Verb::Create(args) => (
            "create a disk in",
            &args.location,
            "choose another path; `lacuna open DIR MOUNTPOINT` mounts the vault",
        ),
        Verb::Serve(args) => ("serve", &args.location, MOUNT),
        Verb::Check(args) => {
            ("check the blocks of", &args.location, "`lacuna vault check DIR` verifies all its files")
        }
        Verb::Rescue(args) => (
            "rescue the blocks of",
            &args.location,
            "`lacuna vault rescue DIR TARGET` copies the files that can be read into a new directory",
        ),
        Verb::Resize(args) => {
            ("resize", &args.location, "it needs none: a vault grows and shrinks with its files")
        }
        Verb::Purge(args) => (
            "purge",
            args.location.as_ref()?,
            "a file of a vault is deleted with `rm` in the mounted vault; copies of its ciphertext may survive",
        ),
        Verb::Snapshot(verb) => {
            let location = match verb {
                SnapshotVerb::Create(args) | SnapshotVerb::Remove(args) | SnapshotVerb::Rollback(args) => {
                    &args.location
                }
                SnapshotVerb::List(args) => &args.location,
            };
            ("keep or list snapshots of", location, COPIES)
        }
        Verb::Delete(args) => ("delete", &args.location, "`rm -r DIR` removes it while it is closed"),
        Verb::Open(_)
        | Verb::Close(_)
        | Verb::Info(_)
        | Verb::List(_)
        | Verb::Status(_)
        | Verb::Doctor(_)
        | Verb::Erase(_)
        | Verb::Vault(_)
        | Verb::Key(KeyVerb::Add(_) | KeyVerb::Change(_) | KeyVerb::Remove(_) | KeyVerb::Refresh(_))
        | Verb::Header(
            HeaderVerb::Backup(_) | HeaderVerb::Check(_) | HeaderVerb::Restore(_) | HeaderVerb::Repair(_),
        )
        | Verb::Bench(_)
        | Verb::Completions(_)
        | Verb::Man(_) => return None,
    })
}
