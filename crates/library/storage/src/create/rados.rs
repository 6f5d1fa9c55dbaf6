//! Creates a disk in RADOS, and removes one.
//!
//! A disk exists if its header does. The header is created last, and removed last, so that an
//! interrupted removal can be finished by repeating it. Only a process that is killed during a
//! creation leaves orphaned objects: those of an empty disk.

use crate::backing::rados::remove_all;
use crate::backing::{Backing, PoolAccess, PoolConnection, PoolLocation, ResolvedLocation, refuse_snapshot};
use crate::create::create_context::{
    CreateContext, CreatePrompt, CreatedDisk, describe_disk, master_keys, overwrite_hint,
};
use crate::format::{AvailableSpace, Params};
use crate::observer::{Observer, run_step};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::{Location, NewHeader, PublicHeader, Uuid};
use lacuna_medium::{ObjectStore, SnapshotId};
use lacuna_sealed_objects::list_snapshots;
use std::sync::Arc;

/// Creates the disk.
pub(crate) fn create(
    context: &CreateContext<'_>,
    target: &PoolLocation,
    passphrases: CreatePrompt<'_>,
) -> Result<CreatedDisk> {
    let CreateContext { options, observer } = context;
    refuse_snapshot(&options.location, "create")?;
    let plan = |has_keys| options.shape.format.plan(options, AvailableSpace::Pool { has_keys });
    // Make all checks that do not need the cluster.
    plan(true)?;
    let connection = Arc::new(PoolConnection::connect(target)?);
    let params = plan(connection.has_keys())?;
    if connection.exists()? && !options.force {
        return Err(exists_error(context));
    }
    connection.take_lock(options.pool_access.steal, *observer)?;
    create_under_lock(context, &connection, params, passphrases)
}

/// The disk that a new one replaces, as its header was read once: the question for the consent, the
/// search for copies of the header and the removal rest on the same read.
enum FormerDisk {
    Known(PublicHeader),
    /// Its header does not tell which objects it has.
    Unreadable(Error),
}

impl FormerDisk {
    /// Errors: if its header cannot be read now, and perhaps later.
    fn of(header: Result<PublicHeader>) -> Result<FormerDisk> {
        match header {
            Ok(header) => Ok(FormerDisk::Known(header)),
            Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt) => Ok(FormerDisk::Unreadable(e)),
            Err(e) => Err(e),
        }
    }
}

/// Creates the disk while this client has the lock, in place of an existing one.
fn create_under_lock(
    context: &CreateContext<'_>,
    connection: &Arc<PoolConnection>,
    params: Box<dyn Params>,
    passphrases: CreatePrompt<'_>,
) -> Result<CreatedDisk> {
    let CreateContext { options, observer } = context;
    // Another client may have created a disk before the lock was taken.
    let there = connection.exists()?;
    if there && !options.force {
        return Err(exists_error(context));
    }
    let mut former = None;
    if there {
        let what = format!("cannot create {}", options.location);
        let header = public_header(connection);
        let disk = former.insert(FormerDisk::of(header).map_err(|e| e.context(&what))?);
        let words = match disk {
            FormerDisk::Known(header) => {
                connection.refuse_copied_header(header.uuid, &what)?;
                describe_disk(header)
            }
            FormerDisk::Unreadable(_) => "a disk with an unreadable header".to_owned(),
        };
        observer.confirm_overwrite(&words)?;
    }
    let made = context.build_header(&*params, passphrases).and_then(|header| {
        let created = CreatedDisk::from_header(params, &header);
        let uuid = created.header.uuid;
        if let Some(former) = &former {
            remove_existing(connection, former, context)?;
        }
        let laying = format!("laying out {}", options.location);
        run_step(*observer, &laying, || write_disk(connection, &*created.parameters, header))
            .map_err(|e| e.context(format!("cannot create {}", options.location)))
            .inspect_err(|_| remove_failed(connection, uuid, *observer))?;
        Ok(created)
    });
    if made.is_err() && !there {
        // There was no disk before, so remove everything.
        let _ = connection.remove_lock();
    }
    made
}

fn exists_error(context: &CreateContext<'_>) -> Error {
    context
        .options
        .create_error()
        .with_kind(Kind::Exists)
        .found("a disk that exists already")
        .expected("a name that no disk of the pool and namespace has")
        .hint(overwrite_hint())
}

/// Removes the existing disk.
fn remove_existing(
    connection: &PoolConnection,
    former: &FormerDisk,
    CreateContext { options, observer }: &CreateContext<'_>,
) -> Result<()> {
    match former {
        FormerDisk::Known(header) => remove_objects(connection, header.uuid, *observer)?,
        FormerDisk::Unreadable(e) => observer.note(&format!(
            "{}: the header of the earlier disk does not tell its objects; they stay in the pool ({})",
            options.location,
            e.summary()
        )),
    }
    connection.remove_header()
}

fn public_header(connection: &PoolConnection) -> Result<PublicHeader> {
    Ok(lacuna_header::read_public(&*connection.header()?)?.0)
}

fn uuid_of(connection: &PoolConnection) -> Result<Uuid> {
    public_header(connection).map(|header| header.uuid)
}

/// Creates the disk, with the header last.
fn write_disk(connection: &Arc<PoolConnection>, params: &dyn Params, header: NewHeader) -> Result<()> {
    params.create(&Backing::Pool(connection.clone()), master_keys(header.unlocked()))?;
    header.write(&*connection.create_header()?, |_| Ok(())).map(drop)
}

/// Removes an incomplete disk, and reports remains. It is ours: this process generated its UUID.
fn remove_failed(connection: &PoolConnection, uuid: Uuid, observer: &dyn Observer) {
    // The header was written last, if at all.
    let header = connection.remove_header().err().filter(|e| e.kind() != Kind::NotFound);
    let objects = remove_objects(connection, uuid, observer).err();
    for (what, e) in [("the header", header), ("objects", objects)] {
        if let Some(e) = e {
            observer.note(&format!(
                "{what} of the disk {uuid} that could not be made may stay in the pool: {}",
                e.summary()
            ));
        }
    }
}

/// Removes the snapshots, the data and the book of the disk with this UUID.
pub(crate) fn remove_objects(connection: &PoolConnection, uuid: Uuid, observer: &dyn Observer) -> Result<()> {
    let stores = connection.stores(uuid)?;
    // An interrupted removal may have removed the table; it removed all snapshots before.
    let snapshots = list_snapshots(&*stores.book).or_else(|e| match e.kind() {
        Kind::Corrupt => {
            observer.note(&format!("{}; the snapshots in it stay in the pool", e.summary()));
            Ok(Vec::new())
        }
        _ => Err(e),
    })?;
    for snapshot in snapshots {
        remove_snapshot(&*stores.data, snapshot.data_id)?;
        remove_snapshot(&*stores.book, snapshot.book_id)?;
    }
    remove_all(&*stores.data, |done, of| observer.progress(done, of))?;
    remove_all(&*stores.book, |_, _| {})
}

/// Removes a snapshot from a store, if it is still there.
fn remove_snapshot(store: &dyn ObjectStore, id: SnapshotId) -> Result<()> {
    match store.remove_snapshot(id) {
        Err(e) if e.kind() == Kind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a disk in RADOS with its snapshots and all its data. `agree` is called with its UUID
/// once the disk is found and locked; an error of `agree` stops the removal before anything is
/// removed.
///
/// Errors: [`Kind::Usage`] for a path or a snapshot, or if another name leads to the same data,
/// [`Kind::NotFound`], [`Kind::Busy`] while another client holds it, and all errors of the cluster.
/// An interrupted removal is finished by repeating it.
pub fn delete(
    location: &Location,
    pool_access: &PoolAccess,
    observer: &dyn Observer,
    agree: impl FnOnce(Uuid) -> Result<()>,
) -> Result<()> {
    let what = format!("cannot delete {location}");
    let ResolvedLocation::Pool(target) = ResolvedLocation::of(location, &pool_access.cluster) else {
        return Err(Error::new(Kind::Usage, what)
            .found("the path of a file or block device")
            .expected("a location rados:POOL/NAME")
            .hint("remove a file with rm"));
    };
    refuse_snapshot(location, "delete")?;
    let connection = PoolConnection::connect(&target)?;
    let uuid = uuid_of(&connection).map_err(|e| e.context(&what))?;
    connection.refuse_copied_header(uuid, &what)?;
    connection.take_lock(pool_access.steal, observer)?;
    agree(uuid)?;
    // Check again under the lock: another client may have created a new disk there.
    if uuid_of(&connection)? != uuid {
        return Err(Error::new(Kind::Changed, what)
            .found("another disk of this name, made meanwhile")
            .hint("examine the new disk first"));
    }
    remove_objects(&connection, uuid, observer)?;
    connection.remove_header()?;
    connection.remove_lock()
}

#[cfg(test)]
#[path = "rados_tests.rs"]
mod tests;
