//! Pages, tables and plots.

pub mod page;
pub(crate) mod peers_plot;
pub mod plot;
pub(crate) mod ratios_plot;
pub(crate) mod record;
pub(crate) mod report;
pub mod requirement;
pub mod table;
