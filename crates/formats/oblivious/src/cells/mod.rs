//! Cells, and the regions that levels have of them.

pub(crate) mod cell;
pub(crate) mod cell_store;
pub(crate) mod level_cells;
pub(crate) mod place;
pub(crate) mod regions;
