//! `lacuna-bench`: the program that `make bench` runs, and its common parts with the measurements
//! of the papers (`papers/`). Its one job is to measure the `lacuna` command beside its peers, in
//! one run on one machine, and to report the results: on the terminal, in the pages of `docs/` and
//! as plots. It can also compare two commits.
//!
//! The public modules are the parts that every measurement needs: sections and runs, tables, plots,
//! requirements, pages with a history, disks in this process and modelled media. The private
//! modules are the sections of the program.
//!
//! Invariants kept here:
//! - All servers get the same jobs with the same numbers of requests, in turns. Only one server is
//!   busy at a time; on Ceph the rest are idle, elsewhere only one is alive.
//! - A speed is the median of the rounds; a ratio of speeds is the median of the ratios of the
//!   rounds of one run. A processor time is the lower quartile of its slices, because other work on
//!   the machine can only add to it.
//! - A missed requirement is a result, not an error: it is reported, and the exit code stays 0.
//! - No server and no file remains after a run, even after an error, except the requested output
//!   and the programs of commits in `target/compare`.
//! - The exit code is 1 if a comparison found a difference that it must not find, and 2 on an
//!   error.
#![forbid(unsafe_code)]

mod args;
mod ceph;
mod ciphers;
mod command;
mod comparing;
mod flash;
pub mod interrupt;
mod kept_writes;
pub mod machine;
pub mod measuring;
mod memory;
pub mod modelled;
mod mounted;
mod nbd;
pub mod pages;
mod program;
pub mod run;
pub mod run_args;
pub mod section;
mod sections;
pub mod serving;
mod vaults;
pub mod workspace;

pub use command::main;
