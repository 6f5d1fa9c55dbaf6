//! The seam to librados: the only unsafe code of this crate. Every function over it is safe to call
//! in any order and from any thread.
//!
//! ABI: `rados/librados.h` and `rados/rados_types.h` of Ceph 16.2 (Debian's `librados-dev`
//! 16.2.15), whose C functions later releases keep under the same soname, `librados.so.2`.
//!
//! Invariants kept here:
//! - Handles are made and freed by their Rust owner alone; an I/O context keeps its cluster handle
//!   alive.
//! - Settings of an I/O context take `&mut self`: librados forbids to change them while others use
//!   it.
//! - librados copies what a write operation is given before the call returns. What a read operation
//!   fills is borrowed, and no function here returns, or unwinds, while librados may still fill it.

mod batch;
mod cluster;
mod context;
mod handle;
mod lock;
mod read;
mod symbols;
mod watch;
mod write;

pub(super) use batch::ReadAnswer;
pub(super) use cluster::{Cluster, Draft};
pub use cluster::{exit_at_once, is_in_use};
pub(super) use context::IoContext;
pub(super) use lock::Locker;
pub(super) use read::ReadOp;
pub(super) use watch::Watch;
pub(super) use write::WriteOp;
