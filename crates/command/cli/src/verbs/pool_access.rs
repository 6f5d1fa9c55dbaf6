//! Translates the cluster options of a location: the cluster, and whether to take the disk over
//! from another client.

use crate::args::{ClusterArgs, PoolAccessArgs};
use crate::verbs::status::canonical_path;
use lacuna_storage::{ClusterOptions, Error, Kind, Location, PoolAccess, Result};
use std::path::PathBuf;
use std::time::Duration;

impl ClusterArgs {
    /// The configuration file of the option, or `$CEPH_CONF`.
    fn named_conf(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os("CEPH_CONF").filter(|value| !value.is_empty()).map(PathBuf::from);
        self.ceph_conf.clone().or_else(variable).as_deref().map(canonical_path)
    }

    /// The cluster options for a location. Errors: options that do not apply to a path.
    pub(crate) fn options_for(&self, location: &Location) -> Result<ClusterOptions> {
        let given = [
            ("--ceph-conf", self.ceph_conf.is_some()),
            ("--ceph-id", self.ceph_id.is_some()),
            ("--namespace", self.namespace.is_some()),
            ("--timeout", self.timeout.is_some()),
        ];
        given.iter().try_for_each(|(option, is)| refuse_for_path(location, option, *is))?;
        Ok(ClusterOptions {
            conf: self.named_conf().filter(|_| location.path().is_none()),
            id: self.ceph_id.clone(),
            namespace: self.namespace.clone().filter(|namespace| !namespace.is_empty()),
            timeout: self.timeout.map(|seconds| Duration::from_secs(seconds.into())),
        })
    }
}

impl PoolAccessArgs {
    /// The same for a verb that needs the disk exclusively.
    pub(crate) fn access_for(&self, location: &Location) -> Result<PoolAccess> {
        let cluster = self.cluster.options_for(location)?;
        refuse_for_path(location, "--steal", self.steal)?;
        if location.snapshot().is_some() && self.steal {
            return Err(Error::new(Kind::Usage, "cannot use --steal here")
                .found(format!("the snapshot {location}, which no client holds"))
                .hint("leave it out"));
        }
        Ok(PoolAccess { cluster, steal: self.steal })
    }
}

/// Refuses an option that does not apply to a path.
fn refuse_for_path(location: &Location, option: &str, given: bool) -> Result<()> {
    if !given || location.path().is_none() {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, format!("cannot use {option} here"))
        .found(format!("the location {location}, a path"))
        .expected("a location rados:POOL/NAME")
        .hint("leave it out"))
}
