//! Resolves a location, and holds or examines the disk there.

use crate::backing::file::FileLocation;
use crate::backing::flash::FlashLocation;
use crate::backing::held_disk::{Backing, BackingKind, HeldDisk, ProbedDisk};
use crate::backing::rados::{PoolConnection, PoolLocation};
use crate::foreign;
use crate::observer::Observer;
use crate::opening::close_marks::{CloseMarks, forget_cached_header};
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
pub enum ResolvedLocation<'l> {
    /// A file or block device; for a vault, the file with its header.
    File(FileLocation<'l>),
    /// Flash.
    Flash(FlashLocation<'l>),
    /// A disk in RADOS.
    Pool(PoolLocation),
}

/// The medium of a header, and in a pool the connection that holds it.
type HeldHeaderMedium = (Arc<dyn Medium>, Option<Arc<PoolConnection>>);

impl<'l> ResolvedLocation<'l> {
    /// Resolves a location.
    pub fn of(location: &'l Location, cluster: &ClusterOptions) -> Self {
        match location {
            Location::Path(path) => ResolvedLocation::File(FileLocation::of(path)),
            Location::Nand(path) => ResolvedLocation::Flash(FlashLocation::Nand(path)),
            Location::Ubi(path) => ResolvedLocation::Flash(FlashLocation::Ubi(path)),
            Location::Rados { pool, name, snapshot } => ResolvedLocation::Pool(PoolLocation {
                pool: pool.clone(),
                name: name.clone(),
                snapshot: snapshot.clone(),
                options: cluster.clone(),
                display_name: location.to_string(),
            }),
        }
    }

    /// The backing of a new disk there.
    pub(crate) fn storage_kind(&self) -> BackingKind {
        match self {
            ResolvedLocation::File(_) => BackingKind::File,
            ResolvedLocation::Flash(_) => BackingKind::Flash,
            ResolvedLocation::Pool(_) => BackingKind::Pool,
        }
    }

    /// The disk in RADOS, if it is one.
    pub fn pool_location(&self) -> Option<&PoolLocation> {
        match self {
            ResolvedLocation::File(_) | ResolvedLocation::Flash(_) => None,
            ResolvedLocation::Pool(target) => Some(target),
        }
    }

    /// Examines the disk without holding it.
    pub(crate) fn probe(&self) -> Result<ProbedDisk> {
        match self {
            ResolvedLocation::File(place) => {
                let look = place.probe()?;
                Ok(ProbedDisk {
                    used: look.used,
                    in_use: look.in_use,
                    backing: Backing::File(Arc::new(look)),
                })
            }
            ResolvedLocation::Flash(place) => place.probe(),
            ResolvedLocation::Pool(target) => {
                let backing = Backing::Pool(Arc::new(PoolConnection::connect(target)?));
                Ok(ProbedDisk { backing, used: None, in_use: false })
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
    fn resolve(self) -> ResolvedLocation<'d> {
        ResolvedLocation::of(self.location, &self.pool_access.cluster)
    }

    /// Holds the disk. `marks`: where it may be marked as one that was closed well; the cached
    /// pages of its file can then stay.
    pub(crate) fn hold(
        self,
        access: Access,
        marks: Option<&CloseMarks>,
        observer: &dyn Observer,
    ) -> Result<HeldDisk> {
        match self.resolve() {
            ResolvedLocation::File(place) => {
                let medium = place.hold(access)?;
                // After a failed sync the system's cache may hold a header that the medium does not
                // have.
                forget_cached_header(&medium, marks)?;
                if access == Access::Write {
                    foreign::refuse(&medium).map_err(|e| e.context(self.location))?;
                }
                let (on_device, touches) = (medium.is_device(), medium.updates_access_time());
                let file = Some(medium.path_only()?);
                let header: Arc<dyn Medium> = Arc::new(medium);
                let backing = Some(Backing::File(Arc::clone(&header)));
                Ok(HeldDisk { header, backing, file, on_device, updates_atime: touches })
            }
            ResolvedLocation::Flash(place) => place.hold(access),
            ResolvedLocation::Pool(target) => {
                // The passphrase must open the header before the disk is taken from another client.
                let (connection, header) = PoolConnection::connect_existing(&target, self.location)?;
                if !self.pool_access.steal {
                    connection.take_lock(false, observer)?;
                }
                let backing = Some(Backing::Pool(connection));
                Ok(HeldDisk { header, backing, file: None, on_device: false, updates_atime: false })
            }
        }
    }

    /// Holds a possibly damaged disk, for reading.
    pub(crate) fn hold_to_rescue(self, observer: &dyn Observer) -> Result<HeldDisk> {
        match self.resolve() {
            ResolvedLocation::Flash(place) => place.hold_to_rescue(),
            ResolvedLocation::File(_) | ResolvedLocation::Pool(_) => self.hold(Access::Read, None, observer),
        }
    }

    /// Holds the medium of a possibly damaged header, for writing.
    pub(crate) fn hold_header(self, observer: &dyn Observer) -> Result<HeldHeaderMedium> {
        match self.resolve() {
            ResolvedLocation::File(place) => {
                let medium = place.hold(Access::Write)?;
                medium.forget_cached()?;
                Ok((Arc::new(medium), None))
            }
            ResolvedLocation::Flash(place) => Ok((place.hold(Access::Write)?.header, None)),
            ResolvedLocation::Pool(target) => {
                let connection = Arc::new(PoolConnection::connect(&target)?);
                connection.take_lock(self.pool_access.steal, observer)?;
                Ok((connection.header_to_repair()?, Some(connection)))
            }
        }
    }
}
