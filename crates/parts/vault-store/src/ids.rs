//! The identifiers of a store: pages, objects, commits.

/// Bytes of a page of an object.
pub const PAGE: usize = 4096;

/// The number of a backing object. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u64);

/// The number and time of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitInfo {
    /// Commits are numbered from 1; accepting a rolled-back state leaves a gap.
    pub number: u64,
    /// Seconds since 1970.
    pub time: u64,
}

impl std::fmt::Display for CommitInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let moment = i64::try_from(self.time).ok().and_then(|at| jiff::Timestamp::from_second(at).ok());
        match moment {
            Some(at) => write!(f, "state {} of {}", self.number, at.strftime("%Y-%m-%d %H:%M:%S UTC")),
            None => write!(f, "state {}", self.number),
        }
    }
}
