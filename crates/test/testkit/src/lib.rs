//! Test helpers beside simulated media ([`lacuna_sim`]): tables of format pages for second readers,
//! openings of disks on lying media, a cache with a failing sync, a medium that counts discreet
//! reads, programs and guests for tests, and helpers for formats with levels (feature `levels`).
//!
//! Nothing here is fit for protecting data.

pub mod ciphertexts;
mod discreet_reads;
mod failed_sync;
pub mod format_page;
mod guest;
mod kept_medium;
#[cfg(feature = "levels")]
pub mod levels;
pub mod openings;
mod program;
mod python;
mod stop_at_end;
mod two_sample;
mod unasked;

pub use discreet_reads::{CountingMedium, DiscreetReads};
pub use failed_sync::{FailedSync, flush_until_refused, reopens_from_the_medium};
pub use guest::{Guest, GuestImage};
pub use kept_medium::kept_medium;
pub use lacuna_sim::setting;
pub use program::have;
pub use python::python_reader;
pub use stop_at_end::StopAtEnd;
pub use two_sample::kolmogorov_smirnov;
pub use unasked::Unasked;
