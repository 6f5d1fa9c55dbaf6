//! The trait of all tokens.

use crate::request::SecretRequest;
use lacuna_contracts::{Result, SecretVec};

/// A device or keyring that provides a secret for each disk and name.
pub(crate) trait Token {
    /// The secret. With `create`, a token that is not ready for lacuna is prepared first.
    ///
    /// Errors: those of [`crate::TokenSpec::secret`].
    fn secret(&self, request: &SecretRequest<'_>, create: bool) -> Result<SecretVec>;
}
