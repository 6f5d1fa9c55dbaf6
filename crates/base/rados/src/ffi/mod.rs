//! The interface to librados: the only unsafe code of this crate. Every function of this module is
//! safe to call in any order and from any thread.
//!
//! ABI: `rados/librados.h` and `rados/rados_types.h` of Ceph 16.2 (Debian's `librados-dev`
//! 16.2.15). Later releases keep its C functions under the same soname, `librados.so.2`.
//!
//! Invariants kept here:
//! - Only the Rust owner of a handle makes and frees it; an I/O context keeps its cluster handle
//!   alive.
//! - Settings of an I/O context take `&mut self`: librados forbids changing them during other use.
//! - librados copies the arguments of a write operation before the call returns. The buffers of a
//!   read operation are borrowed, and no function here returns or unwinds while librados may still
//!   fill them.

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
pub(super) use cluster::{ClusterConnection, UnconnectedCluster};
pub use cluster::{exit_at_once, is_in_use};
pub(super) use context::IoContext;
pub(super) use lock::Locker;
pub(super) use read::ReadOp;
pub(super) use watch::ObjectWatch;
pub(super) use write::WriteOp;
