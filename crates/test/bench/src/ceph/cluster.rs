//! The Ceph cluster for the measurements: a cluster that the environment names, or one that the run
//! starts and destroys.

use crate::program;
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Result};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The variable with the configuration of an existing cluster.
const CONF: &str = "LACUNA_CEPH_CONF";
/// The pool that the script creates.
pub(crate) const POOL: &str = "lacuna";
/// GiB of the device of each OSD of a cluster of the run: several times the size of all images.
const OSD_GIB: u64 = 16;
const OSDS: u64 = 3;
/// Free bytes that a cluster needs. An OSD on a full file system ends itself, and its clients wait
/// forever.
const NEEDED_BYTES: u64 = (OSD_GIB * OSDS + 1) << 30;
const DAEMONS: [&str; 4] = ["ceph", "ceph-mon", "ceph-mgr", "ceph-osd"];

/// A running cluster. Drop destroys it if the run started it.
pub(crate) struct BenchCluster {
    /// The configuration for clients.
    pub conf: PathBuf,
    /// The directory of the run's own cluster.
    owned_dir: Option<PathBuf>,
}

impl BenchCluster {
    /// Finds or starts a cluster; otherwise returns the reason why there is none. A quick run
    /// starts none.
    pub(crate) fn find(work: &Workspace) -> Result<std::result::Result<BenchCluster, String>> {
        if let Some(conf) = std::env::var_os(CONF) {
            return Ok(Ok(BenchCluster { conf: conf.into(), owned_dir: None }));
        }
        if work.scale.quick {
            return Ok(Err(format!("Ceph is skipped: {CONF} is not set, and a quick run starts no cluster")));
        }
        if let Some(absent) = DAEMONS.iter().find(|name| !program::is_runnable(name, &["--version"])) {
            return Ok(Err(format!("Ceph is skipped: {absent} is not installed")));
        }
        let free = work.free()?;
        if free < NEEDED_BYTES {
            return Ok(Err(format!(
                "Ceph is skipped: {} GiB are free for the disks, and a cluster may take {}; see --dir",
                free >> 30,
                NEEDED_BYTES >> 30
            )));
        }
        work.report_progress("ceph: starting a cluster")?;
        BenchCluster::start(work).map(Ok)
    }

    fn start(work: &Workspace) -> Result<BenchCluster> {
        let dir = work.path("ceph");
        let cluster = BenchCluster { conf: dir.join("ceph.conf"), owned_dir: Some(dir.clone()) };
        // Let the script destroy the cluster if this process is killed.
        let pid = std::process::id().to_string();
        let mut watch = Command::new(script());
        watch.args(["watch", &pid]).arg(&dir).process_group(0);
        watch.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        watch.spawn().map_err(|e| Error::io("cannot run ceph-cluster.sh", &e))?;
        let mut start = Command::new(script());
        program::output(start.arg("start").arg(&dir).env("LACUNA_CEPH_OSD_GIB", OSD_GIB.to_string()))?;
        Ok(cluster)
    }

    /// The version of Ceph.
    pub(crate) fn version() -> Option<String> {
        program::version("ceph")
    }
}

impl Drop for BenchCluster {
    fn drop(&mut self) {
        if let Some(dir) = &self.owned_dir {
            // On failure the watching script tries again.
            let _ = program::output(Command::new(script()).arg("destroy").arg(dir));
        }
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/ceph-cluster.sh")
}
