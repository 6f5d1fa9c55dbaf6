//! The crate against the kernel: files, file systems, trims, faults, and the end of a server.
//!
//! Every test skips itself, saying why, where the machine does not allow it. Whatever happens,
//! nothing stays mounted.

mod ends;
mod file_system;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../memory/mod.rs"]
mod memory;
mod place;
mod programs;
mod raw;
mod refused;
