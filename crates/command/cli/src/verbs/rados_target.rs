//! Tells apart disks of one name in pools: the location contains neither the namespace nor the
//! cluster.

use lacuna_daemon::PoolScope;
use lacuna_storage::{ClusterOptions, Location, non_default_conf, shell_word};
use std::fmt::Write;

/// The namespace and cluster of a location, from the options; `None` for a path.
pub(crate) fn target_of(location: &Location, cluster: &ClusterOptions) -> Option<PoolScope> {
    let meant = || PoolScope {
        namespace: cluster.namespace.clone(),
        ceph_conf: non_default_conf(cluster).map(Into::into),
    };
    matches!(location, Location::Rados { .. }).then(meant)
}

/// The options that select this disk.
pub(crate) fn to_options(in_pool: &PoolScope) -> String {
    let mut options = format!("--namespace {}", shell_word(in_pool.namespace.as_deref().unwrap_or_default()));
    if let Some(conf) = &in_pool.ceph_conf {
        let _ = write!(options, " --ceph-conf {}", shell_word(conf));
    }
    options
}

/// A disk as the argument of a command: its location, and the options that select it, if any were
/// given.
pub(crate) fn as_argument(location: &Location, cluster: &ClusterOptions) -> String {
    let location_word = shell_word(location.to_string());
    match target_of(location, cluster).filter(|in_pool| *in_pool != PoolScope::default()) {
        Some(in_pool) => format!("{location_word} {}", to_options(&in_pool)),
        None => location_word,
    }
}
