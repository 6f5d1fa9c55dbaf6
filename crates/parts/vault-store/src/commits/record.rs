//! Records: the commits in the journal, each sealed and chained to the one before.

use crate::commits::codec::{Commit, CommitState, MOST_NUMBER, RecordChanges, record_from_bytes};
use crate::ids::PAGE;
use crate::journal::Journal;
use crate::journal::size::JournalPlace;
use crate::keys::{HEDGE, StoreKeys, TAG, nonce_of_record};
use lacuna_contracts::{Error, Kind, LeReader, LeWriter, Result};
use std::sync::Arc;

/// Bytes before the sealed part: the header and its tag.
pub(crate) const HEADER: usize = 96;

const MAGIC: &[u8; 8] = b"lacunarc";

/// The offset of a part of the nonce, which depends on the fields between the magic and it.
const HEDGE_AT: usize = 68;

/// The offset of the header's tag.
const HEADER_TAG: usize = HEADER - TAG;

/// Pages per read of a scan.
const AT_ONCE: usize = 64;

/// The number of pages of a record with `plain` bytes of text.
pub(crate) fn pages_of(plain: usize) -> u64 {
    (HEADER + plain + TAG).div_ceil(PAGE) as u64
}

/// A record that was read.
pub(crate) struct FoundRecord {
    pub(crate) commit: Commit,
    pub(crate) state: CommitState,
    pub(crate) changes: RecordChanges,
    /// The first page after it.
    pub(crate) end: u64,
}

/// The records of the journal: seals, writes, finds and reads them.
pub(crate) struct RecordLog {
    keys: Arc<StoreKeys>,
    journal: Arc<Journal>,
}

impl RecordLog {
    /// The records of this journal, under these keys.
    pub(crate) fn new(keys: Arc<StoreKeys>, journal: Arc<Journal>) -> RecordLog {
        RecordLog { keys, journal }
    }

    /// Takes pages of the journal for a record with `plain_len` bytes of text. With `probes`, asks
    /// the host for their space now ([`Journal::take_record`]).
    pub(crate) fn take(&self, plain_len: usize, probes: bool) -> Result<JournalPlace> {
        self.journal.take_record(pages_of(plain_len), probes)
    }

    /// A record, ready to be written at `place`, and its digest. `previous` is the digest of the
    /// record before.
    pub(crate) fn seal(
        &self,
        session: u64,
        place: JournalPlace,
        number: u64,
        previous: &[u8; 32],
        plain: &[u8],
    ) -> Result<(Vec<u8>, [u8; 32])> {
        let mut bytes = vec![0; HEADER];
        LeWriter(&mut bytes)
            .put(0, MAGIC)
            .u64(8, number)
            .u64(16, session)
            .put(24, previous)
            .u32(56, place.page)
            .u32(60, (plain.len() + TAG) as u32)
            .u32(64, u32::from(place.area));
        let hedge = self.keys.hedge_of_record(&bytes[MAGIC.len()..HEDGE_AT], plain);
        LeWriter(&mut bytes).put(HEDGE_AT, &hedge);
        let tag = self.keys.header_tag(&bytes[..HEADER_TAG]);
        LeWriter(&mut bytes).put(HEADER_TAG, &tag);
        let sealed = self.keys.seal(&nonce_of_record(session, number, &hedge), &bytes, plain)?;
        let digest = self.keys.digest(&bytes, &sealed);
        bytes.extend(sealed);
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
        Ok((bytes, digest))
    }

    /// Writes a sealed record to its place, and returns when it is durable.
    pub(crate) fn write(&self, place: JournalPlace, bytes: &[u8]) -> Result<()> {
        self.journal.write_record(place, bytes)?;
        self.journal.sync(place.area)
    }

    /// The record that follows `last`, searched in a journal file starting at page `tail`: its
    /// journaled pages lie before it. Pages that the system cannot read are skipped, and
    /// `read_error` gets the last error.
    pub(crate) fn find(
        &self,
        area: u8,
        mut tail: u64,
        last: &Commit,
        read_error: &mut Option<Error>,
    ) -> Result<Option<FoundRecord>> {
        let pages = self.journal.pages_in(area);
        let mut look = vec![0; AT_ONCE * PAGE];
        while tail < pages {
            let count = (pages - tail).min(AT_ONCE as u64);
            let look = &mut look[..count as usize * PAGE];
            self.read_pages(JournalPlace { area, page: tail as u32 }, look, read_error)?;
            for (page, bytes) in (tail..).zip(look.chunks_exact(PAGE)) {
                let place = JournalPlace { area, page: page as u32 };
                if let Some(header) = RecordHeader::following(&self.keys, bytes, place, last)
                    && let Some(found) = self.read(place, &header, read_error)?
                {
                    return Ok(Some(found));
                }
            }
            tail += count;
        }
        Ok(None)
    }

    /// The records of a journal file with higher numbers than `than`, whatever they follow. Damaged
    /// parts of the journal lie before them.
    pub(crate) fn find_unreachable(&self, area: u8, than: u64) -> Result<Vec<FoundRecord>> {
        let (mut found, mut page, mut read_error) = (Vec::new(), vec![0; PAGE], None);
        for at in 0..self.journal.pages_in(area) {
            let place = JournalPlace { area, page: at as u32 };
            self.read_pages(place, &mut page, &mut read_error)?;
            let header = RecordHeader::verified(&self.keys, &page, place);
            if let Some(header) = header.filter(|header| header.number > than) {
                found.extend(self.read(place, &header, &mut read_error)?);
            }
        }
        Ok(found)
    }

    /// Whether the journal has every page that a record lists, unaltered. A page that the system
    /// cannot read is missing, and `read_error` gets the error.
    pub(crate) fn is_whole(
        &self,
        area: u8,
        found: &FoundRecord,
        read_error: &mut Option<Error>,
    ) -> Result<bool> {
        let mut page = vec![0; PAGE];
        for listed in &found.changes.pages {
            self.read_pages(JournalPlace { area, page: listed.place }, &mut page, read_error)?;
            if !self.keys.verify_page(listed.sequence, &page, &listed.tag) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads pages of the journal. Pages that the system cannot read become zeros, and `read_error`
    /// gets the last error.
    fn read_pages(&self, place: JournalPlace, out: &mut [u8], read_error: &mut Option<Error>) -> Result<()> {
        match self.journal.read(place, out) {
            Err(e) if e.kind() == Kind::Io => {}
            done => return done,
        }
        for (nth, page) in (0..).zip(out.chunks_mut(PAGE)) {
            match self.journal.read(JournalPlace { page: place.page + nth, ..place }, page) {
                Err(e) if e.kind() == Kind::Io => {
                    page.fill(0);
                    *read_error = Some(e);
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Reads the record with this header; `None` if the rest of it is torn. The folder may return
    /// other bytes in this read than in the first, so the header is verified again.
    fn read(
        &self,
        place: JournalPlace,
        expected: &RecordHeader,
        read_error: &mut Option<Error>,
    ) -> Result<Option<FoundRecord>> {
        let end = u64::from(place.page) + (HEADER + expected.sealed).div_ceil(PAGE) as u64;
        if end > self.journal.pages_in(place.area) {
            return Ok(None);
        }
        let mut bytes = vec![0; HEADER + expected.sealed];
        self.read_pages(place, &mut bytes, read_error)?;
        let header = RecordHeader::verified(&self.keys, &bytes, place).filter(|header| header == expected);
        let Some(RecordHeader { number, session, previous_digest: before, hedge, .. }) = header else {
            return Ok(None);
        };
        let (header, sealed) = bytes.split_at(HEADER);
        let nonce = nonce_of_record(session, number, &hedge);
        let Some(plain) = self.keys.open(&nonce, header, sealed)? else { return Ok(None) };
        let (facts, changes) = record_from_bytes(&plain)?;
        let digest = self.keys.digest(header, sealed);
        let commit = Commit { machine: facts.machine, number, digest, previous_digest: before };
        Ok(Some(FoundRecord { commit, state: facts, changes, end }))
    }
}

/// The verified header of a record.
#[derive(PartialEq, Eq)]
struct RecordHeader {
    number: u64,
    session: u64,
    /// The digest of the commit that it follows.
    previous_digest: [u8; 32],
    /// Bytes of the sealed part.
    sealed: usize,
    hedge: [u8; HEDGE],
}

impl RecordHeader {
    /// The header at the start of these bytes, if it is of the record at this place and follows
    /// `last`.
    fn following(keys: &StoreKeys, bytes: &[u8], place: JournalPlace, last: &Commit) -> Option<RecordHeader> {
        let header = LeReader(bytes);
        let follows = header.u64(8) > last.number && header.array(24) == last.digest;
        if follows { RecordHeader::verified(keys, bytes, place) } else { None }
    }

    /// The header at the start of these bytes, if it is of the record at this place.
    fn verified(keys: &StoreKeys, bytes: &[u8], place: JournalPlace) -> Option<RecordHeader> {
        let header = LeReader(bytes);
        let (number, before) = (header.u64(8), header.array(24));
        let good = header.array::<8>(0) == *MAGIC
            && number <= MOST_NUMBER
            && header.u32(56) == place.page
            && header.u32(64) == u32::from(place.area)
            && keys.verify_header(&bytes[..HEADER_TAG], &bytes[HEADER_TAG..HEADER]);
        let (session, sealed, hedge) = (header.u64(16), header.u32(60) as usize, header.array(HEDGE_AT));
        good.then_some(RecordHeader { number, session, previous_digest: before, sealed, hedge })
    }
}
