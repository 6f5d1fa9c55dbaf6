//! Reading pages of an object: from its file, from the journal, or as zeros where it was cut.

use crate::ids::PAGE;
use crate::keys::StoreKeys;
use crate::object::{Entry, Object, Source};
use crate::page_range::{pages_of, range};
use crate::parts::Parts;
use lacuna_contracts::Result;
use std::ops::Range;

/// See [`crate::Store::read`].
pub(crate) fn read(parts: &Parts, object: u64, first: u64, out: &mut [u8]) -> Result<()> {
    let pages = range(first, pages_of(out.len())?)?;
    match parts.objects.get(object) {
        Some(known) => read_known(parts, &known.read(), object, pages, out),
        None => parts.objects.read(object, first, out),
    }
}

/// Reads an object that was changed since the last checkpoint.
pub(crate) fn read_known(
    parts: &Parts,
    known: &Object,
    object: u64,
    pages: Range<u64>,
    out: &mut [u8],
) -> Result<()> {
    if known.gone {
        out.fill(0);
        return Ok(());
    }
    let mut page = pages.start;
    let mut rest = out;
    while page < pages.end {
        let source = known.source(page);
        let mut count = 1;
        while page + count < pages.end && follows(source, count, known.source(page + count)) {
            count += 1;
        }
        let (now, later) = rest.split_at_mut(count as usize * PAGE);
        match source {
            Source::Own => parts.objects.read(object, page, now)?,
            Source::Journal(place) => {
                parts.journal.read(place, now)?;
                if parts.health.is_read_only() {
                    take_brought(parts, known, object, page, now)?;
                }
            }
            Source::Zeros => now.fill(0),
        }
        rest = later;
        page += count;
    }
    Ok(())
}

/// Whether the page `count` pages after a source continues its run.
fn follows(source: Source, count: u64, next: Source) -> bool {
    match (source, next) {
        (Source::Journal(first), Source::Journal(next)) => {
            first.area == next.area && u64::from(first.page) + count == u64::from(next.page)
        }
        _ => source == next,
    }
}

/// Whether a page matches its entry in a record.
pub(crate) fn is_listed(keys: &StoreKeys, entry: &Entry, page: &[u8]) -> bool {
    keys.is_page(entry.sequence, page, &entry.tag)
}

/// Replaces pages that do not match in the journal by their copies in place, if an interrupted
/// checkpoint wrote them there. Only for read-only stores: a writable one finishes that checkpoint.
fn take_brought(parts: &Parts, known: &Object, object: u64, first: u64, pages: &mut [u8]) -> Result<()> {
    let mut brought = [0; PAGE];
    for (page, bytes) in (first..).zip(pages.chunks_exact_mut(PAGE)) {
        let Some(entry) = known.entry(page).filter(|entry| !is_listed(&parts.keys, entry, bytes)) else {
            continue;
        };
        parts.objects.read(object, page, &mut brought)?;
        if is_listed(&parts.keys, entry, &brought) {
            bytes.copy_from_slice(&brought);
        }
    }
    Ok(())
}
