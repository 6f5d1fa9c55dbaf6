//! Examines the medium of a possibly damaged disk or vault, without a passphrase and without
//! holding it.
//!
//! [`public_info`](crate::inspect::public_info) fails if a header cannot be read; this function
//! reports the state of each copy.

use crate::backing::{Backing, ResolvedLocation};
use crate::foreign::{self, Foreign};
use crate::format::Params;
use crate::formats::table;
use crate::header::stale_headers;
use crate::rados::ClusterOptions;
use lacuna_contracts::{Error, Result};
use lacuna_header::{CopyState, Diagnosis, HEADER_LEN, Location, copy_c};
use lacuna_medium::Medium;

/// The result of an examination.
pub struct Examination {
    /// The copies of the header.
    pub header: Diagnosis,
    /// The parameters in the header, or the error of parsing them; `None` if no copy is intact.
    pub parameters: Option<Result<Box<dyn Params>>>,
    /// Content of another program over the first or the last copy of the header; on a medium
    /// without a header, content of another program anywhere. The error is that of a place that
    /// cannot be read.
    pub foreign: Result<Option<Foreign>>,
    /// The place of the last copy of the header, if the medium has grown since it was written: no
    /// copy is at the end, and this one is where the end was.
    pub former_copy: Option<u64>,
    /// Length of the medium in bytes; for a pool or flash, of the part with the header.
    pub len: u64,
    /// Allocated bytes of a file on its file system.
    pub used: Option<u64>,
    /// Whether another process holds it.
    pub in_use: bool,
}

impl Examination {
    /// The least length of the medium, with the disk and all copies of its header; `None` if the
    /// header cannot be read.
    pub fn needed_len(&self) -> Option<u64> {
        Some(self.parameters.as_ref()?.as_ref().ok()?.medium_len())
    }

    /// Whether a file is longer than its disk needs: it was extended after the header was written.
    pub fn is_longer_than_needed(&self) -> bool {
        let grows = matches!(&self.parameters, Some(Ok(params)) if params.grows_on_medium());
        grows && self.used.is_some() && self.needed_len().is_some_and(|needed| self.len > needed)
    }

    /// How far the medium has grown since the last copy of the header was written, in bytes.
    pub fn growth(&self) -> Option<u64> {
        copy_c(self.len)?.checked_sub(self.former_copy?)
    }

    /// Whether it is a file with a backup of a header, as far as its length and its first bytes
    /// tell.
    pub fn is_backup(&self) -> bool {
        self.used.is_some() && self.len == HEADER_LEN as u64 && self.header.has_header()
    }

    /// The error for writing to a disk that another program has written over.
    pub fn written_over(&self) -> Option<Error> {
        match &self.foreign {
            Ok(Some(foreign)) if self.header.has_header() => {
                Some(foreign.refusal(self.header.has_only_last_copy()))
            }
            _ => None,
        }
    }
}

/// Examines the medium at a location. Errors: those of accessing it.
pub fn examine(location: &Location, cluster: &ClusterOptions) -> Result<Examination> {
    let seen = ResolvedLocation::of(location, cluster).probe()?;
    let medium = seen.backing.header()?;
    let header = Diagnosis::of(medium.len(), &|offset, buf| medium.read_at(offset, buf));
    let parameters = header.header.as_ref().map(|header| table::parse(header, location));
    // Elsewhere the medium of the header is lacuna's alone.
    let (foreign, former_copy) = match &seen.backing {
        Backing::File(_) => (foreign::over_copies(&*medium, &header), former_copy(&*medium, &header)),
        Backing::Flash(_) | Backing::Pool(_) => (Ok(None), None),
    };
    let (used, in_use) = (seen.used, seen.in_use);
    Ok(Examination { header, parameters, foreign, former_copy, len: medium.len(), used, in_use })
}

fn former_copy(medium: &dyn Medium, found: &Diagnosis) -> Option<u64> {
    let is_missing = found.copies.last().is_some_and(|last| last.state == CopyState::Missing);
    let header = found.header.as_ref().filter(|_| is_missing)?;
    stale_headers::find_at_end(medium, header).offsets.last().copied()
}
