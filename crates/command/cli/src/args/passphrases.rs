//! Options for passphrases, existing and new.

use crate::terminal::token::TokenSpec;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;

/// The options with sources of passphrases.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options for passphrases")]
struct PassphraseOptions {
    /// Read the passphrase from this file (`-`: standard input): the whole file without one
    /// trailing newline; may be repeated
    #[arg(long, value_name = "PATH")]
    key_file: Vec<PathBuf>,
    /// Read the passphrase from this open file descriptor; may be repeated
    #[arg(long, value_name = "N")]
    key_fd: Vec<u32>,
    /// Take the secret of this token as the passphrase: fido2[:NAME], tpm2[:NAME][,pcrs=7+11][,pin]
    /// or keyring:NAME; may be repeated
    #[arg(long, value_name = "TOKEN")]
    token: Vec<TokenSpec>,
    /// Run this program with the prompt as its only argument, and use its output as the passphrase
    /// or PIN
    #[arg(long, value_name = "CMD")]
    askpass: Option<PathBuf>,
}

/// The source of one passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PassphraseSource {
    /// A file, or standard input.
    File(PathBuf),
    /// An open descriptor.
    Descriptor(u32),
    /// The secret of a token.
    Token(TokenSpec),
}

impl PassphraseSource {
    /// The source from three options that exclude each other.
    pub(crate) fn from_options(
        file: Option<&PathBuf>,
        number: Option<u32>,
        token: Option<&TokenSpec>,
    ) -> Option<PassphraseSource> {
        let file = file.map(|path| PassphraseSource::File(path.clone()));
        file.or(number.map(PassphraseSource::Descriptor))
            .or(token.map(|token| PassphraseSource::Token(token.clone())))
    }

    /// Whether it is a token.
    pub(crate) fn is_token(&self) -> bool {
        matches!(self, PassphraseSource::Token(_))
    }
}

/// The sources of passphrases.
#[derive(Clone)]
pub(crate) struct PassphraseArgs {
    /// In the order of the command line.
    pub sources: Vec<PassphraseSource>,
    /// A program that asks for passphrases that would otherwise be typed.
    pub askpass: Option<PathBuf>,
}

impl PassphraseArgs {
    /// Whether an option gives a source of passphrases.
    pub(crate) fn is_given(&self) -> bool {
        !self.sources.is_empty() || self.askpass.is_some()
    }

    /// The tokens among the sources.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = &TokenSpec> {
        self.sources.iter().filter_map(|source| match source {
            PassphraseSource::Token(token) => Some(token),
            PassphraseSource::File(_) | PassphraseSource::Descriptor(_) => None,
        })
    }
}

impl FromArgMatches for PassphraseArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let PassphraseOptions { key_file, key_fd, token, askpass } =
            PassphraseOptions::from_arg_matches(matches)?;
        let indices = |name: &str| matches.indices_of(name).into_iter().flatten().collect::<Vec<_>>();
        let files = indices("key_file").into_iter().zip(key_file.into_iter().map(PassphraseSource::File));
        let descriptors =
            indices("key_fd").into_iter().zip(key_fd.into_iter().map(PassphraseSource::Descriptor));
        let tokens = indices("token").into_iter().zip(token.into_iter().map(PassphraseSource::Token));
        let mut sources: Vec<(usize, PassphraseSource)> = files.chain(descriptors).chain(tokens).collect();
        sources.sort_by_key(|(at, _)| *at);
        Ok(PassphraseArgs { sources: sources.into_iter().map(|(_, source)| source).collect(), askpass })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for PassphraseArgs {
    fn augment_args(command: Command) -> Command {
        PassphraseOptions::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        PassphraseOptions::augment_args_for_update(command)
    }
}

/// The source of a new passphrase.
#[derive(Args)]
#[command(next_help_heading = "Options for passphrases")]
// The name of an option is the name of its field.
#[allow(clippy::struct_field_names)]
pub(crate) struct NewPassphraseArgs {
    /// Read the new passphrase from this file (`-`: standard input)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["new_key_fd", "new_token"])]
    pub new_key_file: Option<PathBuf>,
    /// Read the new passphrase from this open file descriptor
    #[arg(long, value_name = "N", conflicts_with = "new_token")]
    pub new_key_fd: Option<u32>,
    /// Enrol this token: its secret is the new passphrase
    #[arg(long, value_name = "TOKEN")]
    pub new_token: Option<TokenSpec>,
}

impl NewPassphraseArgs {
    /// The source of the new passphrase, if an option gives it.
    pub(crate) fn source(&self) -> Option<PassphraseSource> {
        let NewPassphraseArgs { new_key_file, new_key_fd, new_token } = self;
        PassphraseSource::from_options(new_key_file.as_ref(), *new_key_fd, new_token.as_ref())
    }
}

/// Whether the disk may depend on a token alone.
#[derive(Args, Clone, Copy)]
#[command(next_help_heading = "Options for passphrases")]
pub(crate) struct RecoveryArgs {
    /// Do not require a recovery passphrase: if the token is lost, reset or answers differently,
    /// the data is lost
    #[arg(long)]
    pub no_recovery: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        passphrase: PassphraseArgs,
    }

    #[test]
    fn passphrases_count_in_the_order_of_the_command_line() {
        let line = "x --key-fd 3 --key-file a --key-fd=4 --key-file=b";
        let words = Words::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{e}"));
        let file = |name: &str| PassphraseSource::File(name.into());
        assert_eq!(
            words.passphrase.sources,
            [PassphraseSource::Descriptor(3), file("a"), PassphraseSource::Descriptor(4), file("b")]
        );
    }
}
