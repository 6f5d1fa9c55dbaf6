//! Checks of page ranges: whole pages, at offsets that a file can have.

use crate::commits::codec::MOST_PAGES;
use crate::ids::PAGE;
use lacuna_contracts::{Error, Kind, Result};
use std::ops::Range;

/// The number of pages, or an error if the bytes end within a page.
pub(crate) fn check_whole_pages(bytes: usize) -> Result<u64> {
    if bytes.is_multiple_of(PAGE) {
        return Ok((bytes / PAGE) as u64);
    }
    Err(Error::new(Kind::Usage, "cannot read or write part of a page of an object")
        .found(format!("{bytes} bytes"))
        .expected(format!("a multiple of {PAGE}")))
}

/// `count` pages starting at `first`, or an error if their offsets do not fit.
pub(crate) fn range(first: u64, count: u64) -> Result<Range<u64>> {
    let end = first.checked_add(count).filter(|end| *end < MOST_PAGES);
    end.map(|end| first..end).ok_or_else(|| {
        Error::new(Kind::Usage, "an object cannot be this long")
            .found(format!("{count} pages from page {first}"))
    })
}
