//! Arguments of `header`.

use super::{ClusterArgs, HolderArgs, PassphraseArgs, location};
use clap::{Args, Subcommand};
use lacuna_storage::Location;
use std::path::PathBuf;

/// Back up, restore or repair the header of a disk.
///
/// A disk without its header is lost. The medium holds three copies; a backup elsewhere helps if
/// all of them are overwritten.
#[derive(Subcommand)]
pub(crate) enum HeaderVerb {
    /// Write the header into a file
    ///
    /// Needs no passphrase. The file opens the disk with the present passphrases, even after they
    /// are removed: keep it as safe as the disk, and make a new one after `key` and `resize`.
    Backup(HeaderBackupArgs),
    /// Write a backup of the header over all copies on the disk
    ///
    /// Asks for a passphrase that opens the backup.
    Restore(HeaderRestoreArgs),
    /// Rewrite all copies of the header from a copy that opens
    Repair(HeaderRepairArgs),
}

/// `header backup`.
#[derive(Args)]
pub(crate) struct HeaderBackupArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// The file to write; it must not exist
    pub file: PathBuf,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `header restore`.
#[derive(Args)]
pub(crate) struct HeaderRestoreArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// The file that `header backup` wrote
    pub file: PathBuf,
    /// Restore a header that is older than that on the disk. Passphrases removed since the backup
    /// work again, passphrases added since are lost. A header from before the disk grew is always
    /// refused
    #[arg(long)]
    pub older: bool,
    /// Overwrite the header of another disk, for example after a wrong backup was restored here
    #[arg(long)]
    pub replace: bool,
    /// Do not ask whether to go on
    #[arg(long)]
    pub yes: bool,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub holder: HolderArgs,
    /// A passphrase that opens the backup.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `header repair`.
#[derive(Args)]
pub(crate) struct HeaderRepairArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub holder: HolderArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}
