//! A query for the registry: a disk or vault as a command names it.

use crate::file::FileIdentity;
use crate::record::PoolScope;
use std::collections::BTreeSet;

/// The disk or vault to find.
#[derive(Clone, Debug)]
pub struct DiskQuery<'q> {
    /// The location as `list` shows it.
    pub location: &'q str,
    /// The file that is at the location now.
    pub file: FileIdentity,
    /// Selects among the disks of this name, if the location is in a pool.
    pub in_pool: Option<PoolQuery>,
}

/// Selects among disks in pools that have the same name: their location gives neither the namespace
/// nor the cluster.
#[derive(Clone, Debug)]
pub struct PoolQuery {
    /// The disk, with defaults for options that were not given.
    pub disk: PoolScope,
    /// Whether the user gave the namespace.
    pub is_namespace_named: bool,
    /// Whether the user gave the configuration file of the cluster.
    pub is_conf_named: bool,
}

impl PoolQuery {
    /// Matches this disk alone.
    pub fn exactly(disk: PoolScope) -> PoolQuery {
        PoolQuery { disk, is_namespace_named: true, is_conf_named: true }
    }

    /// The open disks that match all given options. If any option was given and `disk` itself is
    /// open, only `disk`.
    pub(crate) fn select(&self, mut open: BTreeSet<PoolScope>) -> BTreeSet<PoolScope> {
        if (self.is_namespace_named || self.is_conf_named) && open.contains(&self.disk) {
            return BTreeSet::from([self.disk.clone()]);
        }
        open.retain(|in_pool| {
            (!self.is_namespace_named || in_pool.namespace == self.disk.namespace)
                && (!self.is_conf_named || in_pool.ceph_conf == self.disk.ceph_conf)
        });
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn place(namespace: Option<&str>, conf: Option<&str>) -> PoolScope {
        PoolScope { namespace: namespace.map(str::to_owned), ceph_conf: conf.map(PathBuf::from) }
    }

    /// The disks of `open` that a command with these options selects.
    fn left<'a>(open: &[&'a PoolScope], namespace: Option<&str>, conf: Option<&str>) -> Vec<&'a PoolScope> {
        let query = PoolQuery {
            disk: place(namespace.filter(|name| !name.is_empty()), conf),
            is_namespace_named: namespace.is_some(),
            is_conf_named: conf.is_some(),
        };
        let chosen = query.select(open.iter().copied().cloned().collect());
        open.iter().copied().filter(|in_pool| chosen.contains(in_pool)).collect()
    }

    #[test]
    fn every_open_disk_can_be_selected_by_options() {
        let (plain, conf) = (place(None, None), place(None, Some("/b")));
        let (named, both) = (place(Some("n"), None), place(Some("n"), Some("/b")));
        let all = [&plain, &conf, &named, &both];
        assert_eq!(left(&all, None, None).len(), 4);
        assert_eq!(left(&all, Some(""), None), [&plain]);
        assert_eq!(left(&all, Some(""), Some("/b")), [&conf]);
        assert_eq!(left(&all, Some("n"), None), [&named]);
        assert_eq!(left(&all, Some("n"), Some("/b")), [&both]);
        // One option is enough if only one disk matches it.
        assert_eq!(left(&[&plain, &both], Some("n"), None), [&both]);
        assert_eq!(left(&[&plain, &both], None, Some("/b")), [&both]);
        assert_eq!(left(&[&plain], Some("n"), None), [] as [&PoolScope; 0]);
    }

    #[test]
    fn an_exact_query_selects_one_disk() {
        let (plain, named) = (place(None, None), place(Some("n"), None));
        let open = BTreeSet::from([plain.clone(), named.clone()]);
        assert_eq!(PoolQuery::exactly(plain.clone()).select(open), BTreeSet::from([plain.clone()]));
        assert!(PoolQuery::exactly(named).select(BTreeSet::from([plain])).is_empty());
    }
}
