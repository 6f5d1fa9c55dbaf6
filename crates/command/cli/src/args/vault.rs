//! The words of `vault`, and what `open` takes for vaults alone.

use super::{CostArgs, ExpectArgs, PassphraseArgs};
use crate::args::size::Size;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use lacuna_storage::vault::{Choice, choices};
use std::path::PathBuf;

/// File systems in a directory that nobody trusts, such as one that a program synchronises.
///
/// What is altered, exchanged, removed or rolled back in the directory is noticed. `lacuna open DIR
/// MOUNTPOINT` opens a vault, `lacuna close` ends it; `key`, `header` and `info` take its directory
/// as they take a disk.
#[derive(Subcommand)]
pub(crate) enum VaultVerb {
    /// Make a vault in an empty directory, or in one that is made
    Init(VaultInitArgs),
    /// Read and verify every block of every file, and both copies of the names; exit code 10 if any
    /// is bad
    ///
    /// The vault must not be open. Nothing is written, not even to finish what a crash interrupted,
    /// unless --repair asks for it.
    Check(VaultCheckArgs),
    /// Accept the state that is there instead of the one that this machine remembers, as after a
    /// backup was restored
    ///
    /// From then on the newer state that was expected counts as altered.
    Accept(VaultAcceptArgs),
    /// Bring out what verifies of a damaged vault, to a new or empty directory; exit code 10 if
    /// anything is missing
    ///
    /// The vault must not be open. Nothing is written to it. What is missing is listed by name
    /// where a name verifies, and by number otherwise. Permissions, times and extended attributes
    /// come out, owners do not.
    Rescue(VaultRescueArgs),
    /// Show how a file of an open vault is protected
    Stat(VaultStatArgs),
}

/// `vault init`.
#[derive(Args)]
pub(crate) struct VaultInitArgs {
    /// The directory: made if there is none, empty otherwise
    pub dir: PathBuf,
    /// How files are protected that ask for nothing else: mt has a tree of tags, rand and comp
    /// store fewer tags, of blocks that look random or do not compress; auto chooses for each file
    /// by what is in it. For one file or directory the extended attribute user.lacuna.integrity
    /// says it
    #[arg(long, value_parser = integrity(), default_value = "auto")]
    pub integrity: Choice,
    /// Where the state of the vault is remembered.
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
    /// Write anew what one of two copies lost: pages of the namespace and the superblock. It opens
    /// the vault as a mount does, and finishes what a crash interrupted
    #[arg(long)]
    pub repair: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Which vault it has to be.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Memory for all caches
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub cache: Size,
    /// Where the state of the vault is remembered.
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
    /// Where to bring it out to: made if there is nothing, empty otherwise
    pub target: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Which vault it has to be.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Memory for all caches
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub cache: Size,
    /// Where the state of the vault is remembered.
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
    /// Which vault it has to be.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Where the state of the vault is remembered.
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

/// Where the state of a vault is remembered.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for vaults")]
pub(crate) struct AnchorArgs {
    /// The file in which this machine remembers the last state of the vault; outside of it, and not
    /// copied with it [default: below $XDG_STATE_HOME or ~/.local/state, of root below /var/lib:
    /// lacuna/anchors/UUID]
    #[arg(long, value_name = "PATH")]
    pub anchor: Option<PathBuf>,
}

/// How a vault is mounted.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for vaults")]
pub(crate) struct VaultMountArgs {
    /// Let other users in, as the permissions of files say; for users other than root it takes
    /// user_allow_other in
    /// /etc/fuse.conf
    #[arg(long)]
    pub allow_other: bool,
}

fn integrity() -> impl TypedValueParser<Value = Choice> {
    PossibleValuesParser::new(choices().map(Choice::name))
        .try_map(|name| Choice::from_name(name.as_bytes()).ok_or("no such scheme"))
}
