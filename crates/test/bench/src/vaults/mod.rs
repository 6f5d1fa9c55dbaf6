//! Vaults.

pub(crate) mod access;
pub(crate) mod bench_vault;
pub(crate) mod file;
pub(crate) mod large;
pub(crate) mod processor_ratios;
pub(crate) mod report;
pub(crate) mod schemes;
pub(crate) mod tree;
