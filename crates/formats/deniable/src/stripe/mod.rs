//! Stripes: how they are filled, closed and written, and which blocks they carry.

pub(crate) mod builder;
pub(crate) mod carried;
pub(crate) mod carrier;
pub(crate) mod closed_stripe;
pub(crate) mod map_page_reader;
pub(crate) mod pipeline;
pub(crate) mod slot_buffer;
pub(crate) mod stripe_filler;
