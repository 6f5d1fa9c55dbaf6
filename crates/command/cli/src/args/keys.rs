//! The words of `key`.

use super::{
    CostArgs, ExpectArgs, HolderArgs, NewPassphraseArgs, PassphraseArgs, RecoveryArgs, Source, location,
};
use crate::terminal::token::TokenSpec;
use clap::{Args, Subcommand};
use lacuna_storage::Location;
use std::path::PathBuf;

/// What to do with passphrases.
///
/// On a sealed disk `add`, `change` and `remove` leave all other passphrases as they are. On a disk
/// with levels, and with `refresh`, all key slots are rewritten: passphrases that are not given
/// with --key-file, --key-fd, --token or on the terminal stop working.
#[derive(Subcommand)]
pub(crate) enum KeyVerb {
    /// Add a passphrase; on a disk with levels give every passphrase that is to keep working, and
    /// the new one
    ///
    /// `lacuna key add LOCATION --token TOKEN` enrols a token beside the passphrase that is asked
    /// for or given. If the new passphrase is given with --new-key-file, --new-key-fd or
    /// --new-token, tokens given with --token open the disk.
    Add(KeyNewArgs),
    /// Put a new passphrase in the place of the first one given; on a disk with levels give further
    /// ones to keep them
    Change(KeyNewArgs),
    /// Remove a passphrase; give one that keeps working (on a disk with levels, every one), and the
    /// one to remove
    ///
    /// To be rid of a passphrase that nobody knows any more, use `key refresh` with those to keep.
    Remove(KeyRemoveArgs),
    /// Write all key slots anew for the passphrases given, and for no others
    ///
    /// Levels of a deniable or oblivious disk deeper than the deepest that the given passphrases
    /// open are dropped. With --add-level there is one more.
    Refresh(KeyRefreshArgs),
}

/// What all key operations take.
#[derive(Args)]
pub(crate) struct KeyArgs {
    /// The disk
    #[arg(value_parser = location())]
    pub location: Location,
    /// Do not ask whether to go on; needs --keep where all key slots are rewritten
    #[arg(long)]
    pub yes: bool,
    /// How many existing passphrases you give, with the one that `change` replaces; nothing is done
    /// if you give another number. Only where all key slots are rewritten: otherwise all keep
    /// working
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub keep: Option<u8>,
    /// Which disk it has to be.
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Cost of the passphrases; as before if not given.
    #[command(flatten)]
    pub cost: CostArgs,
    /// Where the cluster is, and what becomes of another client.
    #[command(flatten)]
    pub holder: HolderArgs,
    /// The passphrases to keep.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// Whether a token may be all there is.
    #[command(flatten)]
    pub recovery: RecoveryArgs,
}

/// `key add` and `key change`.
#[derive(Args)]
pub(crate) struct KeyNewArgs {
    /// What all key operations take.
    #[command(flatten)]
    pub key: KeyArgs,
    /// The new passphrase.
    #[command(flatten)]
    pub new: NewPassphraseArgs,
}

/// `key refresh`.
#[derive(Args)]
pub(crate) struct KeyRefreshArgs {
    /// What all key operations take.
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
    /// What all key operations take.
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
    /// Where the passphrase to remove comes from, if it is said.
    pub(crate) fn source(&self) -> Option<Source> {
        Source::one_of(self.remove_key_file.as_ref(), self.remove_key_fd, self.remove_token.as_ref())
    }
}
