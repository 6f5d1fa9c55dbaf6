//! A mounted vault against the kernel: the behaviour that POSIX and Linux promise, random
//! operations beside a plain directory, real programs, damage, and the end of a server.
//!
//! Every test skips itself, saying why, where the machine does not allow it. Whatever happens,
//! nothing stays mounted.
#![deny(unsafe_code)]

mod backing;
mod clock;
mod conformance;
mod damage;
mod ends;
mod fsx;
#[path = "../machine/mod.rs"]
mod machine;
mod place;
mod programs;
mod serving;
