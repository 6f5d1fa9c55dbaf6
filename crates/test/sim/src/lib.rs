//! Test doubles for [`lacuna_medium::Medium`], [`lacuna_medium::Folder`] and
//! [`lacuna_medium::ObjectStore`]: power cuts, faults, reads that lie, requests of a dead process
//! that arrive later, queries that time out, a recorder, and simulated time; an object store in
//! memory; and a model of a disk to compare with. Test helpers that are not about media are in
//! `testkit`.
//!
//! Invariants kept here:
//! - Everything is deterministic: the same seed and the same calls in the same order give the same
//!   bytes, the same errors and the same digests. No code reads the system's clock or its random
//!   source.
//! - [`CrashMedium`] keeps all data that a `sync` or a `write_durable` promised, unless it was told
//!   to lie, and loses, reorders and tears all other writes at 512 bytes.
//! - A wrapper passes on every operation that it does not intercept, in unchanged batches.
//! - Nothing here is fit for protecting data; [`Rng`] least of all.

mod crash;
pub mod cuts;
mod ends;
mod env_number;
mod fault;
mod folder;
mod image;
mod intercept;
mod intercepted_objects;
mod latency;
mod lies;
mod lying_objects;
mod memory_objects;
mod memory_pages;
mod nth_call;
mod operation;
mod power;
mod query_timeouts;
mod record;
mod rng;
mod slow;
mod unsynced_writes;
pub mod versions;

pub use crash::CrashMedium;
pub use crash::late_writes::{LateMedium, LateRequests};
pub use ends::{End, EndsModel};
pub use env_number::env_number;
pub use fault::{Fault, FaultMedium};
pub use folder::{CrashFolder, FolderImage, FolderOp};
pub use image::{MediumImage, PAGE_SIZE};
pub use intercept::{InterceptedMedium, MediumInterceptor};
pub use intercepted_objects::{InterceptedObjects, ObjectInterceptor};
pub use latency::{LatencyMedium, LatencyModel, ReadStats};
pub use lies::{HonestReads, Lies};
pub use lying_objects::LyingObjects;
pub use memory_objects::{MemoryObject, MemoryObjects};
pub use nth_call::{NthCall, SWEPT_ERRNOS, call_error, is_refusal_errno, reports_failure, sweep_cases};
pub use operation::{OpKind, RunDigest};
pub use query_timeouts::QueryTimeouts;
pub use record::{RecordedOp, Recorder};
pub use rng::Rng;
pub use slow::{FlakyMedium, SlowMedium};
pub use unsynced_writes::{LossPolicy, SECTOR_SIZE};
