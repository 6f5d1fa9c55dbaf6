//! The errors of formats about records.

use lacuna_contracts::{Error, Kind};

/// The error for a record that a predecessor left and that its disk cannot have.
pub fn not_of_this_disk(found: String) -> Error {
    Error::new(Kind::Corrupt, "the memory of the last server does not fit this disk")
        .found(found)
        .expected("writes that the last server acknowledged and did not flush")
        .hint("writes that were not flushed are lost; check the file system that lies on the disk")
}

/// The error for a write without a free record.
pub fn used_up() -> Error {
    Error::new(Kind::Memory, "the memory for writes that are not on the medium yet is used up")
        .hint("write less at a time, or flush")
}
