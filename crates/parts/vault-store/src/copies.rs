//! Reads of single copies of a page of a doubled object.

use crate::doubled::Further;
use crate::ids::PAGE;
use crate::object::Source;
use crate::page_range::range;
use crate::parts::Parts;
use lacuna_contracts::{Error, Result};

/// A copy of a page of a doubled object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCopy {
    /// The copy that reads use: in the journal, or in the first file.
    Current,
    /// In the second file.
    Second,
    /// In the first file, although reads use the journal or see a cut: an interrupted checkpoint
    /// may have written it there, or another root may have it.
    Behind,
    /// In the third file.
    Third,
}

impl PageCopy {
    /// The copies for every reader, the likeliest first.
    pub const USUAL: [PageCopy; 3] = [PageCopy::Current, PageCopy::Second, PageCopy::Behind];
    /// All copies, for the rescue of a damaged vault.
    pub const ALL: [PageCopy; 4] = [PageCopy::Current, PageCopy::Second, PageCopy::Behind, PageCopy::Third];
}

/// See [`crate::Store::read_copy`].
pub(crate) fn read_copy(
    parts: &Parts,
    object: u64,
    page: u64,
    copy: PageCopy,
    out: &mut [u8],
) -> Result<bool> {
    range(page, 1)?;
    let shared = parts.objects.get(object);
    // Held during the read, so that the journal keeps the page.
    let known = shared.as_ref().map(|shared| shared.read());
    let source = known.as_ref().map_or(Source::Own, |known| known.source(page));
    match (copy, source) {
        (PageCopy::Current, Source::Journal(place)) => parts.journal.read(place, out)?,
        (PageCopy::Current, Source::Own) | (PageCopy::Behind, Source::Journal(_) | Source::Zeros) => {
            parts.objects.read(object, page, out)?;
        }
        (PageCopy::Current, Source::Zeros) => out.fill(0),
        (PageCopy::Second, _) => return read_further(parts, object, Further::Second, page, out),
        (PageCopy::Third, _) => return read_further(parts, object, Further::Third, page, out),
        (PageCopy::Behind, Source::Own) => return Ok(false),
    }
    Ok(true)
}

fn read_further(parts: &Parts, object: u64, which: Further, page: u64, out: &mut [u8]) -> Result<bool> {
    let Some(file) = parts.objects.doubled.file(object, which)? else { return Ok(false) };
    file.read_at(page * PAGE as u64, out).map_err(Error::of_read)?;
    Ok(true)
}

/// See [`crate::Store::is_in_both_files`].
pub(crate) fn is_in_both_files(parts: &Parts, object: u64, page: u64) -> bool {
    are_alike(parts, object, page, &[PageCopy::Second])
}

/// See [`crate::Store::is_in_all_files`].
pub(crate) fn is_in_all_files(parts: &Parts, object: u64, page: u64) -> bool {
    are_alike(parts, object, page, &[PageCopy::Second, PageCopy::Third])
}

/// Whether these copies of a page equal that of the first file, or a checkpoint has yet to write
/// it.
fn are_alike(parts: &Parts, object: u64, page: u64, copies: &[PageCopy]) -> bool {
    let known = parts.objects.get(object);
    if known.is_some_and(|known| known.read().source(page) != Source::Own) {
        return true;
    }
    let mut first = [0; PAGE];
    // A missing file and one that ends before the page both read as zeros.
    let is_alike = |copy: &PageCopy, first: &[u8; PAGE]| {
        let mut other = [0; PAGE];
        read_copy(parts, object, page, *copy, &mut other).is_ok() && *first == other
    };
    read_copy(parts, object, page, PageCopy::Current, &mut first).is_ok()
        && copies.iter().all(|copy| is_alike(copy, &first))
}

/// See [`crate::Store::pages`].
pub(crate) fn pages(parts: &Parts, object: u64) -> Result<u64> {
    let files = [parts.objects.file(object)?, parts.objects.doubled.file(object, Further::Second)?];
    let known = parts.objects.get(object).map_or(0, |known| known.read().journaled_end());
    let mut lens = files.into_iter().flatten().map(|file| file.len());
    lens.try_fold(known, |most, len| Ok(most.max(len?.div_ceil(PAGE as u64))))
}
