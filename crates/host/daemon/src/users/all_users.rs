//! Finds the open disks and vaults of all other users, for root.

use crate::client::peer::{Peer, Reach};
use crate::file::FileIdentity;
use crate::status::ServerStatus;
use crate::users::user_base::UserBase;
use crate::users::user_server::UserServer;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::Mutex;
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long the servers of all users together may take for their status.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Most users that are looked at, and most at a time. A hostile user may have many numbers in a
/// user namespace; users who are logged in and low numbers come first.
const MOST_USERS: usize = 256;
const MOST_AT_A_TIME: usize = 64;
/// Most bytes that the servers of one user may say, as JSON.
const MOST_BYTES: usize = 1 << 20;
/// The failure in errors that concern no user alone.
const NOT_ALL_SEEN: &str = "cannot see everything that other users have open";

/// The open disks and vaults of other users: what their living servers say.
///
/// A user may be hostile, and run a server that does not tell the truth. The user and the process
/// are true, and so is the mount point unless [`Peer::is_elsewhere`]. Everything else may be
/// untrue, and the servers of one user delay those of no other.
#[derive(Default)]
pub struct OtherUsers {
    /// The servers that answered, by user.
    pub seen: Vec<UserPeer>,
    /// At most one error for each user, for servers that did not answer.
    pub unseen: Vec<Error>,
}

/// A server of another user, with its status.
pub struct UserPeer {
    /// The number of the user.
    pub user: u32,
    /// The server.
    pub peer: Peer,
    /// Its status.
    pub status: ServerStatus,
}

impl OtherUsers {
    /// Whether this user may look at the disks of other users.
    pub fn may_look() -> bool {
        geteuid().is_root()
    }

    /// Asks the servers of all other users for their status.
    ///
    /// Errors: [`Kind::Permission`] for every user except root; those of the system.
    pub fn look() -> Result<OtherUsers> {
        if !OtherUsers::may_look() {
            return Err(Error::new(Kind::Permission, "cannot look at the disks of other users")
                .found(format!("user {}", geteuid().as_raw()))
                .expected("root")
                .hint("use sudo"));
        }
        let mut of_users: BTreeMap<u32, Vec<UserBase>> = BTreeMap::new();
        for base in UserBase::all()? {
            of_users.entry(base.user).or_default().push(base);
        }
        let mut users: Vec<(u32, Vec<UserBase>)> = of_users.into_iter().collect();
        users.sort_by_key(|(_, bases)| !bases.iter().any(UserBase::is_of_login));
        Ok(OtherUsers::of(users, Instant::now() + ANSWER_WITHIN))
    }

    /// Asks the servers in the bases of these users, until this moment. A user with servers that do
    /// not answer holds up one of several threads.
    fn of(mut users: Vec<(u32, Vec<UserBase>)>, until: Instant) -> OtherUsers {
        let mut all = OtherUsers::default();
        let beyond = users.len().saturating_sub(MOST_USERS);
        if beyond > 0 {
            let what = format!("cannot see what {beyond} more users have open");
            all.unseen.push(Error::new(Kind::Other, what).found(format!("more than {MOST_USERS} users")));
            users.truncate(MOST_USERS);
        }
        let threads = users.len().min(MOST_AT_A_TIME);
        let left = Mutex::new(users.into_iter());
        let next = || left.lock().next();
        let look = || {
            let mut of_thread = OtherUsers::default();
            while let Some((user, bases)) = next() {
                of_thread.extend(look_at_user(user, &bases, until));
            }
            of_thread
        };
        thread::scope(|scope| {
            let begin = |_| thread::Builder::new().name("lacuna-user".into()).spawn_scoped(scope, look);
            let begun: Vec<_> = (0..threads).map(begin).collect();
            for looking in begun {
                let looked = match looking {
                    Ok(looking) => looking.join().map_err(|_panic| {
                        Error::new(Kind::Other, NOT_ALL_SEEN).found("a defect of lacuna (a panic)")
                    }),
                    Err(e) => Err(Error::io(NOT_ALL_SEEN, &e)),
                };
                match looked {
                    Ok(of_thread) => all.extend(of_thread),
                    Err(e) => all.unseen.push(e),
                }
            }
        });
        all.seen.sort_by_key(|seen| seen.user);
        all
    }

    fn extend(&mut self, more: OtherUsers) {
        self.seen.extend(more.seen);
        self.unseen.extend(more.unseen);
    }

    /// Keeps the servers that are mounted at this canonical path, or else those of the disk or
    /// vault at this location, where `file` is now.
    #[must_use]
    pub fn at(mut self, mountpoint: Option<&Path>, location: &str, file: FileIdentity) -> OtherUsers {
        let is_there = |peer: &Peer| {
            let mount = peer.mount().filter(|_| !peer.is_elsewhere());
            mount.is_some_and(|mount| Some(mount.mountpoint.as_path()) == mountpoint)
        };
        if self.seen.iter().any(|seen| is_there(&seen.peer)) {
            self.seen.retain(|seen| is_there(&seen.peer));
            return self;
        }
        self.seen.retain(|UserPeer { peer: Peer { record, .. }, .. }| {
            file.is_same(record.file) || (record.location == location && file.may_be_same(record.file))
        });
        self
    }
}

/// Asks the servers in the bases of one user.
fn look_at_user(user: u32, bases: &[UserBase], until: Instant) -> OtherUsers {
    let mut seen = Vec::new();
    let mut errors = Vec::new();
    let mut bytes = 0;
    for base in bases {
        let (sockets, more) = base.sockets().unwrap_or_else(|e| (Vec::new(), Some(e)));
        errors.extend(more);
        for socket in sockets {
            if Instant::now() >= until {
                let late = format!("no answers within {} seconds", ANSWER_WITHIN.as_secs());
                errors.push(Error::new(Kind::TimedOut, late));
                break;
            }
            if bytes > MOST_BYTES {
                errors.push(Error::new(Kind::Other, format!("answers of more than {MOST_BYTES} bytes")));
                break;
            }
            match UserServer::find(socket, until) {
                Ok(Some((server, status))) => {
                    bytes += serde_json::to_vec(&status).map_or(0, |text| text.len());
                    let (record, reach) = (status.record.clone(), Reach::OtherUser(server));
                    seen.push(UserPeer { user, peer: Peer { record, alive: true, reach }, status });
                }
                Ok(None) => {}
                Err(e) => errors.push(e),
            }
        }
    }
    OtherUsers { seen, unseen: first_of(user, errors).into_iter().collect() }
}

/// The errors of one user as one error. A hostile user can cause any number of them.
///
/// Deniability contract: the number of errors would tell a log how many levels a silent server has
/// mounted.
fn first_of(user: u32, errors: Vec<Error>) -> Option<Error> {
    let first = errors.into_iter().next()?;
    Some(first.context(format!("cannot see everything that user {user} has open")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_looks_at_the_disks_of_others() {
        match OtherUsers::look() {
            Ok(_) => assert!(OtherUsers::may_look()),
            Err(e) => assert!(!OtherUsers::may_look() && e.kind() == Kind::Permission, "{e}"),
        }
    }

    #[test]
    fn users_beyond_a_number_are_told_as_unseen() {
        let of = |users: usize| {
            let users = (0..users).map(|user| (user as u32, Vec::new()));
            OtherUsers::of(users.collect(), Instant::now())
        };
        for (users, unseen) in [(0, 0), (MOST_USERS, 0), (MOST_USERS + 2, 1)] {
            let of_users = of(users);
            assert!(of_users.seen.is_empty() && of_users.unseen.len() == unseen, "{users} users");
        }
        assert!(of(MOST_USERS + 2).unseen[0].to_string().contains("what 2 more users have open"));
    }

    #[test]
    fn a_user_has_one_error() {
        let errors = |count: usize| {
            let all = (0..count).map(|n| Error::new(Kind::TimedOut, format!("error {n}")).found("silence"));
            first_of(7, all.collect())
        };
        assert!(errors(0).is_none());
        for count in [1, 3] {
            let first = errors(count).unwrap();
            assert_eq!(first.kind(), Kind::TimedOut);
            let text = "cannot see everything that user 7 has open: error 0; found: silence";
            assert_eq!(first.to_string(), text);
        }
    }
}
