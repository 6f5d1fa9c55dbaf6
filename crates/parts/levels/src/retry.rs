//! Retries of reads from a medium.

use lacuna_contracts::{Kind, Result};
use std::time::Duration;

/// Tries before a read is given up.
const TRIES: u32 = 3;
/// The pause before the next try of a read that the system refused. Each pause is twice the one
/// before, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Pauses before such a read is given up: about a minute.
const MAX_RETRIES: u32 = 64;

/// Reads, and tries again if the medium fails, because errors may be transient. Data that does not
/// verify is not read again.
pub fn retry(mut read: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 1..TRIES {
        match read() {
            Err(e) if e.kind() != Kind::Corrupt => {}
            done => return done,
        }
    }
    read()
}

/// Reads data that a disk cannot go on without: a read that the system refuses
/// ([`Kind::is_refusal`]) is tried again, with pauses, for about a minute.
///
/// Deniability contract: the data may be a page of a hidden map. A system that is short of memory
/// or descriptors for a while must not stop only the disks that have such a level.
pub fn retry_refused(mut read: impl FnMut() -> Result<()>) -> Result<()> {
    let mut pause = FIRST_PAUSE;
    for _ in 0..MAX_RETRIES {
        match read() {
            Err(e) if e.kind().is_refusal() => std::thread::sleep(pause),
            done => return done,
        }
        pause = (2 * pause).min(MAX_PAUSE);
    }
    read()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::Error;

    #[test]
    fn only_a_refused_read_is_retried() {
        let mut tries = 0;
        let given = retry_refused(|| {
            tries += 1;
            if tries < 4 { Err(Error::new(Kind::Memory, "not now")) } else { Ok(()) }
        });
        assert!(given.is_ok() && tries == 4);
        let mut tries = 0;
        let failed = retry_refused(|| {
            tries += 1;
            Err(Error::new(Kind::Io, "a bad sector"))
        });
        assert!(failed.unwrap_err().kind() == Kind::Io && tries == 1);
    }
}
