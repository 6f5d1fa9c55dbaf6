//! The session: the random number of an opening, which is part of the write counters of files and
//! the nonces of records.
//!
//! A copy of a machine that is resumed from a snapshot may continue the same session. Nonces do not
//! repeat then, since they depend on the content; but blocks without a tag of their own (RAND-EINT)
//! could be exchanged between the copies. So another session is drawn as soon as a resumption is
//! noticed.

use lacuna_crypto::RandomSource;
use parking_lot::Mutex;
use std::sync::Arc;

/// The current session of an open store.
pub(crate) struct CurrentSession {
    random: Arc<dyn RandomSource>,
    drawn: Mutex<SessionDraw>,
}

struct SessionDraw {
    number: u64,
    /// The number of resumptions of the machine that had been noticed when it was drawn.
    resumptions: u64,
}

impl SessionDraw {
    fn draw(random: &dyn RandomSource, resumptions: u64) -> SessionDraw {
        let mut bytes = [0; 8];
        // Zero stands for no session in the counters of protected files.
        while bytes == [0; 8] {
            random.fill(&mut bytes);
        }
        SessionDraw { number: u64::from_le_bytes(bytes), resumptions }
    }
}

impl CurrentSession {
    /// Draws the first session.
    pub(crate) fn new(random: Arc<dyn RandomSource>) -> CurrentSession {
        let drawn = Mutex::new(SessionDraw::draw(&*random, random.resumptions()));
        CurrentSession { random, drawn }
    }

    /// The session's number, never 0. Once it changes, no caller gets the old one.
    pub(crate) fn number(&self) -> u64 {
        let mut drawn = self.drawn.lock();
        let resumptions = self.random.resumptions();
        if drawn.resumptions != resumptions {
            *drawn = SessionDraw::draw(&*self.random, resumptions);
        }
        drawn.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A source of zeros at first, then of ones, twos and so on.
    #[derive(Default)]
    struct CountingRandom {
        drawn: AtomicU64,
        resumptions: AtomicU64,
    }

    impl RandomSource for CountingRandom {
        fn fill(&self, out: &mut [u8]) {
            out.fill(self.drawn.fetch_add(1, Ordering::Relaxed).saturating_sub(2) as u8);
        }

        fn resumptions(&self) -> u64 {
            self.resumptions.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_session_is_never_zero_and_another_one_after_a_resumption() {
        let random = Arc::new(CountingRandom::default());
        let session = CurrentSession::new(random.clone());
        let ones = u64::from_le_bytes([1; 8]);
        assert_eq!([session.number(), session.number()], [ones; 2]);
        random.resumptions.store(1, Ordering::Relaxed);
        assert_eq!([session.number(), session.number()], [2 * ones; 2]);
    }
}
