//! What servers of disks have in common, whatever front end they serve: a place among running servers, a socket on which
//! they are asked for their counters and told to end, longer work for other commands, and the way into the background.
//!
//! A front end that gives the disk as a file (FUSE) claims a [`RunDirectory`], starts [`Control`], mounts with
//! [`lacuna_mount::Mounted`], and ends on an [`Event`]. Others answer on a [`StatusSocket`]. Running servers are asked by
//! [`close`], [`status`], [`running`], [`died`], [`accounts`], [`purge_mounted`] and [`purge_served`]. Longer work on what is
//! open, with messages both ways, is begun with [`begin_mounted`] and [`begin_served`] and done by an [`Attendant`].
//!
//! Invariants kept here:
//! - A server holds the lock of its run directory for its whole life. Who gets the lock knows the server to be gone,
//!   whatever process numbers say.
//! - What appears in records does not depend on how many levels a disk has.
#![warn(missing_docs)]

mod attend;
mod begin;
mod close;
mod connect;
mod control;
mod counters;
mod daemon;
mod exchange;
mod growth;
mod idle;
mod mountpoint;
mod outcome;
mod purge;
mod purge_answer;
mod record_path;
mod run_base;
mod run_directory;
mod status_socket;
mod strangers;
mod subject;
mod system_call;
mod untold;

pub use attend::{Attendance, Attendant, unknown};
pub use begin::{begin_mounted, begin_served};
pub use close::{Closed, ask, await_dying, clean_up, close, died, running, seen, status};
pub use connect::process_at;
pub use control::{Control, Event, Waiting};
pub use counters::Counters;
pub use daemon::{Meanwhile, ReadyPipe, Side, Started, daemonize};
pub use exchange::{Conversation, Exchange, Heard};
pub use growth::Growth;
pub use idle::{Idle, ends_later};
pub use mountpoint::check_mountpoint;
pub use purge::{purge_mounted, purge_served};
pub use run_base::default_run_base;
pub use run_directory::{DISK_NAME, InPool, Record, RunDirectory, RunPaths, fnv1a, seconds_now};
pub use status_socket::{StatusSocket, account, accounts, answers, close_served, serving, sockets};
pub use subject::Subject;
pub use system_call::{
    become_io_flusher, bytes_sent_to_devices, find_programs_of_the_system, ignore_file_size_signal,
    note_inherited_descriptors,
};
