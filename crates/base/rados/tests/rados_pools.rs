//! Pools that are full, removed or unsuitable, and keys with restricted rights. Each test creates
//! its own, with the cluster's `ceph` command.

mod ceph;

use lacuna_contracts::Kind;
use lacuna_medium::{KeySelection, ObjectStep, ObjectStore, ObjectTransaction, Query, ReadExtent};
use lacuna_rados::{ClusterOptions, RadosPool};
use std::process::Command;
use std::time::{Duration, Instant};

/// The time limit for the cluster to notice a change.
const PATIENCE: Duration = Duration::from_secs(60);

/// The cluster and its `ceph` command; `None`, with a message, if one is missing.
struct Admin(ClusterOptions);

impl Admin {
    fn new() -> Option<Admin> {
        let options = ceph::options()?;
        if Command::new("ceph").arg("--version").output().is_err() {
            eprintln!("skipped: there is no `ceph` command");
            return None;
        }
        Some(Admin(options))
    }

    fn run(&self, command: &str) -> String {
        let output = Command::new("ceph")
            .arg("--conf")
            .arg(self.0.conf.as_ref().unwrap())
            .args(command.split(' '))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ceph {command}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A separate pool for a test.
    fn pool(&self, test: &str, kind: &str) -> OwnPool<'_> {
        let name = ceph::unique(test);
        self.run(format!("osd pool create {name} 1 1 {kind}").trim_end());
        OwnPool { admin: self, name }
    }

    /// A user with exactly these rights.
    fn user(&self, dir: &std::path::Path, rights: &[&str]) -> (OwnUser<'_>, ClusterOptions) {
        let id = ceph::unique("user");
        let key = {
            let conf = self.0.conf.as_ref().unwrap();
            let mut command = Command::new("ceph");
            command.arg("--conf").arg(conf).args(["auth", "get-or-create", &format!("client.{id}")]);
            let output = command.args(rights).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        };
        let ring = dir.join("keyring");
        std::fs::write(&ring, key).unwrap();
        let conf = std::fs::read_to_string(self.0.conf.as_ref().unwrap()).unwrap();
        let conf: String = conf
            .lines()
            .filter(|line| !line.trim_start().starts_with("keyring"))
            .flat_map(|line| [line, "\n"])
            .collect();
        let own = dir.join("ceph.conf");
        std::fs::write(&own, format!("{conf}[client.{id}]\nkeyring = {}\n", ring.display())).unwrap();
        let options = ClusterOptions { conf: Some(own), id: Some(id.clone()), ..Default::default() };
        (OwnUser { admin: self, id }, options)
    }
}

struct OwnPool<'a> {
    admin: &'a Admin,
    name: String,
}

impl OwnPool<'_> {
    fn delete(&self) {
        self.admin.run(&format!("osd pool delete {0} {0} --yes-i-really-really-mean-it", self.name));
    }
}

impl Drop for OwnPool<'_> {
    fn drop(&mut self) {
        self.delete();
    }
}

struct OwnUser<'a> {
    admin: &'a Admin,
    id: String,
}

impl Drop for OwnUser<'_> {
    fn drop(&mut self) {
        self.admin.run(&format!("auth rm client.{}", self.id));
    }
}

fn write(store: &dyn ObjectStore, object: u64, data: &[u8]) -> lacuna_contracts::Result<u64> {
    store.apply_one(ObjectTransaction { object, steps: vec![ObjectStep::Write { offset: 0, data }] })
}

fn read(store: &dyn ObjectStore, object: u64) -> lacuna_contracts::Result<([u8; 4], bool)> {
    let mut buf = [9; 4];
    let extents = vec![ReadExtent { offset: 0, buf: &mut buf }];
    let found = store.query_one(Query { object, extents, keys: KeySelection::None })?;
    Ok((buf, found.version.is_some()))
}

#[test]
fn a_full_pool_refuses_writes() {
    let Some(admin) = Admin::new() else { return };
    let own = admin.pool("full", "");
    let pool = RadosPool::connect(&own.name, &admin.0).unwrap();
    let store = pool.objects("full").unwrap();
    write(&*store, 0, b"here").unwrap();
    admin.run(&format!("osd pool set-quota {} max_objects 1", own.name));
    // The cluster counts objects only from time to time.
    let since = Instant::now();
    let error = (1..)
        .find_map(|object| {
            assert!(since.elapsed() < PATIENCE, "the quota was never reached");
            std::thread::sleep(Duration::from_millis(100));
            write(&*store, object, b"more").err()
        })
        .unwrap();
    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
    assert!(error.to_string().contains("quota") && error.to_string().contains(&own.name), "{error}");
    // Reading and opening still work, and space can be freed.
    assert_eq!(read(&*store, 0).unwrap(), (*b"here", true));
    let again = RadosPool::connect(&own.name, &admin.0).unwrap();
    assert!(again.has_keys());
    let lock = again.lock_writer("full.0000000000000000", false).unwrap();
    for object in store.list().unwrap() {
        store.apply_one(ObjectTransaction { object, steps: vec![ObjectStep::Remove] }).unwrap();
    }
    drop(lock);
}

#[test]
fn a_deleted_pool_does_not_read_as_zeros() {
    let Some(admin) = Admin::new() else { return };
    let own = admin.pool("gone", "");
    let pool = RadosPool::connect(&own.name, &admin.0).unwrap();
    let store = pool.objects("gone").unwrap();
    write(&*store, 0, b"here").unwrap();
    own.delete();
    let since = Instant::now();
    let error = loop {
        assert!(since.elapsed() < PATIENCE, "the pool still answers");
        match read(&*store, 0) {
            Ok(answer) => assert_eq!(answer, (*b"here", true)),
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    assert!(error.to_string().contains(&format!("no pool `{}`", own.name)), "{error}");
    assert_eq!(write(&*store, 0, b"lost").unwrap_err().kind(), Kind::NotFound);
    assert_eq!(store.list().unwrap_err().kind(), Kind::NotFound);
    assert_eq!(store.roll_back(0, 1).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn an_erasure_coded_pool_without_overwrites_is_refused() {
    let Some(admin) = Admin::new() else { return };
    let own = admin.pool("append", "erasure");
    let error = RadosPool::connect(&own.name, &admin.0).err().unwrap();
    assert_eq!(error.kind(), Kind::Usage, "{error}");
    assert!(error.to_string().contains("allow_ec_overwrites"), "{error}");
}

#[test]
fn a_pool_with_pool_snapshots_refuses_ours() {
    let Some(admin) = Admin::new() else { return };
    let own = admin.pool("mksnap", "");
    admin.run(&format!("osd pool mksnap {} theirs", own.name));
    let pool = RadosPool::connect(&own.name, &admin.0).unwrap();
    let error = pool.objects("mksnap").unwrap().create_snapshot().unwrap_err();
    assert!(error.to_string().contains("mksnap"), "{error}");
}

#[test]
fn the_rbd_profile_grants_every_needed_right() {
    let Some(admin) = Admin::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let rights = format!("profile rbd pool={}", ceph::POOL);
    let (_user, options) = admin.user(dir.path(), &["mon", "profile rbd", "osd", &rights]);
    let prefix = ceph::unique("rbd");
    let connect = || RadosPool::connect(ceph::POOL, &options).unwrap();
    let (one, two) = (connect(), connect());
    let store = ceph::CleanedStore(two.objects(&prefix).unwrap());
    let object = format!("{prefix}.{:016x}", 0);
    let _lock = one.lock_writer(&object, false).unwrap();
    assert_eq!(two.lock_writer(&object, false).err().unwrap().kind(), Kind::Busy);
    let _stolen = two.lock_writer(&object, true).unwrap();
    write(&*store.0, 0, b"here").unwrap();
    let id = store.0.create_snapshot().unwrap();
    store.0.set_snapshots(&[id]).unwrap();
    write(&*store.0, 0, b"then").unwrap();
    store.0.roll_back(0, id).unwrap();
    store.0.remove_snapshot(id).unwrap();
    assert_eq!(read(&*store.0, 0).unwrap(), (*b"here", true));
    if let Ok(elsewhere) = RadosPool::connect(ceph::ERASURE_CODED_POOL, &options) {
        let error = write(&*elsewhere.objects(&prefix).unwrap(), 0, b"lost").unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error}");
    }
}

#[test]
fn a_read_only_client_can_read() {
    let Some(admin) = Admin::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let rights = format!("allow r pool={}", ceph::POOL);
    let (_user, options) = admin.user(dir.path(), &["mon", "allow r", "osd", &rights]);
    let prefix = ceph::unique("readers");
    let all = ceph::pool().unwrap();
    let store = ceph::CleanedStore(all.objects(&prefix).unwrap());
    write(&*store.0, 0, b"here").unwrap();
    let reader = RadosPool::connect(ceph::POOL, &options).unwrap();
    let seen = reader.objects(&prefix).unwrap();
    assert_eq!(read(&*seen, 0).unwrap(), (*b"here", true));
    assert_eq!(seen.list().unwrap(), [0]);
    let error = write(&*seen, 0, b"lost").unwrap_err();
    assert_eq!(error.kind(), Kind::Permission, "{error}");
    assert!(error.to_string().contains("ceph auth caps"), "{error}");
    let object = format!("{prefix}.{:016x}", 0);
    assert_eq!(reader.lock_writer(&object, false).err().unwrap().kind(), Kind::Permission);
    assert_eq!(seen.create_snapshot().unwrap_err().kind(), Kind::Permission);
}

#[test]
fn a_client_without_the_blocklist_right_cannot_steal() {
    let Some(admin) = Admin::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let rights = format!("allow rwx pool={}", ceph::POOL);
    let (_user, options) = admin.user(dir.path(), &["mon", "allow r", "osd", &rights]);
    let object = ceph::unique("no-steal");
    let holder = ceph::pool().unwrap();
    let store = ceph::CleanedStore(holder.objects(&object).unwrap());
    let object = format!("{object}.{:016x}", 0);
    let _lock = holder.lock_writer(&object, false).unwrap();
    let thief = RadosPool::connect(ceph::POOL, &options).unwrap();
    let error = thief.lock_writer(&object, true).err().unwrap();
    assert_eq!(error.kind(), Kind::Permission, "{error}");
    assert!(error.to_string().contains("shut out"), "{error}");
    write(&*store.0, 0, b"here").unwrap();
}
