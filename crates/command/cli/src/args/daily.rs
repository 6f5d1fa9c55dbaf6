//! Arguments of the everyday verbs `list`, `status`, `close` and `doctor`, and of `erase`.

use super::{ClusterArgs, PoolAccessArgs, location};
use clap::Args;
use lacuna_storage::Location;
use std::path::PathBuf;
use std::time::Duration;

/// `list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// For root: also list the disks and vaults of all other users
    #[arg(long)]
    pub all_users: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// A location or a mount point; every running server if not given
    #[arg(value_parser = location())]
    pub target: Option<Location>,
    /// For root: also show the servers of all other users. With a target, root sees them without
    /// this
    #[arg(long, conflicts_with = "target")]
    pub all_users: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Repeat until INT, or until the target is closed: a terminal shows one screen that is
    /// redrawn, other output gets one line for each disk and update
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    /// With --watch: seconds between updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// With --watch: stop after this number of updates
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// `close`.
#[derive(Args)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct CloseArgs {
    /// The mount point, or the disk itself: then all its mounts and servers are closed
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT|LOCATION")]
    pub targets: Vec<PathBuf>,
    /// Close everything that this user has open, mounted or served to NBD clients. A disk or vault
    /// in use stays open and is named. A failure does not stop the rest; the exit code is that of
    /// the first failure
    #[arg(long, conflicts_with = "targets")]
    pub all: bool,
    /// With --all, for root: close everything of all other users too, theirs first
    #[arg(long, requires = "all")]
    pub all_users: bool,
    /// Also close a disk that clients use over NBD: they are cut off. Without this, such a disk
    /// stays open (exit code 5), as does a mount in use, which --force does not close. A server of
    /// a served disk that does not answer is killed: its keeper starts another one, which closes
    /// the disk; without a keeper, writes that were not flushed are lost
    #[arg(long)]
    pub force: bool,
    /// Also close a disk with a file that was deleted while the disk was open: its data is lost
    #[arg(long)]
    pub deleted: bool,
    /// Wait, without a time limit, until all data written to the open levels of a disk with levels
    /// is on the medium. This is the default on a terminal. Elsewhere the default is to write an
    /// amount of cover that does not depend on the levels, and to drop the pending data that it
    /// does not carry
    #[arg(long)]
    pub wait: bool,
    /// Do not wait, not even on a terminal
    #[arg(long, conflicts_with = "wait")]
    pub now: bool,
    /// If open disks in pools have the same name: the disk in this namespace ('' for none)
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub namespace: Option<String>,
    /// If open disks in pools have the same name: the disk in the cluster with this configuration
    /// file
    #[arg(long, value_name = "PATH", conflicts_with = "all")]
    pub ceph_conf: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds such as 0.5".to_owned())?;
    if (0.05..=86_400.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err("0.05 to 86400 seconds".to_owned())
}

/// `doctor`.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// The disk, or the directory of a vault
    #[arg(value_parser = location())]
    pub location: Location,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `erase`.
#[derive(Args)]
pub(crate) struct EraseArgs {
    /// The disk, or the directory of a vault
    #[arg(value_parser = location())]
    pub location: Location,
    /// Do not ask whether to go on
    #[arg(long)]
    pub yes: bool,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub pool_access: PoolAccessArgs,
}
