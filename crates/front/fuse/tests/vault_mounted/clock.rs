//! A wall clock that a test moves while a server in another process reads it.

use lacuna_vault::{SystemWallClock, Time, WallClock};
use std::fs;
use std::path::PathBuf;

/// The system's clock plus the number of seconds, possibly negative, in a file.
pub(crate) struct MovedClock {
    file: PathBuf,
}

impl MovedClock {
    pub(crate) fn at(file: PathBuf) -> Self {
        MovedClock { file }
    }

    pub(crate) fn move_to(&self, seconds: i64) {
        let new = self.file.with_extension("new");
        fs::write(&new, seconds.to_string()).unwrap();
        fs::rename(&new, &self.file).unwrap();
    }
}

impl WallClock for MovedClock {
    fn now(&self) -> Time {
        let seconds: i64 = fs::read_to_string(&self.file).unwrap().parse().unwrap();
        let now = SystemWallClock.now();
        Time { secs: now.secs + seconds, ..now }
    }
}
