//! Resolves a location, and holds or examines the disk there.

use crate::backing::file::FilePlace;
use crate::backing::flash::FlashPlace;
use crate::backing::held::{Backing, BackingKind, Held, Seen};
use crate::backing::rados::{Connection, Target};
use crate::foreign;
use crate::observer::Observer;
use crate::rados::ClusterOptions;
use lacuna_contracts::Result;
use lacuna_header::Location;
use lacuna_medium::{Access, Medium};
use std::sync::Arc;

/// Access to the cluster of a disk in RADOS, and the handling of another client that holds the
/// disk. Ignored for a path.
#[derive(Clone, Debug, Default)]
pub struct PoolAccess {
    /// The options of the cluster.
    pub cluster: ClusterOptions,
    /// Take over the disk from the client that holds it. That client is fenced and loses unflushed
    /// data.
    pub steal: bool,
}

/// A resolved location.
pub enum Site<'l> {
    /// A file or block device; for a vault, the file with its header.
    File(FilePlace<'l>),
    /// Flash.
    Flash(FlashPlace<'l>),
    /// A disk in RADOS.
    Pool(Target),
}

/// The medium of a header, and in a pool the connection that holds it.
type HeaderAlone = (Arc<dyn Medium>, Option<Arc<Connection>>);

impl<'l> Site<'l> {
    /// Resolves a location.
    pub fn of(location: &'l Location, cluster: &ClusterOptions) -> Self {
        match location {
            Location::Path(path) => Site::File(FilePlace::of(path)),
            Location::Nand(path) => Site::Flash(FlashPlace::Nand(path)),
            Location::Ubi(path) => Site::Flash(FlashPlace::Ubi(path)),
            Location::Rados { pool, name, snapshot } => Site::Pool(Target {
                pool: pool.clone(),
                name: name.clone(),
                snapshot: snapshot.clone(),
                options: cluster.clone(),
                shown: location.to_string(),
            }),
        }
    }

    /// The backing of a new disk there.
    pub(crate) fn kind(&self) -> BackingKind {
        match self {
            Site::File(_) => BackingKind::File,
            Site::Flash(_) => BackingKind::Flash,
            Site::Pool(_) => BackingKind::Pool,
        }
    }

    /// The disk in RADOS, if it is one.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Site::File(_) | Site::Flash(_) => None,
            Site::Pool(target) => Some(target),
        }
    }

    /// Examines the disk without holding it.
    pub(crate) fn look(&self) -> Result<Seen> {
        match self {
            Site::File(place) => {
                let look = place.look()?;
                Ok(Seen { used: look.used, in_use: look.in_use, backing: Backing::File(Arc::new(look)) })
            }
            Site::Flash(place) => place.look(),
            Site::Pool(target) => {
                let backing = Backing::Pool(Arc::new(Connection::open(target)?));
                Ok(Seen { backing, used: None, in_use: false })
            }
        }
    }
}

/// The location of a closed disk, with access options.
#[derive(Clone, Copy)]
pub struct DiskRef<'d> {
    /// The location.
    pub location: &'d Location,
    /// Access options for a pool.
    pub pool_access: &'d PoolAccess,
}

impl<'d> DiskRef<'d> {
    fn site(self) -> Site<'d> {
        Site::of(self.location, &self.pool_access.cluster)
    }

    /// Holds the disk.
    pub(crate) fn hold(self, access: Access, observer: &dyn Observer) -> Result<Held> {
        match self.site() {
            Site::File(place) => {
                let medium = place.open(access)?;
                // After a failed sync the system's cache may hold a header that the medium does not
                // have.
                medium.forget_cached()?;
                if access == Access::Write {
                    foreign::refuse(&medium).map_err(|e| e.context(self.location))?;
                }
                let (on_device, touches) = (medium.is_device(), medium.touches_access_times());
                let file = Some(medium.path_only()?);
                let header: Arc<dyn Medium> = Arc::new(medium);
                let backing = Some(Backing::File(Arc::clone(&header)));
                Ok(Held { header, backing, file, on_device, touches })
            }
            Site::Flash(place) => place.open(access),
            Site::Pool(target) => {
                // The passphrase must open the header before the disk is taken from another client.
                let (connection, header) = Connection::find(&target, self.location)?;
                if !self.pool_access.steal {
                    connection.hold(false, observer)?;
                }
                let backing = Some(Backing::Pool(connection));
                Ok(Held { header, backing, file: None, on_device: false, touches: false })
            }
        }
    }

    /// Holds a possibly damaged disk, for reading.
    pub(crate) fn hold_to_rescue(self, observer: &dyn Observer) -> Result<Held> {
        match self.site() {
            Site::Flash(place) => place.open_to_rescue(),
            Site::File(_) | Site::Pool(_) => self.hold(Access::Read, observer),
        }
    }

    /// Holds the medium of a possibly damaged header, for writing.
    pub(crate) fn hold_header(self, observer: &dyn Observer) -> Result<HeaderAlone> {
        match self.site() {
            Site::File(place) => {
                let medium = place.open(Access::Write)?;
                medium.forget_cached()?;
                Ok((Arc::new(medium), None))
            }
            Site::Flash(place) => Ok((place.open(Access::Write)?.header, None)),
            Site::Pool(target) => {
                let connection = Arc::new(Connection::open(&target)?);
                connection.hold(self.pool_access.steal, observer)?;
                Ok((connection.header_to_mend()?, Some(connection)))
            }
        }
    }
}
