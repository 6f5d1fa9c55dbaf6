//! Parsing and writing of the fields of records and superblocks.

use crate::ids::PAGE;
use crate::keys::{TAG, malformed};
use lacuna_contracts::Result;

/// The most machines with a remembered last commit.
pub(crate) const MACHINES: usize = 32;

/// The longest root in bytes.
pub const ROOT_MAX: usize = 4096;

/// The largest number of commits, objects and superblocks: adding to one never overflows.
pub(crate) const MOST_NUMBER: u64 = i64::MAX as u64;

/// An object has fewer pages than this, so that their offsets fit.
pub(crate) const MOST_PAGES: u64 = i64::MAX as u64 / PAGE as u64;

/// The most object numbers that a commit lets be given before the next one.
const MOST_NUMBERS: u64 = 16384;

/// The most objects that may be appended to in place between two commits.
pub(crate) const APPENDABLE: usize = 256;

/// A commit, with all that is needed to tell whether a later state descends from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) machine: [u8; 16],
    pub(crate) number: u64,
    pub(crate) digest: [u8; 32],
    /// The digest of the commit before.
    pub(crate) previous_digest: [u8; 32],
}

/// A page in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournaledPage {
    pub(crate) object: u64,
    pub(crate) page: u64,
    /// The page number in the journal file.
    pub(crate) place: u32,
    pub(crate) sequence: u64,
    pub(crate) tag: [u8; TAG],
}

/// An object number with a number of pages.
pub(crate) type ObjectPages = (u64, u64);

/// The state after a commit, whatever came before: part of every record and superblock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommitState {
    /// The machine that made the commit.
    pub(crate) machine: [u8; 16],
    /// The time, in seconds since 1970.
    pub(crate) time: u64,
    /// The first unused object number.
    pub(crate) next_object: u64,
    /// The first object number that may not be given before the next commit.
    pub(crate) object_limit: u64,
    /// Last commits of all machines before this one.
    pub(crate) table: Vec<Commit>,
    /// Objects that may be appended to in place until the next commit, with their numbers of pages.
    pub(crate) appendable: Vec<ObjectPages>,
}

/// The changes of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordChanges {
    /// Objects that were truncated, with their new lengths. Pages past the cut that this record
    /// lists were journaled after it.
    pub(crate) cuts: Vec<ObjectPages>,
    pub(crate) removals: Vec<u64>,
    pub(crate) pages: Vec<JournaledPage>,
    /// With a root, the commit begins a checkpoint: the next record lies at the start of the other
    /// journal file.
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) puts: Vec<u8>,
}

/// Appends numbers in little-endian.
struct FieldWriter(Vec<u8>);

impl FieldWriter {
    fn u32(&mut self, number: usize) {
        self.0.extend(u32::try_from(number).expect("lists in commits are short").to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn pairs(&mut self, pairs: &[ObjectPages]) {
        for (object, pages) in pairs {
            self.u64(*object);
            self.u64(*pages);
        }
    }
}

/// Takes numbers off the front. `None` if there are too few bytes.
pub(crate) struct FieldReader<'b>(pub(crate) &'b [u8]);

impl<'b> FieldReader<'b> {
    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The length of a list with elements of `size` bytes: never more than the remaining bytes can
    /// hold.
    fn count(&mut self, size: usize) -> Option<usize> {
        let count = self.u32()? as usize;
        (count.checked_mul(size)? <= self.0.len()).then_some(count)
    }

    fn list<T>(&mut self, size: usize, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.count(size)?;
        (0..count).map(|_| one(self)).collect()
    }

    fn pair(&mut self) -> Option<ObjectPages> {
        Some((self.u64()?, self.u64()?))
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = self.count(1)?;
        self.take(len).map(<[u8]>::to_vec)
    }
}

fn put_state(out: &mut FieldWriter, facts: &CommitState) {
    out.0.extend(facts.machine);
    out.u64(facts.time);
    out.u64(facts.next_object);
    out.u64(facts.object_limit);
    out.u32(facts.table.len());
    for commit in &facts.table {
        out.0.extend(commit.machine);
        out.u64(commit.number);
        out.0.extend(commit.digest);
        out.0.extend(commit.previous_digest);
    }
    out.u32(facts.appendable.len());
    out.pairs(&facts.appendable);
}

fn take_state(from: &mut FieldReader<'_>) -> Option<CommitState> {
    let facts = CommitState {
        machine: from.array()?,
        time: from.u64()?,
        next_object: from.u64()?,
        object_limit: from.u64()?,
        table: from.list(88, |from| {
            let (machine, number) = (from.array()?, from.u64()?);
            Some(Commit { machine, number, digest: from.array()?, previous_digest: from.array()? })
        })?,
        appendable: from.list(16, FieldReader::pair)?,
    };
    are_bounded(&facts).then_some(facts)
}

/// The bounds of the fields of a commit.
fn are_bounded(facts: &CommitState) -> bool {
    let short = facts.table.len() <= MACHINES && facts.appendable.len() <= APPENDABLE;
    let given = facts.object_limit.checked_sub(facts.next_object).is_some_and(|given| given <= MOST_NUMBERS);
    let numbered = facts.object_limit <= MOST_NUMBER
        && facts.table.iter().all(|commit| commit.number <= MOST_NUMBER)
        && facts.appendable.iter().all(|object| is_object(facts, *object));
    short && given && numbered
}

/// Whether a commit with this number can be read again. No other may be sealed: every reader would
/// refuse it.
pub(crate) fn is_readable(number: u64, facts: &CommitState, changes: &RecordChanges) -> bool {
    let root_fits = changes.root.as_ref().is_none_or(|root| root.len() <= ROOT_MAX);
    number <= MOST_NUMBER && are_bounded(facts) && root_fits && are_objects(facts, changes)
}

/// Whether an object was given and may have this number of pages.
fn is_object(facts: &CommitState, (object, pages): ObjectPages) -> bool {
    object < facts.next_object && pages < MOST_PAGES
}

/// The text of a record before it is sealed.
pub(crate) fn record_to_bytes(facts: &CommitState, changes: &RecordChanges) -> Vec<u8> {
    let mut out = FieldWriter(Vec::with_capacity(256 + 48 * changes.pages.len() + changes.puts.len()));
    put_state(&mut out, facts);
    out.u32(changes.cuts.len());
    out.pairs(&changes.cuts);
    out.u32(changes.removals.len());
    changes.removals.iter().for_each(|object| out.u64(*object));
    out.u32(changes.pages.len());
    for page in &changes.pages {
        out.u64(page.object);
        out.u64(page.page);
        out.0.extend(page.place.to_le_bytes());
        out.u64(page.sequence);
        out.0.extend(page.tag);
    }
    out.u32(usize::from(changes.root.is_some()));
    let root = changes.root.as_deref().unwrap_or_default();
    out.u32(root.len());
    out.0.extend(root);
    out.u32(changes.puts.len());
    out.0.extend(&changes.puts);
    out.0
}

/// Parses the output of [`record_to_bytes`].
pub(crate) fn record_from_bytes(bytes: &[u8]) -> Result<(CommitState, RecordChanges)> {
    let parse = || {
        let mut from = FieldReader(bytes);
        let facts = take_state(&mut from)?;
        let mut changes = RecordChanges {
            cuts: from.list(16, FieldReader::pair)?,
            removals: from.list(8, FieldReader::u64)?,
            pages: from.list(44, |from| {
                let (object, page) = from.pair()?;
                Some(JournaledPage {
                    object,
                    page,
                    place: from.u32()?,
                    sequence: from.u64()?,
                    tag: from.array()?,
                })
            })?,
            ..RecordChanges::default()
        };
        let checkpoint = from.u32()?;
        let root = from.bytes()?;
        let no_stray = checkpoint == 1 || root.is_empty();
        changes.root = (checkpoint == 1).then_some(root);
        changes.puts = from.bytes()?;
        let good = from.0.is_empty() && checkpoint <= 1 && no_stray;
        (good && is_readable(0, &facts, &changes)).then_some((facts, changes))
    };
    parse().ok_or_else(|| malformed("a record in the journal"))
}

/// Whether all changed objects were given.
fn are_objects(facts: &CommitState, changes: &RecordChanges) -> bool {
    changes.cuts.iter().all(|cut| is_object(facts, *cut))
        && changes.removals.iter().all(|object| *object < facts.next_object)
        && changes.pages.iter().all(|page| is_object(facts, (page.object, page.page)))
}

/// The text of a superblock before it is sealed: a commit, the state after it, the root, and the
/// active journal file.
pub(crate) fn super_to_bytes(commit: &Commit, facts: &CommitState, root: Option<&[u8]>, area: u8) -> Vec<u8> {
    let mut out = FieldWriter(Vec::with_capacity(1024));
    out.u64(commit.number);
    out.0.extend(commit.digest);
    out.0.extend(commit.previous_digest);
    out.u32(usize::from(area));
    put_state(&mut out, facts);
    out.u32(usize::from(root.is_some()));
    let root = root.unwrap_or_default();
    out.u32(root.len());
    out.0.extend(root);
    out.0
}

/// The content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) commit: Commit,
    pub(crate) state: CommitState,
    pub(crate) root: Option<Vec<u8>>,
    /// The journal file with the next record.
    pub(crate) area: u8,
}

/// Parses the output of [`super_to_bytes`].
pub(crate) fn super_from_bytes(bytes: &[u8]) -> Result<Superblock> {
    let parse = || {
        let mut from = FieldReader(bytes);
        let (number, digest, before) = (from.u64()?, from.array()?, from.array()?);
        let area = from.u32()?;
        let facts = take_state(&mut from)?;
        let has_root = from.u32()?;
        let root = from.bytes()?;
        let commit = Commit { machine: facts.machine, number, digest, previous_digest: before };
        let fits = number <= MOST_NUMBER && root.len() <= ROOT_MAX && (has_root == 1 || root.is_empty());
        let good = from.0.is_empty() && has_root <= 1 && area <= 1 && fits;
        let root = (has_root == 1).then_some(root);
        good.then_some(Superblock { commit, state: facts, root, area: area as u8 })
    };
    parse().ok_or_else(|| malformed("the superblock"))
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
