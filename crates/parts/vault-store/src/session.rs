//! The session: the random number of an opening, which goes into the write counters of files and
//! the nonces of records.
//!
//! Where the machine was resumed from a snapshot, a copy of it may go on in the same session.
//! Nonces do not repeat then, since they depend on the content; but blocks that have no tag of
//! their own (RAND-EINT) could be exchanged between the copies. So another session is drawn as soon
//! as that is noticed.

use lacuna_crypto::RandomSource;
use parking_lot::Mutex;
use std::sync::Arc;

/// The present session of an open store.
pub(crate) struct DrawnSession {
    random: Arc<dyn RandomSource>,
    drawn: Mutex<Drawn>,
}

struct Drawn {
    number: u64,
    /// How many resumptions of the machine had been noticed before it was drawn.
    resumptions: u64,
}

impl Drawn {
    fn draw(random: &dyn RandomSource, resumptions: u64) -> Drawn {
        let mut bytes = [0; 8];
        // Zero stands for no session in the counters of protected files.
        while bytes == [0; 8] {
            random.fill(&mut bytes);
        }
        Drawn { number: u64::from_le_bytes(bytes), resumptions }
    }
}

impl DrawnSession {
    /// Draws the first one.
    pub(crate) fn new(random: Arc<dyn RandomSource>) -> DrawnSession {
        let drawn = Mutex::new(Drawn::draw(&*random, random.resumptions()));
        DrawnSession { random, drawn }
    }

    /// Its number, never 0. Once it is another, no caller gets the old one any more.
    pub(crate) fn number(&self) -> u64 {
        let mut drawn = self.drawn.lock();
        let resumptions = self.random.resumptions();
        if drawn.resumptions != resumptions {
            *drawn = Drawn::draw(&*self.random, resumptions);
        }
        drawn.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Gives zeros at first, then ones, twos and so on.
    #[derive(Default)]
    struct Counting {
        drawn: AtomicU64,
        resumptions: AtomicU64,
    }

    impl RandomSource for Counting {
        fn fill(&self, out: &mut [u8]) {
            out.fill(self.drawn.fetch_add(1, Ordering::Relaxed).saturating_sub(2) as u8);
        }

        fn resumptions(&self) -> u64 {
            self.resumptions.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_session_is_never_zero_and_another_one_after_a_resumption() {
        let random = Arc::new(Counting::default());
        let session = DrawnSession::new(random.clone());
        let ones = u64::from_le_bytes([1; 8]);
        assert_eq!([session.number(), session.number()], [ones; 2]);
        random.resumptions.store(1, Ordering::Relaxed);
        assert_eq!([session.number(), session.number()], [2 * ones; 2]);
    }
}
