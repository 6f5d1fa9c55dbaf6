//! Arguments of `vault`, and the arguments of `open` for vaults.

use super::{CostArgs, ExpectArgs, PassphraseArgs};
use crate::args::size::Size;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use lacuna_storage::vault::{Choice, integrity_choices};
use std::path::PathBuf;

/// Manage vaults: file systems in an untrusted directory, such as one that a program synchronises.
///
/// Data in the directory that was altered, exchanged, removed or rolled back is detected. `lacuna
/// open DIR MOUNTPOINT` opens a vault, `lacuna close` closes it; `key`, `header` and `info` take
/// its directory as they take a disk.
#[derive(Subcommand)]
pub(crate) enum VaultVerb {
    /// Create a vault in an empty directory; the directory is made if missing
    Init(VaultInitArgs),
    /// Read and verify every block of every file, and both copies of the namespace
    ///
    /// The exit code is 10 if any is bad. The vault must not be open. Without --repair nothing is
    /// written, not even to complete operations that a crash interrupted.
    Check(VaultCheckArgs),
    /// Accept the present state of the vault instead of the state in the anchor, for example after
    /// a backup was restored
    ///
    /// After that the newer state that was expected counts as altered.
    Accept(VaultAcceptArgs),
    /// Copy the data of a damaged vault that verifies to a new or empty directory
    ///
    /// The exit code is 10 if anything is missing. The vault must not be open. Nothing is written
    /// to it. Missing files are listed by name if the name verifies, and by number otherwise.
    /// Permissions, times and extended attributes are copied, owners are not.
    Rescue(VaultRescueArgs),
    /// Show how a file of an open vault is protected
    Stat(VaultStatArgs),
}

/// `vault init`.
#[derive(Args)]
pub(crate) struct VaultInitArgs {
    /// The directory: created if missing, otherwise it must be empty
    pub dir: PathBuf,
    /// How files are protected by default: mt has a tree of tags; rand and comp store fewer tags,
    /// for blocks that look random or do not compress; auto begins with mt, and converts a file
    /// that compresses and is read often to comp. The extended attribute user.lacuna.integrity sets
    /// it for one file or directory
    #[arg(long, value_parser = integrity(), default_value = "auto")]
    pub integrity: Choice,
    /// The anchor of the vault.
    #[command(flatten)]
    pub anchor: AnchorArgs,
    /// Cost of the passphrase.
    #[command(flatten)]
    pub cost: CostArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `vault check`.
#[derive(Args)]
pub(crate) struct VaultCheckArgs {
    /// The directory of the vault
    pub dir: PathBuf,
    /// Rewrite pages of the namespace and the superblock that one of two copies lost, and give up
    /// blocks of files that cannot be read in the journal. Opens the vault as a mount does, and
    /// completes operations that a crash interrupted
    #[arg(long)]
    pub repair: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The required identity of the vault.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Memory for all caches
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub cache: Size,
    /// The anchor of the vault.
    #[command(flatten)]
    pub anchor: AnchorArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `vault rescue`.
#[derive(Args)]
pub(crate) struct VaultRescueArgs {
    /// The directory of the vault
    pub dir: PathBuf,
    /// The directory to copy to: created if missing, otherwise it must be empty
    pub target: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The required identity of the vault.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Memory for all caches
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub cache: Size,
    /// The anchor of the vault.
    #[command(flatten)]
    pub anchor: AnchorArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `vault accept`.
#[derive(Args)]
pub(crate) struct VaultAcceptArgs {
    /// The directory of the vault
    pub dir: PathBuf,
    /// Do not ask whether to go on
    #[arg(long)]
    pub yes: bool,
    /// The required identity of the vault.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// The anchor of the vault.
    #[command(flatten)]
    pub anchor: AnchorArgs,
    /// The passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `vault stat`.
#[derive(Args)]
pub(crate) struct VaultStatArgs {
    /// A file of a vault that is open
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The anchor of a vault.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for vaults")]
pub(crate) struct AnchorArgs {
    /// The anchor: the file where this machine remembers the last state of the vault. Keep it
    /// outside the vault, and do not copy it with the vault [default: below $XDG_STATE_HOME or
    /// ~/.local/state, of root below /var/lib: lacuna/anchors/UUID]
    #[arg(long, value_name = "PATH")]
    pub anchor: Option<PathBuf>,
}

/// How a vault is mounted.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for vaults")]
pub(crate) struct VaultMountArgs {
    /// Give other users access, as the permissions of files say; users other than root need
    /// user_allow_other in /etc/fuse.conf
    #[arg(long)]
    pub allow_other: bool,
}

fn integrity() -> impl TypedValueParser<Value = Choice> {
    PossibleValuesParser::new(integrity_choices().map(Choice::name))
        .try_map(|name| Choice::from_name(name.as_bytes()).ok_or("no such scheme"))
}
