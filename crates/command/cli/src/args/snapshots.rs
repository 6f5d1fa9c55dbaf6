//! The words of `snapshot` and `delete`, which only disks in RADOS have.

use super::{ClusterArgs, HolderArgs, PassphraseArgs, location};
use crate::terminal::settings;
use clap::{Args, Subcommand};
use lacuna_storage::Location;

/// Snapshots of a disk in RADOS.
///
/// All but `list` write to the disk, and so work while no other client holds it.
#[derive(Subcommand)]
pub(crate) enum SnapshotVerb {
    /// Keep the present state of the disk under a name
    Create(SnapshotArgs),
    /// List the snapshots; needs no passphrase
    List(SnapshotListArgs),
    /// Give up a snapshot and the space that it takes
    Remove(SnapshotArgs),
    /// Make the disk what it was at the snapshot; what was written since is lost
    Rollback(SnapshotArgs),
}

/// `snapshot create`, `snapshot remove` and `snapshot rollback`.
#[derive(Args)]
pub(crate) struct SnapshotArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// Name of the snapshot, by which `rados:POOL/NAME@SNAPSHOT` opens it read-only
    #[arg(value_name = "SNAPSHOT", value_parser = snapshot_name)]
    pub name: String,
    /// Where the cluster is, and what becomes of another client.
    #[command(flatten)]
    pub holder: HolderArgs,
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
    /// Where the cluster is.
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
    /// Where the cluster is, and what becomes of another client.
    #[command(flatten)]
    pub holder: HolderArgs,
}

fn snapshot_name(name: &str) -> Result<String, String> {
    Location::check_snapshot_name(name).map(|()| name.to_owned()).map_err(|e| settings::words(&e))
}
