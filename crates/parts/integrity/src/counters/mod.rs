//! Write counters and the arrays that hold them.

pub(crate) mod auth_counters;
pub(crate) mod counter;
pub(crate) mod intervals;
pub(crate) mod mt_counters;
pub(crate) mod page_array;
