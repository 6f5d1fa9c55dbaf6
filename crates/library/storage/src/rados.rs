//! Replaces `lacuna-rados` in builds without it: every connection fails.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::ObjectStore;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The options of a cluster. Ignored in this build.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// The configuration file.
    pub conf: Option<PathBuf>,
    /// The user.
    pub id: Option<String>,
    /// The namespace in the pool.
    pub namespace: Option<String>,
    /// The longest time that an operation waits for an answer.
    pub timeout: Option<Duration>,
}

/// A series of connections. One of them lives at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterSeries {
    /// The identity of the series: random bytes.
    pub id: [u8; 16],
    /// Whether to take the lock only if the last holder was of this series.
    pub continues: bool,
}

/// Has no values in this build.
pub(crate) enum RadosPool {}

/// Has no values in this build.
pub(crate) enum WriterLock {}

impl RadosPool {
    pub(crate) fn connect(_: &str, _: &ClusterOptions) -> Result<Arc<RadosPool>> {
        Err(Error::new(Kind::Usage, "cannot use a disk in RADOS")
            .found("a build of lacuna without RADOS")
            .expected("the path of a file or block device")
            .hint("use a build with the feature `rados`"))
    }

    pub(crate) fn lock_writer_in_series(
        &self,
        _: &str,
        _: bool,
        _: Option<WriterSeries>,
    ) -> Result<WriterLock> {
        match *self {}
    }

    pub(crate) fn has_keys(&self) -> bool {
        match *self {}
    }

    pub(crate) fn objects(&self, _: &str) -> Result<Arc<dyn ObjectStore>> {
        match *self {}
    }

    pub(crate) fn object_names(&self, _: &str) -> Result<Vec<String>> {
        match *self {}
    }

    pub(crate) fn check_taken_over(&self) -> Result<()> {
        match *self {}
    }
}

impl WriterLock {
    pub(crate) fn evicted_client(&self) -> Option<&str> {
        match *self {}
    }

    pub(crate) fn remove(self) -> Result<()> {
        match self {}
    }

    pub(crate) fn abandon(self) {
        match self {}
    }
}

/// Whether a library has threads that must not see the process end normally.
pub fn is_in_use() -> bool {
    false
}

/// Ends the process with this exit code.
pub fn exit_at_once(code: u8) -> ! {
    std::process::exit(i32::from(code))
}
