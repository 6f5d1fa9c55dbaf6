//! The paced clock: cover that does not depend on any activity.
//!
//! Deniability contract: the clock beats at fixed times after its start, whatever else happens; a
//! late beat is not skipped.

use lacuna_contracts::{Error, Result};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The clock of an open disk. Dropping this stops it.
pub struct PacedClock {
    /// Dropping this sender ends the clock.
    stop_sender: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PacedClock {
    /// Starts a clock that calls `tick` every `interval`, which is not zero, until a call fails. A
    /// `tick` that may panic must itself make sure that no thread waits for the next call.
    pub fn start(
        interval: Duration,
        mut tick: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Result<PacedClock> {
        let (end, ended) = channel::<()>();
        let run = move || {
            let mut next = Instant::now() + interval;
            loop {
                let left = next.saturating_duration_since(Instant::now());
                if ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout) || tick().is_err() {
                    return;
                }
                next += interval;
            }
        };
        let spawned = std::thread::Builder::new().name("lacuna-cover".into()).spawn(run);
        let thread = spawned.map_err(|e| Error::io("cannot start a thread of the disk", &e))?;
        Ok(PacedClock { stop_sender: Some(end), thread: Some(thread) })
    }

    /// Stops the clock, after a beat that is under way.
    pub fn stop(self) {}
}

impl Drop for PacedClock {
    fn drop(&mut self) {
        drop(self.stop_sender.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::Kind;
    use std::sync::mpsc::channel;

    #[test]
    fn the_clock_ticks_until_stopped_or_failed() {
        let (sender, beats) = channel();
        let clock = PacedClock::start(Duration::from_millis(1), move || {
            let _gone = sender.send(());
            Ok(())
        });
        for _ in 0..3 {
            beats.recv().unwrap();
        }
        clock.unwrap().stop();
        while beats.try_recv().is_ok() {}
        assert!(beats.recv().is_err(), "the clock was stopped");
        let (sender, beats) = channel();
        let clock = PacedClock::start(Duration::from_millis(1), move || {
            sender.send(()).map_err(|_| Error::new(Kind::Other, "gone"))?;
            Err(Error::new(Kind::Other, "no more"))
        });
        assert_eq!(beats.iter().count(), 1);
        drop(clock);
    }
}
