//! Which of the disks of one name in pools is meant: the location says neither the namespace nor the cluster.

use crate::status_words::word;
use lacuna::{ClusterOptions, Location};
use lacuna_service::InPool;
use serde_json::{Value, json};
use std::fmt::Write;

/// Of a location, with what the options say of it; none of a path.
pub(crate) fn of(location: &Location, cluster: &ClusterOptions) -> Option<InPool> {
    let meant = || InPool { namespace: cluster.namespace.clone(), ceph_conf: cluster.conf.clone() };
    matches!(location, Location::Rados { .. }).then(meant)
}

/// Of what a server says of itself.
pub(crate) fn of_server(server: &Value) -> InPool {
    let field = |name: &str| server[name].as_str();
    InPool { namespace: field("namespace").map(str::to_owned), ceph_conf: field("ceph_conf").map(Into::into) }
}

/// Puts it among what a server says of itself.
pub(crate) fn tell(in_pool: Option<&InPool>, server: &mut Value) {
    if let Some(namespace) = in_pool.and_then(|in_pool| in_pool.namespace.as_ref()) {
        server["namespace"] = json!(namespace);
    }
    if let Some(conf) = in_pool.and_then(|in_pool| in_pool.ceph_conf.as_ref()) {
        server["ceph_conf"] = json!(conf.to_string_lossy());
    }
}

/// The options that say which one it is.
pub(crate) fn options(in_pool: &InPool) -> String {
    let mut options = format!("--namespace {}", word(in_pool.namespace.as_deref().unwrap_or_default()));
    if let Some(conf) = &in_pool.ceph_conf {
        let _ = write!(options, " --ceph-conf {}", word(&conf.to_string_lossy()));
    }
    options
}

/// A disk as a person names it in a command: its location, and the options that say which one it is, if any were given.
pub(crate) fn named(location: &Location, cluster: &ClusterOptions) -> String {
    let location_word = word(&location.to_string());
    match of(location, cluster).filter(|in_pool| *in_pool != InPool::default()) {
        Some(in_pool) => format!("{location_word} {}", options(&in_pool)),
        None => location_word,
    }
}
