//! Arguments of `header`.

use super::{ClusterArgs, PassphraseArgs, PoolAccessArgs, location};
use clap::{Args, Subcommand};
use lacuna_storage::Location;
use std::path::PathBuf;

/// Back up, check, restore or repair the header of a disk.
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
    /// Test a backup of a header
    ///
    /// Prints a description of its disk. Needs no passphrase; with one, the test shows that the
    /// passphrase opens the backup, and that the backup was not altered.
    Check(HeaderCheckArgs),
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
    /// The file to write, which must not exist; `-` is standard output
    pub file: PathBuf,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `header check`.
#[derive(Args)]
pub(crate) struct HeaderCheckArgs {
    /// The file that `header backup` wrote; `-` is standard input
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A passphrase that should open the backup.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `header restore`.
#[derive(Args)]
pub(crate) struct HeaderRestoreArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// The file that `header backup` wrote; `-` is standard input
    pub file: PathBuf,
    /// Restore a header that is older than that on the disk. Passphrases removed since the backup
    /// work again, passphrases added since are lost. A header from before the disk grew is always
    /// refused
    #[arg(long)]
    pub older: bool,
    /// Overwrite the header of another disk, for example after a wrong backup was restored here; or
    /// content of another program, such as a file system or a LUKS volume
    #[arg(long)]
    pub replace: bool,
    /// Do not ask whether to go on
    #[arg(long)]
    pub yes: bool,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub pool_access: PoolAccessArgs,
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
    pub pool_access: PoolAccessArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}
