//! What can be seen of the medium of a disk or vault that may be damaged, without a passphrase and without taking hold of it.
//!
//! [`about`](crate::about) fails where a header cannot be read. This says of each copy what is there.

use crate::cluster::{Connection, Site};
use crate::parameters::Parameters;
use crate::rados::ClusterOptions;
use lacuna_core::Result;
use lacuna_flash::HeaderMedium;
use lacuna_header::{Diagnosis, Location};
use lacuna_medium::Medium;

/// What was seen.
pub struct Examination {
    /// The copies of the header.
    pub header: Diagnosis,
    /// What the header says of the disk, or why that cannot be; none where no copy is whole.
    pub parameters: Option<Result<Parameters>>,
    /// Length of the medium in bytes; of a pool and of flash that of the part that holds the header.
    pub len: u64,
    /// Bytes that a file takes on its file system.
    pub used: Option<u64>,
    /// Whether another process holds it.
    pub in_use: bool,
}

impl Examination {
    /// How long the medium is at least, with the disk and all copies of its header; none where the header cannot be read.
    pub fn needed(&self) -> Option<u64> {
        Some(self.parameters.as_ref()?.as_ref().ok()?.medium_len())
    }

    /// Whether a file is longer than its disk makes it: it has grown since the header was written, or somebody made it longer.
    pub fn is_longer(&self) -> bool {
        let flat = matches!(&self.parameters, Some(Ok(Parameters::Flat(_))));
        flat && self.used.is_some() && self.needed().is_some_and(|needed| self.len > needed)
    }
}

/// Looks at what is at a location. Errors: those of reaching it at all.
pub fn examine(location: &Location, cluster: &ClusterOptions) -> Result<Examination> {
    match Site::of(location, cluster) {
        Site::File(place) => {
            let look = place.look()?;
            Ok(seen(location, &look, look.used, look.in_use))
        }
        Site::Flash(place) => {
            let look = place.look()?;
            Ok(seen(location, &HeaderMedium::new(look.flash.clone()), look.used, look.in_use))
        }
        Site::Pool(target) => {
            let connection = Connection::open(&target)?;
            Ok(seen(location, &*connection.header()?, None, false))
        }
    }
}

fn seen(location: &Location, medium: &dyn Medium, used: Option<u64>, in_use: bool) -> Examination {
    let header = Diagnosis::of(medium.len(), &|offset, buf| medium.read_at(offset, buf));
    let parameters = header.header.as_ref().map(|header| Parameters::of(header, location));
    Examination { header, parameters, len: medium.len(), used, in_use }
}
