//! Arguments of `snapshot` and `delete`, which apply only to disks in RADOS.

use super::{ClusterArgs, PassphraseArgs, PoolAccessArgs, location};
use clap::{Args, Subcommand};
use lacuna_storage::{Location, Result};

/// Manage snapshots of a disk in RADOS.
///
/// All verbs except `list` write to the disk, so no other client may hold it.
#[derive(Subcommand)]
pub(crate) enum SnapshotVerb {
    /// Keep the present state of the disk under a name
    Create(SnapshotArgs),
    /// List the snapshots; needs no passphrase
    List(SnapshotListArgs),
    /// Remove a snapshot and free its space
    Remove(SnapshotArgs),
    /// Restore the disk to the state of the snapshot; data written since is lost
    Rollback(SnapshotArgs),
}

/// `snapshot create`, `snapshot remove` and `snapshot rollback`.
#[derive(Args)]
pub(crate) struct SnapshotArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// Name of the snapshot; `rados:POOL/NAME@SNAPSHOT` opens it read-only
    #[arg(value_name = "SNAPSHOT", value_parser = snapshot_name)]
    pub name: String,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub pool_access: PoolAccessArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `snapshot list`.
#[derive(Args)]
pub(crate) struct SnapshotListArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `delete`.
#[derive(Args)]
pub(crate) struct DeleteArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// Do not ask whether to go on
    #[arg(long)]
    pub yes: bool,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub pool_access: PoolAccessArgs,
}

fn snapshot_name(name: &str) -> Result<String> {
    Location::check_snapshot_name(name).map(|()| name.to_owned())
}
