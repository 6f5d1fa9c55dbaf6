//! Objects: their tables, their copies, and how their pages are read and written.

pub(crate) mod change_collector;
pub(crate) mod copies;
pub(crate) mod doubled;
pub(crate) mod object;
pub(crate) mod page_range;
pub(crate) mod page_reader;
pub(crate) mod reclaimer;
pub(crate) mod table;
pub(crate) mod writer;
