//! The words of `header`.

use super::{ClusterArgs, HolderArgs, PassphraseArgs, location};
use clap::{Args, Subcommand};
use lacuna_storage::Location;
use std::path::PathBuf;

/// Keep the header of a disk elsewhere, bring it back, and mend its copies.
///
/// Without its header a disk is lost. It is kept three times on the medium. A backup elsewhere is
/// for the day when all of them are overwritten.
#[derive(Subcommand)]
pub(crate) enum HeaderVerb {
    /// Write the header into a file
    ///
    /// Needs no passphrase. The file opens the disk with the passphrases of today, even after they
    /// are removed: keep it as safe as the disk, and make a new one after `key` and `resize`.
    Backup(HeaderBackupArgs),
    /// Write a backup of the header to all its places on the disk
    ///
    /// Asks for a passphrase that opens the backup.
    Restore(HeaderRestoreArgs),
    /// Write all copies of the header anew, as the one is that opens
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
    /// Where the cluster is.
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
    /// Restore a header that is older than the one on the disk. Passphrases that were removed since
    /// work again, those that were added since are lost. Never one from before the disk grew
    #[arg(long)]
    pub older: bool,
    /// Overwrite the header of another disk, for example one whose backup was restored here by
    /// mistake
    #[arg(long)]
    pub replace: bool,
    /// Do not ask whether to go on
    #[arg(long)]
    pub yes: bool,
    /// Where the cluster is, and what becomes of another client.
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
    /// Where the cluster is, and what becomes of another client.
    #[command(flatten)]
    pub holder: HolderArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}
