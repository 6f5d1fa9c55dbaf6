//! Interruption of a run: INT and TERM set a flag, so that servers and files are removed.

use lacuna_contracts::{Error, Kind, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag of an interruption.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs handlers for INT and TERM.
    pub fn install() -> Result<Self> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.0))
                .map_err(|e| Error::io("cannot watch for signals", &e))?;
        }
        Ok(interrupt)
    }

    /// Errors: if a signal was received.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Other, "the run was interrupted"));
        }
        Ok(())
    }
}
