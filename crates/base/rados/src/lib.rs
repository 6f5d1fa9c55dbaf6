//! Objects in a pool of Ceph RADOS, through librados, which is loaded on first use.
//!
//! [`RadosPool`] connects, and provides the objects of a pool as a [`lacuna_medium::ObjectStore`].
//!
//! Invariants kept here:
//! - One transaction is one write operation of RADOS: atomic, and acknowledged once every replica
//!   has it on stable storage.
//! - All operations of a batch are started before the first is awaited.
//! - An absent object is distinguished from an absent pool: a deleted pool never reads as zeros.
//! - A client that lost a lock held through this crate performs no more operations
//!   ([`Kind::Fenced`]).
//! - Operations on a full pool fail; they do not wait.
//!
//! librados starts threads when it connects, so connect after forking. They end when all values
//! taken from a pool are dropped; a process that cannot wait for that ends by [`exit_at_once`].
//!
//! [`Kind::Fenced`]: lacuna_contracts::Kind::Fenced

#![warn(missing_docs)]
#![deny(unsafe_code)]

mod cluster_options;
mod epoch;
mod error;
#[allow(unsafe_code)]
mod ffi;
mod keys;
mod lock;
mod objects;
mod pool;
mod series;

pub use cluster_options::ClusterOptions;
pub use ffi::{exit_at_once, is_in_use};
pub use lock::WriterLock;
pub use objects::RadosObjects;
pub use pool::RadosPool;
pub use series::WriterSeries;
