//! Test helpers for all formats with levels: disks, power cuts, threads, damage, lies, and sweeps
//! of errors over calls.

mod crash;
mod damage;
mod disks;
mod errno;
mod lies;
mod resumed;
mod threads;

pub use crash::CrashTest;
pub use damage::{failures, lost_blocks};
pub use disks::{
    FreshDisk, UUID, UpperLevels, assert_contents, counter, create, create_with, flush_hidden, fresh_disk,
    master_keys, models, open, open_with, options, seeded_randomness,
};
pub use errno::ErrnoSweep;
pub use lies::LyingDisks;
pub use resumed::resume_twice;
pub use threads::ThreadedDisk;
