//! The words of what people do from day to day: `list`, `status`, `close`, `doctor`, and of the
//! last day `erase`.

use super::{ClusterArgs, HolderArgs, location};
use clap::Args;
use lacuna_storage::Location;
use std::path::PathBuf;
use std::time::Duration;

/// `list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// A location or a mount point; everything that runs if not given
    #[arg(value_parser = location())]
    pub target: Option<Location>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Go on until INT, or until what was asked for is closed: on a terminal one screen that is
    /// drawn again and again, elsewhere one line for each disk and moment
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    /// With --watch: seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// With --watch: end after so many looks
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// `close`.
#[derive(Args)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct CloseArgs {
    /// Where `open` mounted it, or the disk itself: then everything that is mounted of it, and its
    /// servers
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT|LOCATION")]
    pub targets: Vec<PathBuf>,
    /// Close everything that this user has open, mounted or served to NBD clients. One that cannot
    /// be closed does not keep others open; the exit code is that of the first failure
    #[arg(long, conflicts_with = "targets")]
    pub all: bool,
    /// Close a disk whose file was deleted while it was open as well: what is on it is lost
    #[arg(long)]
    pub deleted: bool,
    /// Wait, however long it takes, until everything that was written to open levels of a disk with
    /// levels is on the medium. Without this and --now a closing waits so on a terminal; elsewhere
    /// it takes along what its cover carries, which is as much on every such disk, and gives up the
    /// rest
    #[arg(long)]
    pub wait: bool,
    /// Do not wait so on a terminal either
    #[arg(long, conflicts_with = "wait")]
    pub now: bool,
    /// Of open disks of one name in pools the one in this namespace ('' for none)
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub namespace: Option<String>,
    /// Of open disks of one name in pools the one in the cluster with this configuration file
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
    /// Where the cluster is.
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
    /// Where the cluster is, and what becomes of another client.
    #[command(flatten)]
    pub holder: HolderArgs,
}
