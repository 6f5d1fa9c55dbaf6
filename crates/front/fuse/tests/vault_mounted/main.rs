//! Tests of a mounted vault with the kernel: the behaviour that POSIX and Linux promise, random
//! operations in parallel with a plain directory, real programs, damage, and the end of a server.
//!
//! Every test skips itself with a reason where the machine does not allow it. In no case does a
//! mount remain.
#![deny(unsafe_code)]

mod backing;
mod clock;
mod conformance;
mod damage;
mod fixture;
mod fsx;
mod handles;
#[path = "../machine/mod.rs"]
mod machine;
mod overlay;
mod programs;
mod serving;
mod shutdown;
