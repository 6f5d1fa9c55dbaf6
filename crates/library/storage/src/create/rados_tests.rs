//! Disks in a pool in memory, with reads that time out once.

use super::*;
use crate::backing::rados::ObjectPool;
use crate::cost::Cost;
use crate::format::{CreateOptions, Shape};
use crate::observer::Silent;
use crate::rados::{ClusterOptions, WriterLock, WriterSeries};
use lacuna_contracts::SecretVec;
use lacuna_sim::{MemoryObject, MemoryObjects, QueryTimeouts};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// A pool in memory: its objects by the prefix of their names.
#[derive(Default)]
struct MemoryPool(Mutex<BTreeMap<String, PrefixObjects>>);

/// The objects with one prefix, and the queries of clients that time out.
#[derive(Clone)]
struct PrefixObjects {
    objects: Arc<MemoryObjects>,
    timeouts: QueryTimeouts,
}

impl Default for PrefixObjects {
    fn default() -> PrefixObjects {
        PrefixObjects { objects: Arc::new(MemoryObjects::new(true)), timeouts: QueryTimeouts::default() }
    }
}

impl MemoryPool {
    fn at(&self, prefix: &str) -> PrefixObjects {
        self.0.lock().entry(prefix.to_owned()).or_default().clone()
    }
}

impl ObjectPool for Arc<MemoryPool> {
    fn has_keys(&self) -> bool {
        true
    }
    fn objects(&self, prefix: &str) -> Result<Arc<dyn ObjectStore>> {
        let PrefixObjects { objects, timeouts } = self.at(prefix);
        Ok(timeouts.wrap(objects))
    }
    fn object_names(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = vec![];
        for (own, there) in self.0.lock().iter().filter(|(own, _)| own.starts_with(prefix)) {
            names.extend(there.objects.list()?.into_iter().map(|number| format!("{own}.{number:016x}")));
        }
        Ok(names)
    }
    fn lock_writer(&self, _: &str, _: bool, _: Option<WriterSeries>) -> Result<WriterLock> {
        Err(Error::new(Kind::Usage, "a pool in memory has no locks"))
    }
    fn check_taken_over(&self) -> Result<()> {
        Ok(())
    }
}

fn connection(pool: &Arc<MemoryPool>, name: &str) -> Arc<PoolConnection> {
    let target = PoolLocation {
        pool: "pool".into(),
        name: name.into(),
        snapshot: None,
        options: ClusterOptions::default(),
        display_name: format!("rados:pool/{name}"),
    };
    Arc::new(PoolConnection::over(Box::new(pool.clone()), &target))
}

fn create_disk(pool: &Arc<MemoryPool>, name: &str, force: bool) -> Result<CreatedDisk> {
    let location = Location::parse(&format!("rados:pool/{name}")).unwrap();
    let cost = Cost::fixed(1024, 1).unwrap();
    let options = CreateOptions { cost, force, ..CreateOptions::new(location, Shape::sealed(), 64 << 20) };
    let context = CreateContext { options: &options, observer: &Silent };
    let params = options.shape.format.plan(&options, AvailableSpace::Pool { has_keys: true })?;
    let secret = || vec![vec![SecretVec::new(b"correct horse".to_vec())]];
    create_under_lock(&context, &connection(pool, name), params, Box::new(|_| Ok(secret())))
}

/// A disk `original` with an object of data. Returns its data objects and its book.
fn original(pool: &Arc<MemoryPool>) -> [Arc<MemoryObjects>; 2] {
    let made = create_disk(pool, "original", false).unwrap();
    let stores = ["data", "book"].map(|family| {
        let uuid = made.header.uuid.to_string().replace('-', "");
        pool.at(&format!("lacuna.{uuid}.{family}")).objects
    });
    stores[0].replace(3, Some(MemoryObject::default()));
    stores
}

#[test]
fn a_failed_read_of_a_copied_header_takes_no_data_with_it() {
    let pool = Arc::new(MemoryPool::default());
    let stores = original(&pool);
    let objects = || stores.each_ref().map(|store| store.list().unwrap());
    let before = objects();
    assert_eq!((before[0].as_slice(), before[1].is_empty()), (&[3][..], false));
    let (header, copy) = (pool.at("lacuna.original").objects, pool.at("lacuna.copy"));
    for object in header.list().unwrap() {
        copy.objects.replace(object, header.object(object));
    }
    copy.timeouts.fail_next_read();
    let failed = create_disk(&pool, "copy", true).err().unwrap();
    assert_eq!(failed.kind(), Kind::TimedOut, "{failed}");
    let refused = create_disk(&pool, "copy", true).err().unwrap();
    assert!(refused.to_string().contains("under the name original"), "{refused}");
    assert_eq!(objects(), before);
    assert!(public_header(&connection(&pool, "original")).is_ok());
}

#[test]
fn a_disk_without_a_header_is_replaced_and_keeps_its_objects() {
    let pool = Arc::new(MemoryPool::default());
    let stores = original(&pool);
    let header = pool.at("lacuna.original").objects;
    for object in header.list().unwrap() {
        header.replace(object, Some(MemoryObject::default()));
    }
    let refused = create_disk(&pool, "original", false).err().unwrap();
    assert_eq!(refused.kind(), Kind::Exists);
    let made = create_disk(&pool, "original", true).unwrap();
    assert_eq!(public_header(&connection(&pool, "original")).unwrap().uuid, made.header.uuid);
    assert_eq!(stores[0].list().unwrap(), [3]);
}
