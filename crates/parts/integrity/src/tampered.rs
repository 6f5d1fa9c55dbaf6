//! The errors of blocks and pages that do not verify.

use crate::untrusted::Part;
use lacuna_contracts::{Error, Kind};

/// The error of a page of US that does not verify.
pub(crate) fn tampered(part: Part, page: u64) -> Error {
    Error::new(Kind::Corrupt, format!("page {page} of {} does not verify", name_of(part)))
        .expected("the page that was written there last")
        .hint("empty the file, then restore it from a backup")
}

fn name_of(part: Part) -> String {
    match part {
        Part::Tree(level) if level >= Part::RTREE => format!("RTree, level {},", level - Part::RTREE),
        Part::Tree(level) => format!("the tree of tags, level {level},"),
        Part::Counters => "the table of counters".to_owned(),
        Part::Intervals => "the intervals of equal counters".to_owned(),
        Part::Order => "the order of the leaves of RTree".to_owned(),
        Part::Position => "the places of blocks in RTree".to_owned(),
    }
}

/// The error of a block that does not verify.
pub(crate) fn altered(block: u64) -> Error {
    Error::new(Kind::Corrupt, format!("block {block} does not verify"))
        .found("data or counters that were altered, moved or are not the latest")
        .expected("the data that was written there last")
        .hint("restore this block from a backup; a check lists all such blocks")
}
