//! Test doubles for [`lacuna_medium::Medium`] and [`lacuna_medium::Folder`]: power cuts, faults,
//! reads that lie, a recorder, and simulated time; and a model of a disk to compare with. Test
//! helpers that are not about media are in `testkit`.
//!
//! Invariants kept here:
//! - Everything is deterministic: the same seed and the same calls in the same order give the same
//!   bytes, the same errors and the same digests. No code reads the system's clock or its random
//!   source.
//! - [`CrashMedium`] keeps all data that a `sync` or a `write_durable` promised, unless it was told
//!   to lie, and loses, reorders and tears all other writes at 512 bytes.
//! - A wrapper passes on every operation that it does not intercept, in unchanged batches.
//! - Nothing here is fit for protecting data; [`Rng`] least of all.

mod around;
mod crash;
pub mod cuts;
mod fault;
mod folder;
mod image;
mod latency;
mod lies;
mod loss;
mod lying_objects;
mod nth_call;
mod operation;
mod power;
mod record;
mod rng;
mod setting;
mod slow;
pub mod versions;

pub use around::{Around, Surrounded};
pub use crash::CrashMedium;
pub use fault::{Fault, FaultMedium};
pub use folder::{CrashFolder, FolderImage, FolderOp};
pub use image::{Image, PAGE_SIZE};
pub use latency::{LatencyMedium, LatencyModel, Reads};
pub use lies::{Lies, Truths};
pub use loss::{Loss, SECTOR_SIZE};
pub use lying_objects::LyingObjects;
pub use nth_call::{NthCall, SWEPT, failure, refuses, swept, tells};
pub use operation::{Digest, OpKind};
pub use record::{Record, Recorder};
pub use rng::Rng;
pub use setting::setting;
pub use slow::{Flaky, Slow};
