//! Servers of NBD, the jobs that clients give them, and the turns in which they do them.

pub(crate) mod client;
pub(crate) mod grid;
pub(crate) mod job;
pub(crate) mod processor_ratios;
pub(crate) mod request_offsets;
pub(crate) mod rounds;
pub mod scale;
pub(crate) mod server;
pub(crate) mod servers;
pub(crate) mod side_by_side;
pub(crate) mod stop_cost;
pub(crate) mod subject;
pub(crate) mod turn;
