//! What servers have in common, whatever front end they serve: a place in the registry of
//! instances, a control socket on which other processes ask for their account, give them work and
//! end them, and the way into the background.
//!
//! A server claims an [`Instance`], writes its [`Record`], and answers clients with a [`Server`]:
//! the account of its [`StatusSource`]s, a purge, the end, and [`Jobs`], which are longer work with
//! messages both ways. A front end that mounts has [`check_mountpoint`] tell a free directory from
//! the mount of a server that died, and waits for an [`Event`] in its [`WakeUps`]. Another process
//! finds instances in the [`Registry`], and asks or closes each [`Peer`] in one protocol.
//!
//! Invariants kept here:
//! - A server holds the lock of its run directory for its whole life. Who gets the lock knows the
//!   server to be gone, whatever process numbers say.
//! - What appears in records does not depend on how many levels a disk has.
//! - Each request has one outcome. What a server does not understand is answered with an error, and
//!   it goes on.
//! - A server has a limited number of threads for its clients, however many come. A client that
//!   does not read delays its own work alone.
#![warn(missing_docs)]

mod background;
mod client;
mod counters;
mod dead;
mod disk_query;
mod exchange;
mod failure_log;
mod file;
mod instance;
mod jobs;
mod mountpoint;
mod other_users;
mod peer;
mod protocol;
mod purge;
mod record;
mod record_path;
mod registry;
mod run_base;
mod run_dir;
mod server;
mod status;
mod system_call;
mod untold;
mod wake_ups;
mod worker;

pub use background::{Meanwhile, ReadyPipe, Side, Started, daemonize};
pub use client::{Conversation, Heard};
pub use counters::Counters;
pub use disk_query::{DiskQuery, PoolQuery};
pub use exchange::Exchange;
pub use failure_log::log_failure;
pub use file::{FileIdentity, FileNow, FileState, HeldFile};
pub use instance::Instance;
pub use jobs::{JobHandler, Jobs};
pub use mountpoint::check_mountpoint;
pub use peer::{Closed, Peer};
pub use protocol::{Job, Meant, Op, Refusal};
pub use purge::purge;
pub use record::{Front, Identity, InPool, MountKind, MountRecord, MountedBy, Record, seconds_now};
pub use registry::{Registry, await_dying, close};
pub use run_base::default_run_base;
pub use run_dir::DISK_NAME;
pub use server::{ClosingClient, Server, Service};
pub use status::{Condition, Counter, ServerState, ServerStatus, StatusSource};
pub use system_call::{
    become_io_flusher, bytes_sent_to_devices, find_programs_of_the_system, ignore_file_size_signal,
    note_inherited_descriptors,
};
pub use wake_ups::{Event, WakeUps, ends_later};
