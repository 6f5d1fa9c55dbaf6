//! Tests of the crate with the kernel: files, file systems, trims, faults, and the end of a server.
//!
//! Every test skips itself with a reason where the machine does not allow it. In no case does a
//! mount remain.

mod changes;
mod file_system;
mod fixture;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../memory/mod.rs"]
mod memory;
mod programs;
mod raw;
mod refusals;
mod shutdown;
