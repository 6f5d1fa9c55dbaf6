//! Disks in a pool of Ceph RADOS, for tests. Without a cluster the tests are skipped, with a
//! message.

use crate::harness::{CHEAP, RunOutput, Scene, Serving, skipped};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The configuration of the cluster, and the folder where `scripts/ceph-cluster.sh` keeps it.
const CONF: &str = "LACUNA_CEPH_CONF";
const DIR: &str = "LACUNA_CEPH_DIR";
/// The pool that the script makes.
pub(crate) const POOL: &str = "lacuna";

/// Tests that break the cluster run alone.
static CLUSTER_LOCK: RwLock<()> = RwLock::new(());
static DISKS: AtomicU32 = AtomicU32::new(0);

enum ClusterLock {
    #[allow(dead_code)]
    Shared(RwLockReadGuard<'static, ()>),
    #[allow(dead_code)]
    Alone(RwLockWriteGuard<'static, ()>),
    /// Another value of the same test holds the lock.
    Elsewhere,
}

/// A running cluster.
pub(crate) struct Cluster {
    pub conf: PathBuf,
    _turn: ClusterLock,
}

impl Cluster {
    /// The cluster, shared with other tests.
    pub(crate) fn shared() -> Option<Cluster> {
        let conf = conf()?;
        Some(Cluster {
            conf,
            _turn: ClusterLock::Shared(CLUSTER_LOCK.read().unwrap_or_else(PoisonError::into_inner)),
        })
    }

    /// The same cluster for the same test, which must not wait for its own lock.
    pub(crate) fn again(&self) -> Cluster {
        Cluster { conf: self.conf.clone(), _turn: ClusterLock::Elsewhere }
    }

    /// The cluster, for a test that breaks and repairs it.
    pub(crate) fn exclusive() -> Option<Cluster> {
        let conf = conf()?;
        if std::env::var_os(DIR).is_none() {
            skipped(&format!("{DIR} does not say where the cluster is, so its parts cannot be stopped"));
            return None;
        }
        Some(Cluster {
            conf,
            _turn: ClusterLock::Alone(CLUSTER_LOCK.write().unwrap_or_else(PoisonError::into_inner)),
        })
    }

    /// Runs one of Ceph's own programs, requires success and returns its output.
    #[track_caller]
    pub(crate) fn tool(&self, program: &str, args: &[&str]) -> String {
        let output = Command::new(program).arg("-c").arg(&self.conf).args(args).output();
        RunOutput::from(output.unwrap_or_else(|e| panic!("{program}: {e}"))).code(0).stdout
    }

    /// Runs a verb of the script that manages the cluster.
    #[track_caller]
    pub(crate) fn script(&self, verb: &str, rest: &[&str]) {
        assert!(self.try_script(verb, rest), "ceph-cluster.sh {verb} failed");
    }

    /// The same; returns whether it succeeded.
    #[allow(clippy::unused_self)]
    pub(crate) fn try_script(&self, verb: &str, rest: &[&str]) -> bool {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/ceph-cluster.sh");
        let dir = std::env::var_os(DIR).unwrap_or_default();
        let output = Command::new(script).arg(verb).arg(dir).args(rest).output();
        output.is_ok_and(|output| output.status.success())
    }
}

fn conf() -> Option<PathBuf> {
    let conf = std::env::var_os(CONF).map(PathBuf::from);
    if conf.is_none() {
        skipped(&format!("no Ceph cluster to test with: {CONF} is not set"));
    }
    conf
}

/// A name in the pool that no other test or run uses.
pub(crate) fn new_name() -> String {
    format!("test-{}-{}", std::process::id(), DISKS.fetch_add(1, Ordering::Relaxed))
}

/// A directory to run the program in, and a disk in the pool, which is deleted on drop.
pub(crate) struct PoolDisk {
    pub scene: Scene,
    pub cluster: Cluster,
    pub location: String,
}

impl PoolDisk {
    /// Makes a disk with `options`.
    pub(crate) fn create(cluster: Cluster, options: &[&str]) -> PoolDisk {
        let disk = PoolDisk::unmade(cluster);
        disk.verb(&["create"], &[&["--key-file", "key"], &CHEAP[..], options].concat()).code(0);
        disk
    }

    /// A name without a disk.
    pub(crate) fn unmade(cluster: Cluster) -> PoolDisk {
        PoolDisk { scene: Scene::new(), cluster, location: format!("rados:{POOL}/{}", new_name()) }
    }

    /// Words of a verb, then the location, then the rest.
    pub(crate) fn words<'a>(&'a self, verb: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
        let conf = self.cluster.conf.to_str().unwrap();
        [verb, &[self.location.as_str()], rest, &["--ceph-conf", conf]].concat()
    }

    /// Runs the program.
    #[track_caller]
    pub(crate) fn verb(&self, verb: &[&str], rest: &[&str]) -> RunOutput {
        self.scene.lacuna(&self.words(verb, rest))
    }

    /// Runs the program with the passphrase.
    #[track_caller]
    pub(crate) fn keyed(&self, verb: &[&str], rest: &[&str]) -> RunOutput {
        self.verb(verb, &[rest, &["--key-file", "key"]].concat())
    }

    /// Runs the program on a snapshot of the disk, with the passphrase.
    #[track_caller]
    pub(crate) fn keyed_at(&self, snapshot: &str, verb: &[&str], rest: &[&str]) -> RunOutput {
        let location = format!("{}@{snapshot}", self.location);
        let conf = self.cluster.conf.to_str().unwrap();
        let words = [verb, &[&location], rest, &["--key-file", "key", "--ceph-conf", conf]].concat();
        self.scene.lacuna(&words)
    }

    /// Serves the disk.
    pub(crate) fn serve(&self, options: &[&str]) -> Serving {
        self.serve_in(&self.scene, &self.location, options)
    }

    /// Serves the disk read-only, and discards messages about failed requests.
    pub(crate) fn serve_damaged(&self) -> Serving {
        let words = ["--socket", "nbd.sock", "--key-file", "key", "--read-only"];
        self.scene
            .serve_command_logging_to(&mut self.scene.command(&self.words(&["serve"], &words)), Stdio::null())
    }

    /// Serves a snapshot of the disk.
    pub(crate) fn serve_at(&self, snapshot: &str, options: &[&str]) -> Serving {
        self.serve_in(&self.scene, &format!("{}@{snapshot}", self.location), options)
    }

    /// Serves `location` on the socket of another scene.
    pub(crate) fn serve_in(&self, scene: &Scene, location: &str, options: &[&str]) -> Serving {
        let conf = self.cluster.conf.to_str().unwrap();
        scene.serve_disk(location, &[options, &["--ceph-conf", conf]].concat())
    }

    /// The prefix of the disk's data objects.
    pub(crate) fn data_prefix(&self) -> String {
        let info = self.verb(&["info"], &["--json"]).code(0).json();
        info["medium"]["objects"].as_str().unwrap().to_owned()
    }

    /// Number of clients that hold the lock on the disk.
    pub(crate) fn lockers(&self) -> usize {
        let object = format!("lacuna.{}.lock.{:016x}", self.location.rsplit('/').next().unwrap(), 0);
        let words = ["-p", POOL, "lock", "info", &object, "lacuna.writer", "--format", "json"];
        let info: serde_json::Value = serde_json::from_str(&self.cluster.tool("rados", &words)).unwrap();
        info["lockers"].as_array().unwrap().len()
    }

    /// Every object in the pool with a name that begins with `prefix`.
    pub(crate) fn objects(&self, prefix: &str) -> Vec<String> {
        let listed = self.cluster.tool("rados", &["-p", POOL, "ls"]);
        let mut found: Vec<String> =
            listed.lines().filter(|name| name.starts_with(prefix)).map(str::to_owned).collect();
        found.sort();
        found
    }
}

impl Drop for PoolDisk {
    fn drop(&mut self) {
        // Deletes the disk even if a failed test still holds it.
        let _ = self.verb(&["delete"], &["--yes", "--steal", "--timeout", "30"]);
    }
}
