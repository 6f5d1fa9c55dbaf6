//! Refuses features that this build lacks, before any question.

use crate::args::ServeArgs;
use lacuna_storage::{Error, Kind, Result};

/// `lacuna open` in a build without FUSE: refused.
#[cfg(not(feature = "fuse"))]
pub(crate) fn refuse_open() -> Result<()> {
    Err(missing_feature("cannot open a disk here", "FUSE", "fuse")
        .expected("a build with it; without it, `lacuna serve` gives programs the disk"))
}

/// Refuses TLS options in a build without TLS.
pub(crate) fn check_tls(args: &ServeArgs) -> Result<()> {
    if cfg!(feature = "tls") || args.tls_dir.is_none() {
        return Ok(());
    }
    Err(missing_feature("cannot use --tls-dir here", "TLS", "tls"))
}

fn missing_feature(what: &str, lacked: &str, feature: &str) -> Error {
    Error::new(Kind::Usage, what)
        .found(format!("a build of lacuna without {lacked}"))
        .hint(format!("use a build with the feature `{feature}`"))
}
