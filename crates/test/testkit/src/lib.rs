//! Test helpers beside simulated media ([`lacuna_sim`]): tables of format pages for second readers,
//! openings of disks on lying media, a cache with a failing sync, a medium that counts discreet
//! reads, programs and guests for tests, waits, noise, and helpers for formats with levels (feature
//! `levels`).
//!
//! Nothing here is fit for protecting data.

pub mod ciphertexts;
mod discreet_reads;
mod failed_sync;
pub mod format_page;
mod golden_medium;
#[cfg(feature = "levels")]
pub mod levels;
mod noise;
pub mod openings;
mod program;
mod python;
mod qemu_guest;
mod status_only_disk;
mod stop_at_end;
mod two_sample;
mod waiting;

pub use discreet_reads::{CountingMedium, DiscreetReads};
pub use failed_sync::{FailingSyncMedium, check_reopen_after_failed_sync, flush_until_refused};
pub use golden_medium::{golden_medium, write_golden_medium};
pub use lacuna_sim::{Rng, env_number};
pub use noise::noise;
pub use program::{is_program_available, skipped};
pub use python::python_reader;
pub use qemu_guest::{GuestImage, QemuGuest};
pub use status_only_disk::StatusOnlyDisk;
pub use stop_at_end::StopAtEnd;
pub use two_sample::kolmogorov_smirnov;
pub use waiting::wait_until;
