//! The exit code that each kind of error has. `lacuna --help` says the same.

use lacuna::Kind;

/// The exit code for this kind.
pub(crate) fn of(kind: Kind) -> u8 {
    match kind {
        Kind::Usage => 1,
        Kind::Passphrase | Kind::Permission => 2,
        Kind::Memory => 3,
        Kind::NotFound => 4,
        Kind::Busy | Kind::Exists | Kind::Changed | Kind::Fenced => 5,
        Kind::Corrupt => 10,
        Kind::RolledBack => 11,
        Kind::PurgeIncomplete => 12,
        Kind::NoSpace => 13,
        Kind::NoCover => 14,
        Kind::Io | Kind::FailStop | Kind::ReadOnly | Kind::TimedOut | Kind::Other => 20,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_tell_failures_apart_go_on_working() {
        let codes = [
            (Kind::Usage, 1),
            (Kind::Passphrase, 2),
            (Kind::Permission, 2),
            (Kind::Memory, 3),
            (Kind::NotFound, 4),
            (Kind::Busy, 5),
            (Kind::Exists, 5),
            (Kind::Changed, 5),
            (Kind::Fenced, 5),
            (Kind::Corrupt, 10),
            (Kind::RolledBack, 11),
            (Kind::PurgeIncomplete, 12),
            (Kind::NoSpace, 13),
            (Kind::NoCover, 14),
            (Kind::Io, 20),
            (Kind::FailStop, 20),
            (Kind::ReadOnly, 20),
            (Kind::TimedOut, 20),
            (Kind::Other, 20),
        ];
        for (kind, code) in codes {
            assert_eq!(of(kind), code, "{kind:?}");
        }
        // `--help` names every code.
        let help = crate::args::EXIT_CODES;
        assert!(codes.iter().all(|(_, code)| help.contains(&format!(" {code} "))), "{help}");
    }
}
