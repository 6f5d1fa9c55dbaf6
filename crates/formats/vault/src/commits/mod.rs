//! The group commit, which admits changes and commits them, and the timer of automatic commits.

pub(crate) mod group_commit;
pub(crate) mod timer;
