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
mod bench_vault;
mod ceph_image;
mod ciphers;
mod client;
mod cluster;
mod command;
mod commits;
mod compare;
mod compared_disks;
mod confidence;
mod counters;
mod disks;
mod disks_report;
mod file_jobs;
mod flash_disks;
mod flash_file;
mod flash_job;
mod flash_large;
mod flash_processor_ratios;
mod flash_report;
mod flash_sparse;
mod flash_speed;
mod grid;
pub mod in_process;
pub mod interrupt;
mod job;
mod levels;
pub mod machine;
mod machine_time;
mod media;
mod memory;
pub mod modelled;
mod mountable;
mod mounted_report;
pub mod page;
mod peers_plot;
mod pin;
pub mod plot;
mod processor;
mod processor_ratios;
mod program;
mod rados;
mod rados_plot;
mod rados_report;
mod ratios_plot;
mod raw_disk;
mod record;
mod report;
pub mod requirement;
mod rounds;
pub mod run;
pub mod run_args;
mod samples;
pub mod scale;
pub mod section;
pub mod section_results;
mod sections;
mod self_test;
mod server;
mod servers;
mod side_by_side;
pub mod simulated_disk;
mod stop_cost;
mod subject;
pub mod table;
mod turn;
mod vault_access;
mod vault_file;
mod vault_large;
mod vault_processor_ratios;
mod vault_report;
mod vault_schemes;
mod vault_tree;
pub mod workspace;

pub use command::main;
