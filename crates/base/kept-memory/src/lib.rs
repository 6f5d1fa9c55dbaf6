//! Memory that outlives the process that uses it. A server keeps in it the writes that it has
//! acknowledged and that are not on the medium yet: when the server dies, its successor adopts
//! them.
//!
//! A [`KeptMemory`] is divided into pools of records of one size ([`PoolLayout`]). A record has a
//! few words and some bytes; it counts once it is *published*. The memory is a `memfd`, which lives
//! as long as any process holds its descriptor, or belongs to this process alone
//! ([`KeptMemory::anonymous`]) where nothing outlives the process anyway.
//!
//! Invariants:
//! - A record is published after its words and bytes were written, and withdrawn before they
//!   change. So at any instant every published record is whole.
//! - A record belongs to one owner in one process. A successor adopts the memory only after its
//!   predecessor has ended.
//! - The bytes of a record are wiped when it is dropped, or by a successor if its process died or
//!   left the memory.
//! - A holder of records of acknowledged writes that is dropped with any leaves the memory as a
//!   whole to a successor first ([`KeptMemory::leave_to_successor`]), whatever the reason: the disk
//!   could not be opened, could not be closed, or was not closed. So such an end is like a death.
//! - Only a memory of the same version, owner and layout is adopted, and it cannot shrink.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod errors;
mod keeper;
mod layout;
mod mapping;
mod memory;
mod pool;

pub use errors::{not_of_this_disk, used_up};
pub use keeper::MemoryKeeper;
pub use layout::PoolLayout;
pub use memory::KeptMemory;
pub use pool::{KeptPool, KeptRecord};
