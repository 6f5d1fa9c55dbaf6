//! Arguments of `key`.

use super::{
    CostArgs, ExpectArgs, NewPassphraseArgs, PassphraseArgs, PassphraseSource, PoolAccessArgs, RecoveryArgs,
    location,
};
use crate::terminal::token::TokenSpec;
use clap::{Args, Subcommand};
use lacuna_storage::Location;
use std::path::PathBuf;

/// Add, change, remove or refresh passphrases.
///
/// On a sealed disk `add`, `change` and `remove` leave all other passphrases as they are. On a disk
/// with levels, and with `refresh`, all key slots are rewritten: passphrases that are not given
/// with --key-file, --key-fd, --token or on the terminal stop working.
#[derive(Subcommand)]
pub(crate) enum KeyVerb {
    /// Add a passphrase; on a disk with levels give every passphrase to keep, and the new one
    ///
    /// `lacuna key add LOCATION --token TOKEN` enrols a token beside the passphrase that is asked
    /// for or given. If the new passphrase is given with --new-key-file, --new-key-fd or
    /// --new-token, tokens given with --token open the disk.
    Add(KeyNewArgs),
    /// Replace the first passphrase given; on a disk with levels give further ones to keep them
    Change(KeyNewArgs),
    /// Remove a passphrase; give one that keeps working (on a disk with levels, every one), and the
    /// one to remove
    ///
    /// To remove a forgotten passphrase, use `key refresh` with the passphrases to keep.
    Remove(KeyRemoveArgs),
    /// Rewrite all key slots for the passphrases given; all other passphrases stop working
    ///
    /// Levels of a deniable or oblivious disk deeper than the deepest that the given passphrases
    /// open are dropped. --add-level adds one more level.
    Refresh(KeyRefreshArgs),
}

/// Arguments of all key operations.
#[derive(Args)]
pub(crate) struct KeyArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// Do not ask whether to go on; needs --keep where all key slots are rewritten
    #[arg(long)]
    pub yes: bool,
    /// Number of existing passphrases that you give, including the passphrase that `change`
    /// replaces; nothing is done if you give another number. Only where all key slots are
    /// rewritten: otherwise all keep working
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub keep: Option<u8>,
    /// The required identity of the disk.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Cost of the passphrases; unchanged if not given.
    #[command(flatten)]
    pub cost: CostArgs,
    /// The cluster, and whether to take the disk over from another client.
    #[command(flatten)]
    pub pool_access: PoolAccessArgs,
    /// The passphrases to keep.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// Whether the disk may depend on a token alone.
    #[command(flatten)]
    pub recovery: RecoveryArgs,
}

/// `key add` and `key change`.
#[derive(Args)]
pub(crate) struct KeyNewArgs {
    /// Arguments of all key operations.
    #[command(flatten)]
    pub key: KeyArgs,
    /// The new passphrase.
    #[command(flatten)]
    pub new: NewPassphraseArgs,
}

/// `key refresh`.
#[derive(Args)]
pub(crate) struct KeyRefreshArgs {
    /// Arguments of all key operations.
    #[command(flatten)]
    pub key: KeyArgs,
    /// Add an empty level, deeper than the deepest that the passphrases open, with a new
    /// passphrase. Only for disks with levels
    #[arg(long)]
    pub add_level: bool,
    /// The passphrase of the new level.
    #[command(flatten)]
    pub new: NewPassphraseArgs,
}

/// `key remove`.
#[derive(Args)]
pub(crate) struct KeyRemoveArgs {
    /// Arguments of all key operations.
    #[command(flatten)]
    pub key: KeyArgs,
    /// Read the passphrase to remove from this file (`-`: standard input)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["remove_key_fd", "remove_token"])]
    pub remove_key_file: Option<PathBuf>,
    /// Read the passphrase to remove from this open file descriptor
    #[arg(long, value_name = "N", conflicts_with = "remove_token")]
    pub remove_key_fd: Option<u32>,
    /// Remove the passphrase that is the secret of this token
    #[arg(long, value_name = "TOKEN")]
    pub remove_token: Option<TokenSpec>,
}

impl KeyRemoveArgs {
    /// The source of the passphrase to remove, if an option names it.
    pub(crate) fn source(&self) -> Option<PassphraseSource> {
        PassphraseSource::from_options(
            self.remove_key_file.as_ref(),
            self.remove_key_fd,
            self.remove_token.as_ref(),
        )
    }
}
