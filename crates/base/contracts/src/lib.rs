//! The contracts that every crate of lacuna shares: blocks and disks, errors, secrets, memory
//! budgets and time.
//!
//! Invariants kept here:
//! - Every request of a front end to a [`Disk`] passes through [`ByteDisk`], the only place where
//!   ranges are checked and where unaligned requests are widened to blocks.
//! - An [`Error`] gives the failure, the finding, the expectation and the advice, in this order.
//!   The advice names settings and actions by type: library errors do not know the command line.
//! - A [`Secret`] zeroes its bytes on drop, is locked in memory where the system permits it, and
//!   cannot be printed. Memory of requests ([`IdlePool`]) holds plaintext for at most a second
//!   after the last request.
#![warn(missing_docs)]

mod bounded_cache;
mod budget;
mod bytedisk;
mod check;
mod clock;
mod disk;
mod error;
mod error_text;
mod fail_stop;
mod hint;
mod idle_pool;
mod locked_memory;
mod printable;
mod range_lock;
mod record;
mod secret;
mod shell_word;
mod socket_peer;
mod traffic;
mod wipe;

pub use bounded_cache::BoundedCache;
pub use budget::Budget;
pub use bytedisk::ByteDisk;
pub use check::{BadBlock, DiskCheckReport, ReadOutcome, check_buffer, check_disk, read_blocks};
pub use clock::{Clock, ManualClock, SystemClock};
pub use disk::{BLOCK_SIZE, BlockAddr, Disk, Extent, ExtentBuilder, SEGMENT_BLOCKS, Status, StatusItem};
pub use error::{Error, Kind, Result};
pub use error_text::ErrorText;
pub use fail_stop::{FailStop, OnPanic, closed_error, panic_error};
pub use hint::{Action, Hint, Setting, Term, TermRenderer};
pub use idle_pool::{IdlePool, empty_idle_pools};
pub use printable::printable;
pub use record::{LeReader, LeWriter, ParamsReader};
pub use secret::{Secret, SecretVec};
pub use shell_word::shell_word;
pub use socket_peer::SocketPeer;
pub use traffic::{InFlightGuard, Traffic};
pub use wipe::{WipeOnDrop, wipe};
