//! Objects in a pool of Ceph RADOS, through librados, which is loaded when it is first needed.
//!
//! [`RadosPool`] connects, and gives the objects of a pool as a [`lacuna_medium::ObjectStore`].
//!
//! Invariants kept here:
//! - One transaction is one write operation of RADOS: atomic, and acknowledged once every replica
//!   has it on stable storage.
//! - A batch is started whole before any of it is waited for.
//! - The absence of an object is told from the absence of its pool: a pool that was deleted never
//!   reads as zeros.
//! - A client that lost the lock which it holds through this crate performs nothing any more
//!   ([`Kind::Fenced`]).
//! - A full pool answers; it lets nobody wait.
//!
//! librados starts threads when it connects, so connect after forking. They end when everything
//! taken from a pool is dropped, and a process that cannot wait for that ends by [`exit_at_once`].
//!
//! [`Kind::Fenced`]: lacuna_contracts::Kind::Fenced

#![warn(missing_docs)]
#![deny(unsafe_code)]

mod epoch;
mod error;
#[allow(unsafe_code)]
mod ffi;
mod keys;
mod lock;
mod objects;
mod pool;
mod settings;

pub use ffi::{exit_at_once, is_in_use};
pub use lock::WriterLock;
pub use objects::RadosObjects;
pub use pool::RadosPool;
pub use settings::ClusterOptions;
