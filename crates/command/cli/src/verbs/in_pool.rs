//! Which of the disks of one name in pools is meant: the location says neither the namespace nor the cluster.

use lacuna_daemon::InPool;
use lacuna_storage::{ClusterOptions, Location, other_conf, shell_word};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Of a location, with what the options say of it; none of a path.
pub(crate) fn of(location: &Location, cluster: &ClusterOptions) -> Option<InPool> {
    let meant =
        || InPool { namespace: cluster.namespace.clone(), ceph_conf: other_conf(cluster).map(Into::into) };
    matches!(location, Location::Rados { .. }).then(meant)
}

/// The options that say which one it is.
pub(crate) fn options(in_pool: &InPool) -> String {
    let mut options = format!("--namespace {}", shell_word(in_pool.namespace.as_deref().unwrap_or_default()));
    if let Some(conf) = &in_pool.ceph_conf {
        let _ = write!(options, " --ceph-conf {}", shell_word(conf));
    }
    options
}

/// Which of those that are open are meant, by whether the namespace and the configuration file were named: for what was not,
/// `meant` has the default.
pub(crate) fn chosen(
    mut open: BTreeSet<InPool>,
    (namespace, conf): (bool, bool),
    meant: &InPool,
) -> BTreeSet<InPool> {
    if (namespace || conf) && open.contains(meant) {
        return BTreeSet::from([meant.clone()]);
    }
    open.retain(|in_pool| {
        (!namespace || in_pool.namespace == meant.namespace)
            && (!conf || in_pool.ceph_conf == meant.ceph_conf)
    });
    open
}

/// A disk as a person names it in a command: its location, and the options that say which one it is, if any were given.
pub(crate) fn named(location: &Location, cluster: &ClusterOptions) -> String {
    let location_word = shell_word(location.to_string());
    match of(location, cluster).filter(|in_pool| *in_pool != InPool::default()) {
        Some(in_pool) => format!("{location_word} {}", options(&in_pool)),
        None => location_word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn place(namespace: Option<&str>, conf: Option<&str>) -> InPool {
        InPool { namespace: namespace.map(str::to_owned), ceph_conf: conf.map(PathBuf::from) }
    }

    /// What `given` leaves of `open`.
    fn left<'a>(open: &[&'a InPool], (namespace, conf): (Option<&str>, Option<&str>)) -> Vec<&'a InPool> {
        let given = (namespace.is_some(), conf.is_some());
        let meant = place(namespace.filter(|name| !name.is_empty()), conf);
        let chosen = chosen(open.iter().copied().cloned().collect(), given, &meant);
        open.iter().copied().filter(|in_pool| chosen.contains(in_pool)).collect()
    }

    #[test]
    fn every_open_disk_can_be_chosen_by_the_options_that_are_named_for_it() {
        let (plain, conf) = (place(None, None), place(None, Some("/b")));
        let (named, both) = (place(Some("n"), None), place(Some("n"), Some("/b")));
        let all = [&plain, &conf, &named, &both];
        assert_eq!(left(&all, (None, None)).len(), 4);
        assert_eq!(left(&all, (Some(""), None)), [&plain]);
        assert_eq!(left(&all, (Some(""), Some("/b"))), [&conf]);
        assert_eq!(left(&all, (Some("n"), None)), [&named]);
        assert_eq!(left(&all, (Some("n"), Some("/b"))), [&both]);
        // One option is enough for the only one that it fits.
        assert_eq!(left(&[&plain, &both], (Some("n"), None)), [&both]);
        assert_eq!(left(&[&plain, &both], (None, Some("/b"))), [&both]);
        assert_eq!(left(&[&plain], (Some("n"), None)), [] as [&InPool; 0]);
    }
}
