//! What all tokens have in common.

use crate::request::Request;
use lacuna_contracts::{Result, SecretVec};

/// A device or keyring that keeps a secret for each disk and name.
pub(crate) trait Token {
    /// The secret. With `create`, a token that has nothing yet to make it of is prepared first.
    ///
    /// Errors: those of [`crate::TokenSpec::secret`].
    fn secret(&self, request: &Request<'_>, create: bool) -> Result<SecretVec>;
}
