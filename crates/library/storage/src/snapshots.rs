//! States of a disk in RADOS that are kept.
//!
//! What changes the disk or its books is done by the one client that holds the disk, so that
//! nobody's caches are left behind: open it and use
//! [`OpenDisk::snapshots`](crate::OpenDisk::snapshots). Listing reads what anyone who can read the
//! pool may know.

use crate::backing::rados::{snapshot, snapshots};
use crate::backing::{Connection, Site, refuse_snapshot};
use crate::rados::ClusterOptions;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::Location;
use lacuna_sealed_objects::ObjectDisk;
pub use lacuna_sealed_objects::{SnapshotRecord, SnapshotState};

/// An open disk that keeps snapshots.
pub trait Snapshots {
    /// Keeps the state that the disk has now under a name. Errors: [`Kind::Exists`] if there is one
    /// of this name.
    fn create_snapshot(&self, name: &str) -> Result<()>;

    /// Forgets the state of this name. Errors: [`Kind::NotFound`] if there is none.
    fn remove_snapshot(&self, name: &str) -> Result<()>;

    /// Makes the disk read as it did at the snapshot of this name, which stays. Errors:
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

/// The snapshots of a disk, from the oldest on. Errors: [`Kind::Usage`] for a path or a snapshot,
/// [`Kind::NotFound`], and what the cluster reports.
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

fn connect(location: &Location, cluster: &ClusterOptions) -> Result<Connection> {
    refuse_snapshot(location, "look for snapshots of")?;
    match Site::of(location, cluster) {
        Site::Pool(target) => Connection::open(&target),
        Site::File(_) | Site::Flash(_) => Err(not_in_rados(location)),
    }
}

/// The refusal of a path, which keeps no snapshots.
pub fn not_in_rados(location: &Location) -> Error {
    Error::new(Kind::Usage, format!("{location} keeps no snapshots"))
        .found("the path of a file or block device")
        .expected("a location rados:POOL/NAME")
        .remedy("close the disk, and copy the file or use the snapshots of its file system")
}
