//! A disk or vault must not depend on tokens alone, unless the user wants that: tokens get lost,
//! and a TPM answers differently after an update.

use crate::args::RecoveryArgs;
use crate::terminal::console;
use lacuna_storage::{Error, Kind, Result};

/// A passphrase that works after a key operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkingPassphrase {
    /// The level that it opens.
    pub level: u8,
    /// Whether it is the secret of a token.
    pub is_token: bool,
}

/// Refuses a key operation on a disk with levels if only [`check`] can tell whether it leaves a
/// token alone, unless standard error is a terminal.
///
/// Deniability contract: the result of [`check`] depends on the level of each passphrase, so a log
/// that keeps the refusal, or only the exit code, would reveal a level. This refusal does not
/// depend on the levels of the passphrases, and comes before any is tried.
pub(crate) fn require_terminal(args: RecoveryArgs) -> Result<()> {
    if args.no_recovery || console::is_terminal() {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "nothing was changed")
        .found("a token among the passphrases of a disk with levels, and no terminal")
        .expected("a terminal: only there it may be said whether a passphrase opens all levels of the token")
        .hint("run it with standard error on a terminal; or give --no-recovery, if a passphrase opens them"))
}

/// Refuses a key operation if, for one of the given tokens, no passphrase given opens the same or a
/// deeper level.
pub(crate) fn check(works: &[WorkingPassphrase], args: RecoveryArgs) -> Result<()> {
    let recovers =
        |lost: &WorkingPassphrase| works.iter().any(|other| !other.is_token && other.level >= lost.level);
    if args.no_recovery || works.iter().filter(|one| one.is_token).all(recovers) {
        return Ok(());
    }
    let e = Error::new(Kind::Usage, "nothing was changed")
        .found("no passphrase given that would still open the level of the token if the token were lost")
        .expected("a recovery passphrase, which is no secret of a token")
        .hint(
            "give one with --key-file; or first `lacuna key add DISK --token TOKEN --new-key-file PATH`; or --no-recovery",
        );
    // Deniability contract: the error concerns another level than that of the given passphrase.
    Err(if works.iter().any(|one| !one.is_token) { e.confidential() } else { e })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passphrase_recovers_its_level_and_those_above_it() {
        let (token, passphrase) = (
            |level| WorkingPassphrase { level, is_token: true },
            |level| WorkingPassphrase { level, is_token: false },
        );
        let refusal = |works: &[WorkingPassphrase]| check(works, RecoveryArgs { no_recovery: false }).err();
        assert!(refusal(&[passphrase(0)]).is_none());
        assert!(refusal(&[token(0), passphrase(0)]).is_none());
        assert!(refusal(&[token(0), passphrase(2)]).is_none());
        assert!(refusal(&[token(0)]).is_some_and(|e| !e.is_confidential()));
        assert!(refusal(&[token(1), passphrase(0)]).is_some_and(|e| e.is_confidential()));
        assert!(check(&[token(1)], RecoveryArgs { no_recovery: true }).is_ok());
    }
}
