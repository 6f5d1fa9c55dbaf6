//! Ceph's error codes, converted to errors with explanations.

use lacuna_contracts::{Advice, Error, Kind, Setting};

/// Linux's MAX_ERRNO. A failed comparison returns -MAX_ERRNO minus the offset of the first
/// differing byte.
const MISMATCH: i32 = 4095;

/// A negative result of librados.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) i32);

const fn code(linux: rustix::io::Errno) -> Code {
    Code(-linux.raw_os_error())
}

impl Code {
    pub(super) const NO_ENTRY: Code = code(rustix::io::Errno::NOENT);
    pub(super) const BUSY: Code = code(rustix::io::Errno::BUSY);
    pub(super) const EXISTS: Code = code(rustix::io::Errno::EXIST);
    pub(super) const CANCELED: Code = code(rustix::io::Errno::CANCELED);
    pub(super) const NO_DATA: Code = code(rustix::io::Errno::NODATA);
    pub(super) const RANGE: Code = code(rustix::io::Errno::RANGE);
    pub(super) const OVERFLOW: Code = code(rustix::io::Errno::OVERFLOW);
    pub(super) const NO_SPACE: Code = code(rustix::io::Errno::NOSPC);
    pub(super) const QUOTA: Code = code(rustix::io::Errno::DQUOT);
    pub(super) const ACCESS: Code = code(rustix::io::Errno::ACCESS);
    pub(super) const PERMISSION: Code = code(rustix::io::Errno::PERM);
    pub(super) const FENCED: Code = code(rustix::io::Errno::SHUTDOWN);
    pub(super) const TIMED_OUT: Code = code(rustix::io::Errno::TIMEDOUT);
    pub(super) const UNSUPPORTED: Code = code(rustix::io::Errno::OPNOTSUPP);
    pub(super) const INVALID: Code = code(rustix::io::Errno::INVAL);
    pub(super) const READ_ONLY: Code = code(rustix::io::Errno::ROFS);
    pub(super) const TOO_LARGE: Code = code(rustix::io::Errno::FBIG);
    pub(super) const NO_MEMORY: Code = code(rustix::io::Errno::NOMEM);

    /// Whether the client lacks the right to the operation.
    pub(super) fn is_refusal(self) -> bool {
        self == Code::ACCESS || self == Code::PERMISSION
    }

    /// Whether a guard of the operation failed.
    pub(super) fn is_guard(self) -> bool {
        self.0 <= -MISMATCH || self == Code::RANGE || self == Code::OVERFLOW
    }

    /// Ceph's number and its meaning.
    fn words(self) -> String {
        if self.0 <= -MISMATCH {
            return format!("other bytes, from byte {} of those compared", -(self.0 + MISMATCH));
        }
        let meaning = match self {
            Code::FENCED => "ESHUTDOWN: this client is on the cluster's blocklist".to_owned(),
            Code::TIMED_OUT => "ETIMEDOUT: no answer in the time allowed".to_owned(),
            Code::NO_SPACE => "ENOSPC: the pool or the cluster is full".to_owned(),
            Code::QUOTA => "EDQUOT: the pool has reached its quota".to_owned(),
            Code::TOO_LARGE => "EFBIG: past the end that an object may have".to_owned(),
            Code::UNSUPPORTED => "EOPNOTSUPP: the pool cannot do this".to_owned(),
            Code::RANGE => "ERANGE: a newer version of the object".to_owned(),
            Code::OVERFLOW => "EOVERFLOW: no such version of the object".to_owned(),
            _ => {
                let words = std::io::Error::from_raw_os_error(-self.0).to_string();
                words.trim_end_matches(&format!(" (os error {})", -self.0)).to_owned()
            }
        };
        format!("Ceph error {} ({meaning})", self.0)
    }
}

/// A pool, with a namespace in it if given, in the syntax of Ceph capabilities.
pub(super) fn place(pool: &str, namespace: Option<&str>) -> String {
    namespace.map_or_else(|| pool.to_owned(), |namespace| format!("{pool} namespace={namespace}"))
}

/// A failed operation on a pool, or on an object in it; `what` names them. `place` is from
/// [`place`].
pub(super) fn failed(code: Code, what: String, place: &str) -> Error {
    if code == Code::FENCED {
        return fenced(what).found(format!("{TAKEN}: {}", code.words()));
    }
    let kind = match code {
        _ if code.is_refusal() => Kind::Permission,
        Code::NO_ENTRY => Kind::NotFound,
        Code::BUSY => Kind::Busy,
        Code::EXISTS => Kind::Exists,
        Code::NO_SPACE | Code::QUOTA => Kind::NoSpace,
        Code::TIMED_OUT => Kind::TimedOut,
        Code::UNSUPPORTED | Code::TOO_LARGE => Kind::Usage,
        Code::READ_ONLY => Kind::ReadOnly,
        Code::NO_MEMORY => Kind::Memory,
        _ => Kind::Io,
    };
    let error = Error::new(kind, what).found(code.words());
    match kind {
        Kind::Permission => {
            let caps = format!("`ceph auth caps client.ID mon 'profile rbd' osd 'profile rbd pool={place}'`");
            let advice =
                Advice::from(format!("give the client's key the right ({caps}), or use another with "));
            error.remedy(advice.setting(Setting("ceph_id")))
        }
        Kind::NoSpace => error.remedy("add storage, delete something, or raise the quota (`ceph df`)"),
        Kind::TimedOut => {
            let advice = Advice::from("see whether the cluster is up (`ceph -s`), or allow more with ");
            error.remedy(advice.setting(Setting("timeout")))
        }
        Kind::Usage if code == Code::UNSUPPORTED => {
            let advice =
                Advice::from("an erasure-coded pool has no key-value maps: use the layout segment-end (");
            error.remedy(advice.setting(Setting("layout")).text("), or a replicated pool"))
        }
        _ => error,
    }
}

/// A failed guard of a transaction.
pub(super) fn changed(code: Code, what: String) -> Error {
    Error::new(Kind::Changed, what)
        .found(code.words())
        .expected("the object as it was last seen")
        .remedy("see who else writes to it, and try again")
}

/// The reason why this client was fenced.
const TAKEN: &str = "another client has taken the disk over";

/// This client has lost the right to write.
pub(super) fn fenced(what: String) -> Error {
    Error::new(Kind::Fenced, what).found(TAKEN).remedy(
        Advice::from("stop here; open it again, with ")
            .setting(Setting("steal"))
            .text(", only if nobody else uses it now"),
    )
}

/// The pool does not exist.
pub(super) fn no_pool(what: String, pool: &str) -> Error {
    Error::new(Kind::NotFound, what).found(format!("no pool `{pool}`")).remedy(format!(
        "see which pools there are with `ceph osd pool ls`, or make it: `ceph osd pool create {pool}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_proposed_for_what_was_used_and_no_more() {
        let hint = |namespace| failed(Code::PERMISSION, "cannot".into(), &place("p", namespace)).to_string();
        assert!(hint(None).contains("osd 'profile rbd pool=p'"), "{}", hint(None));
        assert!(hint(Some("n")).contains("osd 'profile rbd pool=p namespace=n'"), "{}", hint(Some("n")));
    }
}
