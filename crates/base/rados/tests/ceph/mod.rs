//! The Ceph cluster for tests, if there is one: `LACUNA_CEPH_CONF` names its configuration.
#![allow(dead_code, reason = "each test program uses its part")]

use lacuna_contracts::Kind;
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction};
use lacuna_rados::{ClusterOptions, RadosPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The replicated pool of the test cluster.
pub(crate) const POOL: &str = "lacuna";
/// The erasure-coded pool of the test cluster. It is optional.
pub(crate) const ERASURE_CODED_POOL: &str = "lacuna-ec";

/// The options for the cluster; `None`, with a message, if there is none.
pub(crate) fn options() -> Option<ClusterOptions> {
    let conf = std::env::var_os("LACUNA_CEPH_CONF").filter(|conf| !conf.is_empty());
    if conf.is_none() {
        eprintln!("skipped: no Ceph cluster (LACUNA_CEPH_CONF does not name its ceph.conf)");
    }
    Some(ClusterOptions { conf: Some(conf?.into()), ..Default::default() })
}

/// A new connection to the pool.
pub(crate) fn pool() -> Option<Arc<RadosPool>> {
    Some(RadosPool::connect(POOL, &options()?).unwrap())
}

/// A new connection to the erasure-coded pool.
pub(crate) fn erasure_coded_pool() -> Option<Arc<RadosPool>> {
    match RadosPool::connect(ERASURE_CODED_POOL, &options()?) {
        Err(e) if e.kind() == Kind::NotFound => {
            eprintln!("skipped: no erasure-coded pool ({e})");
            None
        }
        pool => Some(pool.unwrap()),
    }
}

/// A unique prefix.
pub(crate) fn unique(test: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    format!("test.{test}.{}.{since:x}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Removes every object of a store when dropped.
pub(crate) struct CleanedStore(pub Arc<dyn ObjectStore>);

impl Drop for CleanedStore {
    fn drop(&mut self) {
        let Ok(objects) = self.0.list() else { return };
        for object in objects {
            let _gone = self.0.apply_one(ObjectTransaction { object, steps: vec![ObjectStep::Remove] });
        }
    }
}

/// A separate store for a test, in a pool.
pub(crate) fn store(pool: &Arc<RadosPool>, test: &str) -> CleanedStore {
    CleanedStore(pool.objects(&unique(test)).unwrap())
}
