//! Ceph's error codes, converted to errors with explanations.

use lacuna_contracts::{Error, Hint, Kind, Setting};

/// Linux's MAX_ERRNO. A failed comparison returns -MAX_ERRNO minus the offset of the first
/// differing byte.
const MISMATCH: i32 = 4095;

/// A negative result of librados.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RadosCode(pub(super) i32);

const fn code(linux: rustix::io::Errno) -> RadosCode {
    RadosCode(-linux.raw_os_error())
}

impl RadosCode {
    pub(super) const NO_ENTRY: RadosCode = code(rustix::io::Errno::NOENT);
    pub(super) const BUSY: RadosCode = code(rustix::io::Errno::BUSY);
    pub(super) const EXISTS: RadosCode = code(rustix::io::Errno::EXIST);
    pub(super) const CANCELED: RadosCode = code(rustix::io::Errno::CANCELED);
    pub(super) const NO_DATA: RadosCode = code(rustix::io::Errno::NODATA);
    pub(super) const RANGE: RadosCode = code(rustix::io::Errno::RANGE);
    pub(super) const OVERFLOW: RadosCode = code(rustix::io::Errno::OVERFLOW);
    pub(super) const NO_SPACE: RadosCode = code(rustix::io::Errno::NOSPC);
    pub(super) const QUOTA: RadosCode = code(rustix::io::Errno::DQUOT);
    pub(super) const ACCESS: RadosCode = code(rustix::io::Errno::ACCESS);
    pub(super) const PERMISSION: RadosCode = code(rustix::io::Errno::PERM);
    pub(super) const FENCED: RadosCode = code(rustix::io::Errno::SHUTDOWN);
    pub(super) const TIMED_OUT: RadosCode = code(rustix::io::Errno::TIMEDOUT);
    pub(super) const UNSUPPORTED: RadosCode = code(rustix::io::Errno::OPNOTSUPP);
    pub(super) const INVALID: RadosCode = code(rustix::io::Errno::INVAL);
    pub(super) const READ_ONLY: RadosCode = code(rustix::io::Errno::ROFS);
    pub(super) const TOO_LARGE: RadosCode = code(rustix::io::Errno::FBIG);
    pub(super) const NO_MEMORY: RadosCode = code(rustix::io::Errno::NOMEM);

    /// Whether the client lacks the right to the operation.
    pub(super) fn is_refusal(self) -> bool {
        self == RadosCode::ACCESS || self == RadosCode::PERMISSION
    }

    /// Whether a guard of the operation failed.
    pub(super) fn is_guard(self) -> bool {
        self.0 <= -MISMATCH || self == RadosCode::RANGE || self == RadosCode::OVERFLOW
    }

    /// Ceph's number and its meaning.
    fn describe(self) -> String {
        if self.0 <= -MISMATCH {
            return format!("other bytes, from byte {} of those compared", -(self.0 + MISMATCH));
        }
        let meaning = match self {
            RadosCode::FENCED => "ESHUTDOWN: this client is on the cluster's blocklist".to_owned(),
            RadosCode::TIMED_OUT => "ETIMEDOUT: no answer in the time allowed".to_owned(),
            RadosCode::NO_SPACE => "ENOSPC: the pool or the cluster is full".to_owned(),
            RadosCode::QUOTA => "EDQUOT: the pool has reached its quota".to_owned(),
            RadosCode::TOO_LARGE => "EFBIG: past the end that an object may have".to_owned(),
            RadosCode::UNSUPPORTED => "EOPNOTSUPP: the pool cannot do this".to_owned(),
            RadosCode::RANGE => "ERANGE: a newer version of the object".to_owned(),
            RadosCode::OVERFLOW => "EOVERFLOW: no such version of the object".to_owned(),
            _ => {
                let words = std::io::Error::from_raw_os_error(-self.0).to_string();
                words.trim_end_matches(&format!(" (os error {})", -self.0)).to_owned()
            }
        };
        format!("Ceph error {} ({meaning})", self.0)
    }
}

/// A pool, with a namespace in it if given, in the syntax of Ceph capabilities.
pub(super) fn cap_scope(pool: &str, namespace: Option<&str>) -> String {
    namespace.map_or_else(|| pool.to_owned(), |namespace| format!("{pool} namespace={namespace}"))
}

/// A failed operation on a pool, or on an object in it; `what` names them. `place` is from
/// [`cap_scope`].
pub(super) fn failed(code: RadosCode, what: String, place: &str) -> Error {
    if code == RadosCode::FENCED {
        return fenced(what).found(format!("{TAKEN}: {}", code.describe()));
    }
    let kind = match code {
        _ if code.is_refusal() => Kind::Permission,
        RadosCode::NO_ENTRY => Kind::NotFound,
        RadosCode::BUSY => Kind::Busy,
        RadosCode::EXISTS => Kind::Exists,
        RadosCode::NO_SPACE | RadosCode::QUOTA => Kind::NoSpace,
        RadosCode::TIMED_OUT => Kind::TimedOut,
        RadosCode::UNSUPPORTED | RadosCode::TOO_LARGE => Kind::Usage,
        RadosCode::READ_ONLY => Kind::ReadOnly,
        RadosCode::NO_MEMORY => Kind::Memory,
        _ => Kind::Io,
    };
    let error = Error::new(kind, what).found(code.describe());
    match kind {
        Kind::Permission => {
            let caps = format!("`ceph auth caps client.ID mon 'profile rbd' osd 'profile rbd pool={place}'`");
            let advice =
                Hint::from(format!("give the client's key the right ({caps}), or use another with "));
            error.hint(advice.setting(Setting("ceph_id")))
        }
        Kind::NoSpace => error.hint("add storage, delete something, or raise the quota (`ceph df`)"),
        Kind::TimedOut => {
            let advice = Hint::from("see whether the cluster is up (`ceph -s`), or allow more with ");
            error.hint(advice.setting(Setting("timeout")))
        }
        Kind::Usage if code == RadosCode::UNSUPPORTED => {
            let advice =
                Hint::from("an erasure-coded pool has no key-value maps: use the layout segment-end (");
            error.hint(advice.setting(Setting("layout")).text("), or a replicated pool"))
        }
        _ => error,
    }
}

/// A failed guard of a transaction.
pub(super) fn changed(code: RadosCode, what: String) -> Error {
    Error::new(Kind::Changed, what)
        .found(code.describe())
        .expected("the version that was read last")
        .hint("check what else writes to it, and try again")
}

/// The reason why this client was fenced.
const TAKEN: &str = "another client has taken the disk over";

/// This client has lost the right to write.
pub(super) fn fenced(what: String) -> Error {
    Error::new(Kind::Fenced, what).found(TAKEN).hint(
        Hint::from("stop here; open it again, with ")
            .setting(Setting("steal"))
            .text(", only if no other client uses it now"),
    )
}

/// Another client has had the lock since the last connection of a series of writers.
pub(super) fn had_by_another(what: String) -> Error {
    Error::new(Kind::Fenced, what)
        .found("another client has had the disk since its last server died")
        .expected("a disk that no other client has had meanwhile")
        .hint("writes that were not flushed are lost; check the file system that lies on the disk")
}

/// The pool does not exist.
pub(super) fn no_pool(what: String, pool: &str) -> Error {
    Error::new(Kind::NotFound, what).found(format!("no pool `{pool}`")).hint(format!(
        "see which pools there are with `ceph osd pool ls`, or make it: `ceph osd pool create {pool}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_asks_only_for_the_needed_capabilities() {
        let hint = |namespace| {
            failed(RadosCode::PERMISSION, "cannot".into(), &cap_scope("p", namespace)).to_string()
        };
        assert!(hint(None).contains("osd 'profile rbd pool=p'"), "{}", hint(None));
        assert!(hint(Some("n")).contains("osd 'profile rbd pool=p namespace=n'"), "{}", hint(Some("n")));
    }
}
