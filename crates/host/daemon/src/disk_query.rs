//! What is looked for in the registry: a disk or vault, as a command names it.

use crate::file::FileIdentity;
use crate::record::InPool;
use std::collections::BTreeSet;

/// A disk or vault that is looked for.
#[derive(Clone, Debug)]
pub struct DiskQuery<'q> {
    /// The location as `list` shows it.
    pub location: &'q str,
    /// The file that is there now.
    pub file: FileIdentity,
    /// Which of the disks of this name are meant, if it is the name of a disk in a pool.
    pub in_pool: Option<PoolQuery>,
}

/// Which of the disks of one name in pools are meant: their location says neither the namespace nor
/// the cluster.
#[derive(Clone, Debug)]
pub struct PoolQuery {
    /// The disk, with the default for what was not named.
    pub disk: InPool,
    /// Whether its namespace was named.
    pub is_namespace_named: bool,
    /// Whether the configuration file of its cluster was named.
    pub is_conf_named: bool,
}

impl PoolQuery {
    /// This disk and no other.
    pub fn exactly(disk: InPool) -> PoolQuery {
        PoolQuery { disk, is_namespace_named: true, is_conf_named: true }
    }

    /// Those that are meant of the disks that are open: all that have what was named; the disk with
    /// the defaults alone if it is one of them and anything was named.
    pub(crate) fn chosen(&self, mut open: BTreeSet<InPool>) -> BTreeSet<InPool> {
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

    fn place(namespace: Option<&str>, conf: Option<&str>) -> InPool {
        InPool { namespace: namespace.map(str::to_owned), ceph_conf: conf.map(PathBuf::from) }
    }

    /// What a command leaves of `open` that names these.
    fn left<'a>(open: &[&'a InPool], namespace: Option<&str>, conf: Option<&str>) -> Vec<&'a InPool> {
        let query = PoolQuery {
            disk: place(namespace.filter(|name| !name.is_empty()), conf),
            is_namespace_named: namespace.is_some(),
            is_conf_named: conf.is_some(),
        };
        let chosen = query.chosen(open.iter().copied().cloned().collect());
        open.iter().copied().filter(|in_pool| chosen.contains(in_pool)).collect()
    }

    #[test]
    fn every_open_disk_can_be_chosen_by_the_options_that_are_named_for_it() {
        let (plain, conf) = (place(None, None), place(None, Some("/b")));
        let (named, both) = (place(Some("n"), None), place(Some("n"), Some("/b")));
        let all = [&plain, &conf, &named, &both];
        assert_eq!(left(&all, None, None).len(), 4);
        assert_eq!(left(&all, Some(""), None), [&plain]);
        assert_eq!(left(&all, Some(""), Some("/b")), [&conf]);
        assert_eq!(left(&all, Some("n"), None), [&named]);
        assert_eq!(left(&all, Some("n"), Some("/b")), [&both]);
        // One option is enough for the only one that it fits.
        assert_eq!(left(&[&plain, &both], Some("n"), None), [&both]);
        assert_eq!(left(&[&plain, &both], None, Some("/b")), [&both]);
        assert_eq!(left(&[&plain], Some("n"), None), [] as [&InPool; 0]);
    }

    #[test]
    fn one_disk_is_that_disk_alone() {
        let (plain, named) = (place(None, None), place(Some("n"), None));
        let open = BTreeSet::from([plain.clone(), named.clone()]);
        assert_eq!(PoolQuery::exactly(plain.clone()).chosen(open), BTreeSet::from([plain.clone()]));
        assert!(PoolQuery::exactly(named).chosen(BTreeSet::from([plain])).is_empty());
    }
}
