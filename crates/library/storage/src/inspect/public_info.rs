//! Public information about a disk, without a passphrase. It takes no lock, so a disk can be
//! examined while it is served.

use crate::backing::rados::{data_prefix, snapshot, snapshots};
use crate::backing::{Backing, ResolvedLocation};
use crate::foreign;
use crate::format::Params;
use crate::formats::table;
use crate::header::copy_remedy::CopyRemedy;
use crate::inspect::examine::remedy_for;
use crate::rados::ClusterOptions;
use lacuna_contracts::{Error, Result};
use lacuna_header::{Location, PublicHeader};
use lacuna_nand::FlashGeometry;

/// The public information about a disk.
pub struct PublicInfo {
    /// The public part of the header.
    pub header: PublicHeader,
    /// The parameters of the disk; of a snapshot, those of the disk as it was then.
    pub parameters: Box<dyn Params>,
    /// Warnings about the copies of the header, as sentences.
    pub notes: Vec<String>,
    /// The way back to whole copies, for each of these warnings.
    pub copy_remedy: CopyRemedy,
    /// The medium of the disk.
    pub medium: MediumInfo,
}

/// The public information about the medium of a disk.
pub enum MediumInfo {
    /// A file or block device, as the system sees it.
    File {
        /// Length in bytes.
        len: u64,
        /// Allocated bytes of a file on its file system.
        used: Option<u64>,
        /// Whether another process holds it.
        in_use: bool,
    },
    /// Flash.
    Flash {
        /// Its erase blocks and pages.
        geometry: FlashGeometry,
        /// Allocated bytes of a simulated chip's file on its file system.
        used: Option<u64>,
        /// Whether another process writes to it.
        in_use: bool,
    },
    /// A pool.
    Pool {
        /// The namespace in the pool, if any.
        namespace: Option<String>,
        /// The prefix of its data objects.
        objects: String,
        /// The names of its snapshots, oldest first.
        snapshots: Vec<String>,
    },
}

/// The public information about a disk, or a snapshot of one. Nothing of it is authenticated.
pub fn public_info(location: &Location, cluster: &ClusterOptions) -> Result<PublicInfo> {
    let seen = ResolvedLocation::of(location, cluster).probe()?;
    let naming = |e: Error| e.context(location);
    let on_medium = seen.backing.header()?;
    let (header, notes) = lacuna_header::read_public(&*on_medium)
        .map_err(|e| naming(foreign::named_in(e, &*on_medium, location)))?;
    let copy_remedy = remedy_for(&notes, &*on_medium, location);
    let mut parameters = table::parse(&header, location).map_err(naming)?;
    let (used, in_use) = (seen.used, seen.in_use);
    let medium = match &seen.backing {
        Backing::File(medium) => MediumInfo::File { len: medium.len(), used, in_use },
        Backing::Flash(flash) => MediumInfo::Flash { geometry: flash.geometry(), used, in_use },
        Backing::Pool(connection) => {
            let target = connection.location();
            if let Some(name) = target.snapshot() {
                let then = snapshot(connection, header.uuid, name).map_err(naming)?;
                parameters = parameters.resized_to(then.blocks);
            }
            let snapshots = snapshots(connection, header.uuid).map_err(naming)?;
            MediumInfo::Pool {
                namespace: target.namespace().map(str::to_owned),
                objects: data_prefix(header.uuid),
                snapshots: snapshots.into_iter().map(|snapshot| snapshot.name).collect(),
            }
        }
    };
    Ok(PublicInfo { header, parameters, notes, copy_remedy, medium })
}
