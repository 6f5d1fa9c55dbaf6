//! The properties of a disk that was made without options.

use crate::harness::Scene;
use crate::pool::{Cluster, PoolDisk};

#[test]
fn the_default_cipher_detects_altered_data() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    assert_eq!(scene.lacuna(&["info", "disk.img", "--json"]).code(0).json()["cipher"], "gcm");
    scene.create("fast.img", &["--size", "64M", "--cipher", "xts-random"]).code(0);
    assert_eq!(scene.lacuna(&["info", "fast.img", "--json"]).code(0).json()["cipher"], "xts-random");
}

#[test]
fn the_same_cipher_is_the_default_in_a_pool() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    assert_eq!(disk.verb(&["info"], &["--json"]).code(0).json()["cipher"], "gcm");
}
