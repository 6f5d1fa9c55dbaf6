//! Reading the copies of a page of a doubled object, one by one.

use crate::ids::PAGE;
use crate::object::Source;
use crate::page_range::range;
use crate::parts::Parts;
use lacuna_contracts::Result;

/// A place in which a page of a doubled object may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCopy {
    /// Where reads find it: in the journal, or in the first file.
    Current,
    /// In the second file.
    Second,
    /// In the first file, where reads find it in the journal or cut: a checkpoint that was cut short may have brought it there, or another
    /// root may have it.
    Behind,
}

impl PageCopy {
    /// All of them, the likeliest first.
    pub const ALL: [PageCopy; 3] = [PageCopy::Current, PageCopy::Second, PageCopy::Behind];
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
    // Held while it is read: what the journal holds of it stays there.
    let known = shared.as_ref().map(|shared| shared.read());
    let source = known.as_ref().map_or(Source::Own, |known| known.source(page));
    match (copy, source) {
        (PageCopy::Current, Source::Journal(place)) => parts.journal.read(place, out)?,
        (PageCopy::Current, Source::Own) | (PageCopy::Behind, Source::Journal(_) | Source::Zeros) => {
            parts.objects.read(object, page, out)?;
        }
        (PageCopy::Current, Source::Zeros) => out.fill(0),
        (PageCopy::Second, _) => match parts.objects.doubled.file(object)? {
            Some(file) => file.read_at(page * PAGE as u64, out)?,
            None => return Ok(false),
        },
        (PageCopy::Behind, Source::Own) => return Ok(false),
    }
    Ok(true)
}

/// See [`crate::Store::is_in_both_files`].
pub(crate) fn is_in_both_files(parts: &Parts, object: u64, page: u64) -> bool {
    let known = parts.objects.get(object);
    let settled = known.is_none_or(|known| known.read().source(page) == Source::Own);
    let (mut first, mut second) = ([0; PAGE], [0; PAGE]);
    // A file that is not there and one that ends before read alike: as zeros.
    let is_read = |copy, out: &mut [u8]| read_copy(parts, object, page, copy, out).is_ok();
    !settled
        || is_read(PageCopy::Current, &mut first) && is_read(PageCopy::Second, &mut second) && first == second
}

/// See [`crate::Store::pages`].
pub(crate) fn pages(parts: &Parts, object: u64) -> Result<u64> {
    let files = [parts.objects.file(object)?, parts.objects.doubled.file(object)?];
    let known = parts.objects.get(object).map_or(0, |known| known.read().journaled_end());
    let mut lens = files.into_iter().flatten().map(|file| file.len());
    lens.try_fold(known, |most, len| Ok(most.max(len?.div_ceil(PAGE as u64))))
}
