//! Test doubles for [`lacuna_medium::Medium`] and [`lacuna_medium::Folder`]: power cuts, faults, reads that lie, a recorder, and simulated time; the second
//! reader that checks what a medium holds; a plain model beside a disk; and what tests of formats with levels share.
//!
//! Invariants kept here:
//! - Everything is deterministic: the same seed and the same calls in the same order give the same bytes, the
//!   same errors and the same digests. Nothing reads the system's clock or its random source.
//! - [`CrashMedium`] never loses what a `sync` or a `write_durable` promised, unless it was told to lie, and
//!   loses, reorders and tears at 512 bytes whatever else was written.
//! - A wrapper passes on every operation it has no rule against, in the batches it was given.
//! - Nothing here is fit for protecting data; [`Rng`] least of all.

mod around;
pub mod ciphertexts;
mod crash;
pub mod cuts;
mod failed_sync;
mod fault;
mod folder;
pub mod format_page;
mod guest;
mod image;
mod latency;
pub mod levels;
mod lies;
mod loss;
mod lying_objects;
mod nth_call;
pub mod openings;
mod operation;
mod power;
mod program;
mod python;
mod record;
mod rng;
mod slow;
mod stop_at_end;
mod two_sample;
mod unasked;
pub mod versions;

pub use around::{Around, Surrounded};
pub use crash::CrashMedium;
pub use failed_sync::{FailedSync, flush_until_refused, reopens_from_the_medium};
pub use fault::{Fault, FaultMedium};
pub use folder::{CrashFolder, FolderImage, FolderOp};
pub use guest::{Guest, GuestImage};
pub use image::{Image, PAGE_SIZE};
pub use latency::{LatencyMedium, LatencyModel, Reads};
pub use lies::{Lies, Truths};
pub use loss::{Loss, SECTOR_SIZE};
pub use lying_objects::LyingObjects;
pub use nth_call::{NthCall, SWEPT, refuses};
pub use operation::OpKind;
pub use program::have;
pub use python::python_reader;
pub use record::{Record, Recorder};
pub use rng::Rng;
pub use slow::Slow;
pub use stop_at_end::StopAtEnd;
pub use two_sample::kolmogorov_smirnov;
pub use unasked::Unasked;
