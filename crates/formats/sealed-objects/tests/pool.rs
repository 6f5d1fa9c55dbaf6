//! Disks in a real Ceph pool, with all their threads: snapshots, rollbacks, and objects removed or
//! replayed by an adversary. Skipped if `LACUNA_CEPH_CONF` names no cluster.

mod fixture;

use fixture::{UUID, all_ciphers_and_layouts, assert_reads, master, read, write};
use lacuna_contracts::{BlockAddr, Budget, Disk, Kind};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction, Query, ReadExtent};
use lacuna_rados::{ClusterOptions, RadosPool};
use lacuna_sealed_objects::{
    ObjectAccess, ObjectDisk, ObjectLayout, ObjectOptions, ObjectParams, Stores, list_snapshots,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const BLOCKS: u64 = 3 * 1024 + 100;

/// A disk in a pool; dropping it removes its objects.
struct PoolDisk {
    pool: Arc<RadosPool>,
    prefix: String,
    params: ObjectParams,
}

fn connect(pool: &str) -> Option<Arc<RadosPool>> {
    let conf = std::env::var_os("LACUNA_CEPH_CONF").filter(|conf| !conf.is_empty());
    if conf.is_none() {
        eprintln!("skipped: no Ceph cluster (LACUNA_CEPH_CONF does not name its ceph.conf)");
    }
    let options = ClusterOptions { conf: Some(conf?.into()), ..ClusterOptions::default() };
    match RadosPool::connect(pool, &options) {
        Err(e) if e.kind() == Kind::NotFound => {
            eprintln!("skipped: {e}");
            None
        }
        pool => Some(pool.unwrap()),
    }
}

impl PoolDisk {
    fn new(pool: &Arc<RadosPool>, cipher: Cipher, layout: ObjectLayout) -> PoolDisk {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let params = ObjectParams::plan(cipher, layout, BLOCKS).unwrap();
        let prefix = format!("test.sealed.{}.{number}", std::process::id());
        let disk = PoolDisk { pool: pool.clone(), prefix, params };
        ObjectDisk::create(&disk.stores(), &params, &master(), &UUID).unwrap();
        disk
    }

    fn objects(&self, family: &str) -> Arc<dyn ObjectStore> {
        self.pool.objects(&format!("{}.{family}", self.prefix)).unwrap()
    }

    fn stores(&self) -> Stores {
        Stores { data: self.objects("data"), book: self.objects("book") }
    }

    fn open_at(&self, snapshot: Option<&str>) -> ObjectDisk {
        let options = ObjectOptions {
            budget: Budget::bytes(8 << 20),
            access: ObjectAccess::Write,
            background: true,
            write_through: false,
            snapshot: snapshot.map(Into::into),
            random: Arc::new(SeededRandom::new(1)),
            kept: None,
        };
        ObjectDisk::open(self.stores(), &self.params, &master(), &UUID, options).unwrap()
    }

    fn session(&self, f: impl FnOnce(&ObjectDisk)) {
        let disk = self.open_at(None);
        f(&disk);
        disk.close().unwrap();
    }

    /// All bytes of an object, without keys: the layout has none.
    fn bytes(&self, object: u64) -> Vec<u8> {
        let mut bytes = vec![0; 1024 * 4128 + 32];
        let extents = vec![ReadExtent { offset: 0, buf: &mut bytes }];
        let query = Query { object, extents, keys: lacuna_medium::KeySelection::None };
        assert!(self.objects("data").query_one(query).unwrap().version.is_some());
        bytes
    }

    fn change(&self, object: u64, steps: Vec<ObjectStep<'_>>) {
        self.objects("data").apply_one(ObjectTransaction { object, steps }).unwrap();
    }
}

impl Drop for PoolDisk {
    fn drop(&mut self) {
        let stores = self.stores();
        for snapshot in list_snapshots(&*stores.book).unwrap_or_default() {
            let _gone = (
                stores.data.remove_snapshot(snapshot.data_id),
                stores.book.remove_snapshot(snapshot.book_id),
            );
        }
        for store in [stores.data, stores.book] {
            for object in store.list().unwrap_or_default() {
                let _gone = store.apply_one(ObjectTransaction { object, steps: vec![ObjectStep::Remove] });
            }
        }
    }
}

fn assert_all(disk: &ObjectDisk, blocks: &[(u64, u64)]) {
    blocks.iter().for_each(|(block, stamp)| assert_reads(disk, *block, *stamp));
    let report = disk.check(|_| Ok(()), |bad| panic!("{}", bad.error)).unwrap();
    assert_eq!(report.bad, 0);
}

const FIRST: [(u64, u64); 5] = [(0, 1), (70, 1), (1024, 1), (2048, 0), (BLOCKS - 1, 1)];
const SECOND: [(u64, u64); 5] = [(0, 2), (70, 1), (1024, 0), (2048, 2), (BLOCKS - 1, 1)];

fn roll_back_and_forth(pool: &Arc<RadosPool>, cipher: Cipher, layout: ObjectLayout) {
    let disk = PoolDisk::new(pool, cipher, layout);
    disk.session(|disk| {
        write(disk, 0, 100, 1);
        write(disk, 1024, 1024, 1);
        write(disk, BLOCKS - 1, 1, 1);
        disk.create_snapshot("first").unwrap();
        write(disk, 0, 1, 2);
        disk.discard(BlockAddr(1024), 1024).unwrap();
        write(disk, 2048, 1024, 2);
        disk.create_snapshot("second").unwrap();
        write(disk, 0, 2048, 3);
    });
    assert_all(&disk.open_at(Some("first")), &FIRST);
    assert_all(&disk.open_at(Some("second")), &SECOND);
    for (name, state) in [("second", &SECOND), ("first", &FIRST), ("second", &SECOND)] {
        disk.session(|disk| disk.rollback(name).unwrap());
        assert_all(&disk.open_at(None), state);
        assert_all(&disk.open_at(Some("first")), &FIRST);
    }
    disk.session(|disk| disk.remove_snapshot("first").unwrap());
    assert_all(&disk.open_at(Some("second")), &SECOND);
    disk.session(|disk| disk.remove_snapshot("second").unwrap());
    assert_all(&disk.open_at(None), &SECOND);
}

#[test]
fn snapshots_and_rollbacks_work_in_every_layout() {
    let Some(pool) = connect("lacuna") else { return };
    for (cipher, layout) in all_ciphers_and_layouts() {
        roll_back_and_forth(&pool, cipher, layout);
    }
}

#[test]
fn snapshots_and_rollbacks_work_in_an_erasure_coded_pool() {
    let Some(pool) = connect("lacuna-ec") else { return };
    for layout in [ObjectLayout::SegmentEnd, ObjectLayout::Interleaved] {
        roll_back_and_forth(&pool, Cipher::Gcm, layout);
    }
}

#[test]
fn removed_and_replayed_objects_of_a_gcm_disk_are_refused() {
    let Some(pool) = connect("lacuna") else { return };
    for layout in ObjectLayout::ALL {
        let disk = PoolDisk::new(&pool, Cipher::Gcm, layout);
        disk.session(|disk| [0, 1024, 2048].into_iter().for_each(|block| write(disk, block, 1, 1)));
        let old = (!layout.needs_keys()).then(|| disk.bytes(1));
        disk.session(|disk| write(disk, 1024, 1, 2));
        disk.change(0, vec![ObjectStep::Remove]);
        if let Some(old) = &old {
            disk.change(1, vec![ObjectStep::Write { offset: 0, data: old }]);
        }
        let opened = disk.open_at(None);
        assert_eq!(read(&opened, 0).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(read(&opened, 1024).is_err(), old.is_some());
        assert_reads(&opened, 2048, 1);
        let mut named = vec![];
        opened.check(|_| Ok(()), |bad| named.push(bad.error.to_string())).unwrap();
        assert!(named[0].contains("object 0000000000000000 is missing"), "{}", named[0]);
        if old.is_some() {
            assert!(named[1024].contains("object 0000000000000001 is an older version"), "{}", named[1024]);
        }
        assert_eq!(named.len(), if old.is_some() { 2048 } else { 1024 });
    }
}
