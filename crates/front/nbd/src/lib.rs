//! Serves disks to NBD clients: the network block device protocol in its fixed newstyle form, over
//! unix sockets, TCP, sockets passed by a service manager, and TLS (feature `tls`, on by default).
//!
//! Invariants:
//! - This crate knows nothing of formats: a disk is a [`lacuna_contracts::ByteDisk`], which checks
//!   every range.
//! - Every request gets an answer, or its connection is closed. Memory is bounded: a thread has 256
//!   KiB for small requests; 88 MiB are kept for larger requests of all levels; requests that find
//!   no room there share 128 MiB per connection and 640 MiB per server (`memory.rs`). A client that
//!   does nothing, or does not take its replies, delays no other client.
//! - A WRITE with an incomplete payload is not performed at all. A request that was read whole is
//!   carried out, even when the client leaves or the server stops meanwhile. The exceptions, when
//!   the server stops: zeroing without holes, which may cover 4 GiB, is abandoned half way with an
//!   error, and a CACHE request ends early.
//! - The text of a disk's error stays on the server's side; the client gets an error number only.
//! - The smallest block advertised is the disk's own, 4096 bytes, but requests of any alignment are
//!   served exactly.
#![warn(missing_docs)]
// `IoSlice::advance_slices` takes the remaining slices as `&mut &mut`.
#![allow(clippy::mut_mut)]

mod clients;
mod exports;
mod extents;
mod input;
mod listen;
mod memory;
mod negotiate;
mod perform;
mod reporter;
#[cfg(feature = "fuzzing")]
mod scripted_client;
mod server;
mod stream;
mod sys;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod tls_mode;
mod transmit;
mod wire;

pub use clients::{ClientPeer, Clients};
pub use exports::Exports;
pub use listen::{Listen, Listeners, check_listen, passed_addresses};
pub use negotiate::{
    ClientFlags, ExportSession, HandshakeOutcome, TlsState, exchange_flags, handshake, negotiate,
};
pub use reporter::Reporter;
#[cfg(feature = "fuzzing")]
pub use scripted_client::serve as serve_replayed;
pub use server::{NbdServer, ServerSettings, StopHandle, check_certificates};
pub use tls_mode::{CLIENT_AUTHORITY, TlsMode};
pub use wire::{MAX_REQUEST, NbdCommand, NbdErrno, NbdRequest, NotARequest, REQUEST_LEN};
