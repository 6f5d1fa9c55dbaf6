//! What can be seen of the medium of a disk or vault that may be damaged, without a passphrase and
//! without taking hold of it.
//!
//! [`about`](crate::about) fails where a header cannot be read. This says of each copy what is
//! there.

use crate::backing::Site;
use crate::format::Params;
use crate::formats::table;
use crate::rados::ClusterOptions;
use lacuna_contracts::Result;
use lacuna_header::{Diagnosis, Location};

/// What was seen.
pub struct Examination {
    /// The copies of the header.
    pub header: Diagnosis,
    /// What the header says of the disk, or why that cannot be; none where no copy is whole.
    pub parameters: Option<Result<Box<dyn Params>>>,
    /// Length of the medium in bytes; of a pool and of flash that of the part that holds the
    /// header.
    pub len: u64,
    /// Bytes that a file takes on its file system.
    pub used: Option<u64>,
    /// Whether another process holds it.
    pub in_use: bool,
}

impl Examination {
    /// How long the medium is at least, with the disk and all copies of its header; none where the
    /// header cannot be read.
    pub fn needed(&self) -> Option<u64> {
        Some(self.parameters.as_ref()?.as_ref().ok()?.medium_len())
    }

    /// Whether a file is longer than its disk makes it: it has grown since the header was written,
    /// or somebody made it longer.
    pub fn is_longer(&self) -> bool {
        let grows = matches!(&self.parameters, Some(Ok(params)) if params.grows_on_medium());
        grows && self.used.is_some() && self.needed().is_some_and(|needed| self.len > needed)
    }
}

/// Looks at what is at a location. Errors: those of reaching it at all.
pub fn examine(location: &Location, cluster: &ClusterOptions) -> Result<Examination> {
    let seen = Site::of(location, cluster).look()?;
    let medium = seen.backing.header()?;
    let header = Diagnosis::of(medium.len(), &|offset, buf| medium.read_at(offset, buf));
    let parameters = header.header.as_ref().map(|header| table::parse(header, location));
    Ok(Examination { header, parameters, len: medium.len(), used: seen.used, in_use: seen.in_use })
}
