//! What this user has open of one location: mounts, and servers without a mount point.

use crate::args::ClusterArgs;
use crate::in_pool;
use crate::place::Place;
use crate::status;
use crate::status_words::{go_on, is_deleted, no_answer, place_of};
use lacuna::{Error, Kind, Location, Result, Site, Target, shell_word};
use lacuna_daemon::{InPool, Record};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What this user has open of one location.
#[derive(Default)]
pub(crate) struct OpenAt {
    pub mounts: Vec<Mount>,
    /// Of servers without a mount point.
    pub sockets: Vec<PathBuf>,
}

impl OpenAt {
    /// The options say which of the disks of this name in pools is meant, where there are several.
    pub(crate) fn find(location: &Location, options: &ClusterArgs) -> Result<OpenAt> {
        let cluster = &options.of(location)?;
        let shown = status::canonical(location);
        let Some(meant) = in_pool::of(location, cluster) else { return OpenAt::of_file(location, &shown) };
        let mounted = records()?.filter(|record| record.location == shown);
        let mut mounts: Vec<(InPool, Mount)> =
            mounted.filter_map(|record| Some((record.in_pool.clone()?, Mount::of(record)))).collect();
        let answers =
            lacuna_daemon::answers()?.into_iter().filter(|(_, account)| account["location"] == *shown);
        let mut sockets: Vec<(InPool, PathBuf)> =
            answers.map(|(socket, account)| (in_pool::of_server(&account), socket)).collect();
        let all = mounts.iter().map(|(of, _)| of).chain(sockets.iter().map(|(of, _)| of));
        let given = (options.namespace.is_some(), cluster.conf.is_some());
        let chosen = in_pool::chosen(all.cloned().collect(), given, &meant);
        if chosen.len() > 1 {
            return Err(several(location, &chosen));
        }
        mounts.retain(|(in_pool, _)| chosen.contains(in_pool));
        sockets.retain(|(in_pool, _)| chosen.contains(in_pool));
        let mounts: Vec<Mount> = mounts.into_iter().map(|(_, mount)| mount).collect();
        let mut sockets: Vec<PathBuf> = sockets.into_iter().map(|(_, socket)| socket).collect();
        if mounts.is_empty()
            && sockets.is_empty()
            && let Some(identity) = Site::of(location, cluster).target().map(Target::identity)
        {
            // One that does not answer has a name all the same.
            sockets.extend(lacuna_daemon::serving(&identity)?);
        }
        if mounts.is_empty() && sockets.is_empty() {
            refuse_silent(location)?;
        }
        Ok(OpenAt { mounts, sockets })
    }

    /// Of a path: by the file that is there, whatever its name was when it was opened, and by the name where nothing is there or nobody
    /// can tell. Where nothing of that is open, what has the name and a file that was deleted.
    fn of_file(location: &Location, shown: &str) -> Result<OpenAt> {
        let place = Place::of(location);
        let running = lacuna_daemon::running(None)?;
        // What a dead server left is cleared away by its name, whatever is at that path now.
        let died = lacuna_daemon::died(None)?;
        let named = lacuna_daemon::serving(shown)?;
        let account = match &named {
            Some(socket) => status::if_it_answers(lacuna_daemon::account(socket))?.unwrap_or_default(),
            None => Value::Null,
        };

        let of_file = |record: &&Record| {
            place.is(&record.place) || (record.location == shown && place.may_be(&record.place))
        };
        let died = died.iter().filter(|record| record.location == shown);
        let mut open = OpenAt {
            mounts: running.iter().filter(of_file).chain(died).cloned().map(Mount::of).collect(),
            sockets: named.clone().into_iter().filter(|_| place.may_be(place_of(&account))).collect(),
        };
        if !open.mounts.is_empty() || !open.sockets.is_empty() {
            return Ok(open);
        }
        let served = lacuna_daemon::answers()?.into_iter();
        open.sockets = served.filter(|(_, account)| place.is(place_of(account))).map(|of| of.0).collect();
        if open.sockets.is_empty() {
            for record in running.into_iter().filter(|record| record.location == shown) {
                let status = status::unless_ended(lacuna_daemon::status(&record.mountpoint, None))?;
                if status.is_some_and(|status| is_deleted(&status)) {
                    open.mounts.push(Mount::of(record));
                }
            }
            open.sockets = named.into_iter().filter(|_| is_deleted(&account)).collect();
        }
        Ok(open)
    }

    /// What is open of another location as well.
    pub(crate) fn extend(&mut self, other: OpenAt) {
        self.mounts.extend(other.mounts);
        self.sockets.extend(other.sockets);
    }

    /// Refuses what closing would lose: a disk whose file was deleted. What was in the directory of a vault is gone with its files,
    /// and closing it tells what it could not write. What cannot be asked now is refused as well: it may be such a disk, and may
    /// answer when it is told to close.
    ///
    /// Deniability contract: not where it is mounted.
    pub(crate) fn refuse_deleted(&self) -> Result<()> {
        let mut told = Vec::new();
        for mount in self.mounts.iter().filter(|mount| !mount.vault) {
            let status = status::unless_ended(lacuna_daemon::status(&mount.mountpoint, None))?;
            told.extend(mount.location.clone().zip(status));
        }
        for socket in &self.sockets {
            let account = status::unless_ended(lacuna_daemon::account(socket))?;
            told.extend(account.and_then(|of| Some((of["location"].as_str()?.to_owned(), of))));
        }
        let deleted = told.into_iter().find(|(_, status)| is_deleted(status));
        let Some((location, _)) = deleted else { return Ok(()) };
        Err(Error::new(Kind::Other, format!("cannot close {location}"))
            .found(
                "its file was deleted while it was open: with the server the disk goes, and all that is on it",
            )
            .remedy(format!("copy what you need; then `lacuna close --deleted {}`", shell_word(location))))
    }
}

fn several(location: &Location, all: &BTreeSet<InPool>) -> Error {
    let named: Vec<String> = all.iter().map(in_pool::options).collect();
    Error::new(Kind::Usage, format!("cannot close {location}"))
        .found(format!("open disks of this name in several places: {}", named.join("; ")))
        .expected("one disk")
        .remedy("say which one with these options, or give its mount point")
}

/// Errors: [`Kind::TimedOut`] if there is a server of which it is not known what it serves.
fn refuse_silent(location: &Location) -> Result<()> {
    let servers = lacuna_daemon::accounts(|_, _| {})?;
    let Some(silent) = servers.iter().find(|server| server["silent"] == true) else { return Ok(()) };
    Err(Error::new(Kind::TimedOut, format!("cannot tell whether {location} is open"))
        .found(format!("a server that {}", no_answer(silent)))
        .expected("an answer within 5 seconds")
        .remedy(format!("{}; then try again", go_on(silent))))
}

/// A mount point to close.
pub(crate) struct Mount {
    pub mountpoint: PathBuf,
    /// The location of its disk, if it is one of ours.
    pub location: Option<String>,
    /// Whether it is a vault.
    pub vault: bool,
}

impl Mount {
    pub(crate) fn of(record: Record) -> Mount {
        let Record { mountpoint, location, vault, .. } = record;
        Mount { mountpoint, location: Some(location), vault }
    }
}

/// What is mounted, or was left mounted by servers that died. Errors: what keeps one of them from being seen.
pub(crate) fn records() -> Result<impl Iterator<Item = Record>> {
    Ok(lacuna_daemon::running(None)?.into_iter().chain(lacuna_daemon::died(None)?))
}
