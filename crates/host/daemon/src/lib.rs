//! The parts that servers of all front ends share: an entry in the registry of instances, a control
//! socket where other processes ask for the status, give work and close, and going to the
//! background.
//!
//! A server claims an [`Instance`], writes its [`Record`], and answers clients with a
//! [`ControlServer`]: the status of its [`StatusSource`]s, a purge, a close, and [`Jobs`], which
//! are longer work with messages both ways. A front end that mounts calls [`clear_mountpoint`] to
//! clear away the mount of a dead server, checks its directory with [`check_mountpoint`] or makes
//! it ([`MadeMountpoint`]), and waits for a [`MountEvent`] in its [`EventWaiter`]. Another process
//! finds instances in the [`Registry`], and queries or closes each [`Peer`] over one protocol. Root
//! finds those of other users too ([`OtherUsers`]).
//!
//! Invariants kept here:
//! - A server holds the lock of its run directory for its whole life. Holding the lock proves that
//!   the server is dead; process numbers do not.
//! - The content of a record does not depend on the number of levels of a disk.
//! - Each request has one outcome. The server answers an unknown request with an error, and goes
//!   on.
//! - Root follows no link of another user, trusts no record of another user, and changes none of
//!   the user's files: only living servers are asked, and the kernel names their user and process.
//! - The number of threads for clients is limited. A client that says nothing, or does not read,
//!   delays only its own work.
#![warn(missing_docs)]

mod background;
mod client;
mod counters;
mod dead_server;
mod file;
mod incoming;
mod instance;
mod jobs;
mod json_path;
mod keeper;
mod mountpoint;
mod protocol;
mod record;
mod record_path;
mod registry;
mod run_dir;
mod server;
mod server_end;
mod status;
mod system_call;
mod users;

pub use background::{
    ChildStartup, ForkResult, ReadyPipe, StartupProgress, become_io_flusher, daemonize, detach,
};
pub use client::disk_query::{DiskQuery, PoolQuery};
pub use client::peer::Peer;
pub use client::purge::purge;
pub use client::takeover::Takeover;
pub use client::{JobClient, JobReply};
pub use counters::Counters;
pub use file::{FileIdentity, FileNow, FileState, TrackedFile};
pub use instance::Instance;
pub use jobs::{JobHandler, Jobs};
pub use json_path::set_path;
pub use keeper::{KeeperActions, KeeperLink, keep};
pub use mountpoint::made_mountpoint::MadeMountpoint;
pub use mountpoint::{IfMissing, check_mountpoint, clear_mountpoint};
pub use protocol::{ControlOp, ExpectedDisk, Job, WireError};
pub use record::{
    FrontEnd, Identity, KeeperId, MountKind, MountRecord, MountedBy, PoolScope, Record, seconds_now,
};
pub use registry::{Registry, await_dying, close};
pub use run_dir::DISK_NAME;
pub use run_dir::run_base::default_run_base;
pub use server::client_connection::JobStream;
pub use server::event_waiter::{EventWaiter, MountEvent, with_retry_hint};
pub use server::failure_log::{log_failure, log_refused_client};
pub use server::{ClosingClient, ControlServer, Service};
pub use server_end::CloseOutcome;
pub use status::{
    Condition, ConnectedClients, Counter, RefusedClients, ServerState, ServerStatus, StatusSource,
};
pub use system_call::{
    bytes_sent_to_devices, find_programs_of_the_system, ignore_file_size_signal, note_inherited_descriptors,
};
pub use users::all_users::{OtherUsers, UserPeer};
