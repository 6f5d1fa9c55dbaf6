//! Snapshots of a disk in RADOS.
//!
//! Only the one client that holds the disk changes the disk or its book, so that no client's caches
//! become stale: open it and use [`OpenDisk::snapshots`](crate::OpenDisk::snapshots). Listing needs
//! no key: every reader of the pool may see the list.

use crate::backing::rados::{snapshot, snapshots};
use crate::backing::{PoolConnection, ResolvedLocation, refuse_snapshot};
use crate::rados::ClusterOptions;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::Location;
use lacuna_sealed_objects::ObjectDisk;
pub use lacuna_sealed_objects::{SnapshotRecord, SnapshotState};

/// An open disk with snapshots.
pub trait Snapshots {
    /// Makes a snapshot of the disk's present state. Errors: [`Kind::Exists`] if the name is in
    /// use.
    fn create_snapshot(&self, name: &str) -> Result<()>;

    /// Removes the snapshot of this name. Errors: [`Kind::NotFound`] if there is none.
    fn remove_snapshot(&self, name: &str) -> Result<()>;

    /// Rolls the disk back to the snapshot of this name; the snapshot stays. Errors:
    /// [`Kind::NotFound`] if there is none.
    fn rollback(&self, name: &str) -> Result<()>;
}

impl Snapshots for ObjectDisk {
    fn create_snapshot(&self, name: &str) -> Result<()> {
        ObjectDisk::create_snapshot(self, name)
    }

    fn remove_snapshot(&self, name: &str) -> Result<()> {
        ObjectDisk::remove_snapshot(self, name)
    }

    fn rollback(&self, name: &str) -> Result<()> {
        ObjectDisk::rollback(self, name)
    }
}

/// The snapshots of a disk, oldest first. Errors: [`Kind::Usage`] for a path or a snapshot,
/// [`Kind::NotFound`], and all errors of the cluster.
pub fn list(location: &Location, cluster: &ClusterOptions) -> Result<Vec<SnapshotRecord>> {
    let connection = connect(location, cluster)?;
    let naming = |e: Error| e.context(location);
    let (header, _) = lacuna_header::read_public(&*connection.header()?).map_err(naming)?;
    snapshots(&connection, header.uuid).map_err(naming)
}

/// The snapshot of this name. Errors: those of [`list`], and [`Kind::NotFound`] if there is none.
pub fn find(location: &Location, cluster: &ClusterOptions, name: &str) -> Result<SnapshotRecord> {
    let connection = connect(location, cluster)?;
    let found = lacuna_header::read_public(&*connection.header()?)
        .and_then(|(header, _)| snapshot(&connection, header.uuid, name));
    found.map_err(|e| e.context(location))
}

fn connect(location: &Location, cluster: &ClusterOptions) -> Result<PoolConnection> {
    refuse_snapshot(location, "look for snapshots of")?;
    match ResolvedLocation::of(location, cluster) {
        ResolvedLocation::Pool(target) => PoolConnection::connect(&target),
        ResolvedLocation::File(_) | ResolvedLocation::Flash(_) => Err(not_in_rados(location)),
    }
}

/// The error for a path: files and devices have no snapshots.
pub fn not_in_rados(location: &Location) -> Error {
    Error::new(Kind::Usage, format!("{location} keeps no snapshots"))
        .found("the path of a file or block device")
        .expected("a location rados:POOL/NAME")
        .hint("close the disk, and copy the file or use the snapshots of its file system")
}
