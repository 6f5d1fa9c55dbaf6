//! What a disk says about itself without a passphrase. It takes no lock, so that a disk can be looked at while it is served.

use crate::cluster::{Connection, Site, Target, data_prefix};
use crate::file_place::FilePlace;
use crate::flash_place::FlashPlace;
use crate::parameters::Parameters;
use crate::rados::ClusterOptions;
use crate::snapshots;
use lacuna_core::{Error, Result};
use lacuna_flash::HeaderMedium;
use lacuna_header::{Location, PublicHeader};
use lacuna_nand::FlashGeometry;

/// What is known of a disk.
pub struct About {
    /// The header, as anybody can read it.
    pub header: PublicHeader,
    /// The parameters of the disk; of a snapshot, those of the disk as it was then.
    pub parameters: Parameters,
    /// What a person should know about the copies of the header: sentences.
    pub notes: Vec<String>,
    /// Where the disk rests.
    pub medium: AboutMedium,
}

/// What is known of where a disk rests.
pub enum AboutMedium {
    /// A file or block device, as the system sees it.
    File {
        /// Length in bytes.
        len: u64,
        /// Bytes that a file takes on its file system.
        used: Option<u64>,
        /// Whether another process holds it.
        in_use: bool,
    },
    /// Flash.
    Flash {
        /// How it is divided.
        geometry: FlashGeometry,
        /// Bytes that the file of a simulated chip takes on its file system.
        used: Option<u64>,
        /// Whether another process writes to it.
        in_use: bool,
    },
    /// A pool.
    Pool {
        /// The namespace in the pool, if any.
        namespace: Option<String>,
        /// The prefix of the objects of its data.
        objects: String,
        /// The names of its snapshots, from the oldest on.
        snapshots: Vec<String>,
    },
}

/// What a disk, or a snapshot of one, says without a passphrase. Nothing of it is authenticated.
pub fn about(location: &Location, cluster: &ClusterOptions) -> Result<About> {
    match Site::of(location, cluster) {
        Site::File(place) => of_file(location, place),
        Site::Flash(place) => on_flash(location, place),
        Site::Pool(target) => in_pool(location, &target),
    }
}

fn of_file(location: &Location, place: FilePlace<'_>) -> Result<About> {
    let look = place.look()?;
    let found = lacuna_header::read_public_with(look.len, &|offset, buf| look.read(offset, buf));
    read(location, found, |_, _| {
        Ok(AboutMedium::File { len: look.len, used: look.used, in_use: look.in_use })
    })
}

fn on_flash(location: &Location, place: FlashPlace<'_>) -> Result<About> {
    let look = place.look()?;
    let found = lacuna_header::read_public(&HeaderMedium::new(look.flash.clone()));
    read(location, found, |_, _| {
        Ok(AboutMedium::Flash { geometry: look.geometry(), used: look.used, in_use: look.in_use })
    })
}

fn in_pool(location: &Location, target: &Target) -> Result<About> {
    let connection = Connection::open(target)?;
    let medium = connection.header()?;
    read(location, lacuna_header::read_public(&*medium), |header, parameters| {
        if let Some(name) = target.snapshot() {
            let then = snapshots::named(&connection, header.uuid, name)?;
            *parameters = parameters.as_of(then.blocks);
        }
        let snapshots = snapshots::over(&connection, header.uuid)?;
        Ok(AboutMedium::Pool {
            namespace: target.namespace().map(str::to_owned),
            objects: data_prefix(header.uuid),
            snapshots: snapshots.into_iter().map(|snapshot| snapshot.name).collect(),
        })
    })
}

fn read(
    location: &Location,
    found: Result<(PublicHeader, Vec<String>)>,
    about_medium: impl FnOnce(&PublicHeader, &mut Parameters) -> Result<AboutMedium>,
) -> Result<About> {
    let naming = |e: Error| e.context(location);
    let (header, notes) = found.map_err(naming)?;
    let mut parameters = Parameters::of(&header, location).map_err(naming)?;
    let medium = about_medium(&header, &mut parameters).map_err(naming)?;
    Ok(About { header, parameters, notes, medium })
}
