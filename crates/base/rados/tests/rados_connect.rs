//! Connecting to a cluster, and the errors if that fails.

mod ceph;

use lacuna_contracts::{Error, Kind};
use lacuna_medium::{KeySelection, ObjectStep, ObjectTransaction, Query};
use lacuna_rados::{ClusterOptions, RadosPool};
use std::path::Path;
use std::time::Duration;

fn refused(pool: &str, options: &ClusterOptions) -> Error {
    RadosPool::connect(pool, options).err().expect("no connection")
}

/// The test cluster's configuration, with a change.
fn changed_conf(dir: &Path, options: &ClusterOptions, change: impl Fn(&str) -> String) -> ClusterOptions {
    let conf = dir.join("ceph.conf");
    let original = std::fs::read_to_string(options.conf.as_ref().unwrap()).unwrap();
    std::fs::write(&conf, change(&original)).unwrap();
    ClusterOptions { conf: Some(conf), timeout: Some(Duration::from_secs(5)), ..options.clone() }
}

/// Whether librados can be loaded; prints a message if not.
fn has_librados() -> bool {
    let error =
        refused("p", &ClusterOptions { conf: Some("/nowhere/ceph.conf".into()), ..Default::default() });
    let has = !error.to_string().contains("librados2");
    if !has {
        assert_eq!(error.kind(), Kind::NotFound);
        eprintln!("skipped: {error}");
    }
    has
}

#[test]
fn a_missing_configuration_is_an_error() {
    if !has_librados() {
        return;
    }
    let options = ClusterOptions { conf: Some("/nowhere/ceph.conf".into()), ..Default::default() };
    let error = refused("p", &options);
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("/nowhere/ceph.conf") && error.to_string().contains("ceph_conf"));
}

#[test]
fn invalid_names_are_refused() {
    if !has_librados() {
        return;
    }
    assert_eq!(refused("a\0b", &ClusterOptions::default()).kind(), Kind::Usage);
    for (id, namespace) in [(Some("a\0b"), None), (None, Some("a\0b"))] {
        let options = ClusterOptions {
            conf: Some("/nowhere/ceph.conf".into()),
            id: id.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
            ..Default::default()
        };
        assert_eq!(refused("p", &options).kind(), Kind::Usage);
    }
}

#[test]
fn an_unreachable_cluster_times_out() {
    if !has_librados() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("ceph.conf");
    let text = "[global]\nmon host = v2:127.0.0.1:1/0\nauth client required = none\n";
    std::fs::write(&conf, text).unwrap();
    let options =
        ClusterOptions { conf: Some(conf), timeout: Some(Duration::from_millis(900)), ..Default::default() };
    let error = refused("p", &options);
    assert_eq!(error.kind(), Kind::TimedOut, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[test]
fn a_missing_pool_is_an_error() {
    let Some(options) = ceph::options() else { return };
    let error = refused("no-such-pool", &options);
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("ceph osd pool create no-such-pool"), "{error}");
}

#[test]
fn a_missing_or_wrong_key_ring_is_an_error() {
    let Some(options) = ceph::options() else { return };
    let dir = tempfile::tempdir().unwrap();
    let ring = dir.path().join("keyring");
    let with_ring = |conf: &str| {
        let others = conf.lines().filter(|line| !line.trim_start().starts_with("keyring"));
        let ring = format!("keyring = {}", ring.display());
        others.map(|line| if line.trim() == "[global]" { format!("{line}\n{ring}") } else { line.to_owned() } + "\n")
            .collect()
    };
    let none = changed_conf(dir.path(), &options, with_ring);
    let error = refused(ceph::POOL, &none);
    assert_eq!(error.kind(), Kind::Permission, "{error}");
    assert!(error.to_string().contains("client.admin") && error.to_string().contains("key ring"), "{error}");

    std::fs::write(&ring, "[client.admin]\nkey = AQAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAAA==\n").unwrap();
    let error = refused(ceph::POOL, &none);
    assert_eq!(error.kind(), Kind::Permission, "{error}");

    let nobody = ClusterOptions { id: Some("nobody".to_owned()), ..options };
    let error = refused(ceph::POOL, &nobody);
    assert_eq!(error.kind(), Kind::Permission, "{error}");
    assert!(error.to_string().contains("client.nobody"), "{error}");
}

#[test]
fn an_invalid_configuration_is_an_error() {
    let Some(options) = ceph::options() else { return };
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("ceph.conf");
    std::fs::write(&conf, "[global\nmon host\n\0\u{1}").unwrap();
    let error = refused(ceph::POOL, &ClusterOptions { conf: Some(conf), ..options });
    assert!(error.to_string().contains("ceph.conf"), "{error}");
}

#[test]
fn namespaces_are_apart() {
    let Some(options) = ceph::options() else { return };
    let prefix = ceph::unique("namespace");
    let [one, two] = [Some("test-one"), None].map(|namespace| {
        let namespace = namespace.map(str::to_owned);
        let id = Some("client.admin".to_owned());
        let pool =
            RadosPool::connect(ceph::POOL, &ClusterOptions { id, namespace, ..options.clone() }).unwrap();
        assert_eq!(pool.name(), ceph::POOL);
        ceph::CleanedStore(pool.objects(&prefix).unwrap())
    });
    let steps = vec![ObjectStep::Write { offset: 0, data: b"one" }];
    one.0.apply_one(ObjectTransaction { object: 3, steps }).unwrap();
    let query = || Query { object: 3, extents: Vec::new(), keys: KeySelection::None };
    assert!(one.0.query_one(query()).unwrap().version.is_some());
    assert_eq!(two.0.query_one(query()).unwrap().version, None);
    assert_eq!(one.0.list().unwrap(), [3]);
    assert_eq!(two.0.list().unwrap(), []);
}

#[test]
fn prefixes_are_apart() {
    let Some(pool) = ceph::pool() else { return };
    let prefix = ceph::unique("prefix");
    let names =
        [prefix.clone(), format!("{prefix}.0000000000000001"), format!("{prefix}x"), format!("{prefix}.")];
    let stores = names.map(|name| ceph::CleanedStore(pool.objects(&name).unwrap()));
    for (n, store) in stores.iter().enumerate() {
        store.0.apply_one(ObjectTransaction { object: n as u64, steps: vec![ObjectStep::Create] }).unwrap();
    }
    for (n, store) in stores.iter().enumerate() {
        assert_eq!(store.0.list().unwrap(), [n as u64]);
    }
    assert_eq!(pool.objects("a\0b").err().unwrap().kind(), Kind::Usage);
}

#[test]
fn an_object_past_the_limit_is_refused() {
    let Some(pool) = ceph::pool() else { return };
    let store = ceph::store(&pool, "large");
    let steps = vec![ObjectStep::Write { offset: store.0.object_limit(), data: b"x" }];
    let error = store.0.apply_one(ObjectTransaction { object: 0, steps }).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage, "{error}");
}
