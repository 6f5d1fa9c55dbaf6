//! Examines the medium of a possibly damaged disk or vault, without a passphrase and without
//! holding it.
//!
//! [`about`](crate::about) fails if a header cannot be read; this function reports the state of
//! each copy.

use crate::backing::Site;
use crate::format::Params;
use crate::formats::table;
use crate::rados::ClusterOptions;
use lacuna_contracts::Result;
use lacuna_header::{Diagnosis, Location};

/// The result of an examination.
pub struct Examination {
    /// The copies of the header.
    pub header: Diagnosis,
    /// The parameters in the header, or the error of parsing them; `None` if no copy is intact.
    pub parameters: Option<Result<Box<dyn Params>>>,
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
    pub fn needed(&self) -> Option<u64> {
        Some(self.parameters.as_ref()?.as_ref().ok()?.medium_len())
    }

    /// Whether a file is longer than its disk needs: it was extended after the header was written.
    pub fn is_longer(&self) -> bool {
        let grows = matches!(&self.parameters, Some(Ok(params)) if params.grows_on_medium());
        grows && self.used.is_some() && self.needed().is_some_and(|needed| self.len > needed)
    }
}

/// Examines the medium at a location. Errors: those of accessing it.
pub fn examine(location: &Location, cluster: &ClusterOptions) -> Result<Examination> {
    let seen = Site::of(location, cluster).look()?;
    let medium = seen.backing.header()?;
    let header = Diagnosis::of(medium.len(), &|offset, buf| medium.read_at(offset, buf));
    let parameters = header.header.as_ref().map(|header| table::parse(header, location));
    Ok(Examination { header, parameters, len: medium.len(), used: seen.used, in_use: seen.in_use })
}
