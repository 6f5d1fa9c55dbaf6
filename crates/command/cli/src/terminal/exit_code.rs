//! The exit code of each kind of error, as `lacuna --help` lists them.

use lacuna_storage::Kind;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the parent process expects the exit codes of mount(8).
static FOR_MOUNT: AtomicBool = AtomicBool::new(false);

/// Switches to the exit codes of mount(8), which runs this program as a helper.
pub(crate) fn use_mount_codes() {
    FOR_MOUNT.store(true, Ordering::Relaxed);
}

/// The exit code of this kind, for the parent process.
pub(crate) fn of(kind: Kind) -> u8 {
    if FOR_MOUNT.load(Ordering::Relaxed) { for_mount(kind) } else { of_command(kind) }
}

/// Exit codes of mount(8): 1 for wrong usage or lack of permissions, 2 for a system error, 32 for
/// any other failure to mount. The match lists every kind, so that the compiler asks for the code
/// of a new one.
fn for_mount(kind: Kind) -> u8 {
    match kind {
        Kind::Usage | Kind::Permission => 1,
        Kind::Memory => 2,
        Kind::Passphrase
        | Kind::NotFound
        | Kind::Busy
        | Kind::Corrupt
        | Kind::RolledBack
        | Kind::NoSpace
        | Kind::Io
        | Kind::FailStop
        | Kind::ReadOnly
        | Kind::Exists
        | Kind::Changed
        | Kind::Fenced
        | Kind::TimedOut
        | Kind::PurgeIncomplete
        | Kind::NoCover
        | Kind::Other => 32,
    }
}

fn of_command(kind: Kind) -> u8 {
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
    fn exit_codes_are_stable() {
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
            assert_eq!(of_command(kind), code, "{kind:?}");
        }
        let codes_of_mount =
            [Kind::Usage, Kind::Permission, Kind::Memory, Kind::Busy, Kind::Passphrase, Kind::Other]
                .map(for_mount);
        assert_eq!(codes_of_mount, [1, 1, 2, 32, 32, 32]);
        // `--help` names every code.
        let help = crate::args::EXIT_CODES;
        assert!(codes.iter().all(|(_, code)| help.contains(&format!(" {code} "))), "{help}");
    }
}
