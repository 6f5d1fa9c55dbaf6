//! Tokens on the command line, and their questions to the user.

#[cfg(feature = "tokens")]
use crate::terminal::console;
use lacuna_storage::{Passphrase, Result, Uuid};
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "tokens")]
pub(crate) use lacuna_tokens::TokenSpec;

/// Asks for a PIN.
pub(crate) type Ask<'a> = &'a dyn Fn(&str) -> Result<Passphrase>;

/// Descriptions of secrets that tokens keep after this process made them.
static LEFT_IN_TOKENS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Descriptions of secrets that tokens keep after this process made them. They are printed if the
/// command fails, because users expect that a failed command leaves nothing behind.
pub(crate) fn left_in_tokens() -> Vec<String> {
    std::mem::take(&mut *LEFT_IN_TOKENS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The secret of a token for a disk. `create`: the token is being enrolled.
#[cfg(feature = "tokens")]
pub(crate) fn secret(token: &TokenSpec, disk: Uuid, ask: Ask<'_>, create: bool) -> Result<Passphrase> {
    struct TerminalPrompt<'a>(Ask<'a>);

    impl lacuna_tokens::TokenUser for TerminalPrompt<'_> {
        fn ask_pin(&self, prompt: &str) -> Result<Passphrase> {
            (self.0)(prompt)
        }

        fn show_action(&self, what: &str) {
            console::print_always(what);
        }

        fn report_stored(&self, what: &str) {
            LEFT_IN_TOKENS.lock().unwrap_or_else(PoisonError::into_inner).push(what.to_owned());
        }
    }

    token.secret(&disk.0, &TerminalPrompt(ask), create)
}

/// Possible reasons why the secret of a token opens nothing.
#[cfg(feature = "tokens")]
pub(crate) fn why_not(token: &TokenSpec) -> String {
    token.mismatch_reasons()
}

/// A build without the feature has no tokens.
#[cfg(not(feature = "tokens"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenSpec {}

#[cfg(not(feature = "tokens"))]
mod without {
    use super::{Ask, Passphrase, Result, TokenSpec, Uuid};
    use std::fmt;
    use std::str::FromStr;

    impl FromStr for TokenSpec {
        type Err = String;

        fn from_str(_: &str) -> std::result::Result<Self, String> {
            Err("this build of lacuna has no tokens; use a build with the feature `tokens`".to_owned())
        }
    }

    impl fmt::Display for TokenSpec {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match *self {}
        }
    }

    pub(crate) fn secret(token: &TokenSpec, _: Uuid, _: Ask<'_>, _: bool) -> Result<Passphrase> {
        match *token {}
    }

    pub(crate) fn why_not(token: &TokenSpec) -> String {
        match *token {}
    }
}
#[cfg(not(feature = "tokens"))]
pub(crate) use without::{secret, why_not};
