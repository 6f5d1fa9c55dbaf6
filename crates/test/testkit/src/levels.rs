//! Test helpers for all formats with levels: disks, power cuts, threads, damage, lies, and sweeps
//! of errors over calls.

mod crash;
mod damage;
mod disks;
mod errno;
mod lies;
mod resumed;
mod threads;

pub use crash::Hardship;
pub use damage::{failures, lost_blocks};
pub use disks::{
    Above, Fresh, UUID, counter, create, create_with, flush_hidden, fresh, has_contents, masters, models,
    open, open_with, options, seeded,
};
pub use errno::Sweep;
pub use lies::Lying;
pub use resumed::resume_twice;
pub use threads::Threaded;
