//! `create` in RADOS, and `delete`.
//!
//! A disk is there when its header is. The header is made last, and of a disk that goes it is removed last, so
//! that a removal that was cut short can be finished by saying it again. Only a process that is killed while it
//! creates a disk leaves objects that nothing leads to: those of an empty disk.

use crate::args::{CreateArgs, DeleteArgs, Format};
use crate::cluster::{self, Connection, Site, Target};
use crate::console::{self, Console};
use crate::cost::Wanted;
use crate::draft::{blocks, check_layout, draft, no_size};
use crate::parameters::Parameters;
use crate::working;
use lacuna_core::{Error, Kind, Result};
use lacuna_header::{NewHeader, PublicHeader, Uuid};
use lacuna_medium::{ObjectStore, SnapshotId};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, ObjectParams, list_snapshots};

/// Makes the disk.
pub fn run(
    args: &CreateArgs,
    target: &Target,
    wanted: &Wanted,
    console: Console,
) -> Result<(Parameters, PublicHeader)> {
    cluster::refuse_snapshot(&args.location, "create")?;
    check_layout(args, ObjectLayout::SegmentEnd.name())?;
    let size = args.size.ok_or_else(|| no_size(args, "RADOS"))?;
    if args.preallocate {
        return Err(Error::new(Kind::Usage, format!("cannot create {}", args.location))
            .found("--preallocate in a pool, where objects come with the first write to them")
            .expected("a file")
            .remedy("leave it away"));
    }
    if args.format != Format::Sealed {
        return Err(Error::new(Kind::Usage, format!("cannot create {}", args.location))
            .found("a format with levels in a pool")
            .expected("a file or block device")
            .remedy("levels are made for one flat medium; use a path"));
    }
    let usual =
        if args.cipher().meta_size() == 0 { ObjectLayout::SegmentEnd } else { ObjectLayout::Adaptive };
    let params = ObjectParams::plan(args.cipher(), args.layout.unwrap_or(usual), blocks(size)?)?;
    let mut connection = Connection::open(target)?;
    check_pool(&connection, args, &params)?;
    if connection.exists()? && !args.force {
        return Err(exists(args));
    }
    connection.hold(args.holder.steal)?;
    // Between that look and the lock another client may have made one.
    let there = connection.exists()?;
    if there && !args.force {
        return Err(exists(args));
    }
    let parameters = Parameters::Objects(params);
    let made = draft(args, &parameters, wanted, console).and_then(|header| {
        let public = header.unlocked().header.clone();
        let uuid = public.uuid;
        if there {
            clear(&connection, args, console)?;
        }
        working::show(console, &format!("laying out {}", args.location), |_| {
            lay(&connection, &params, header)
        })
        .map_err(|e| e.context(format!("cannot create {}", args.location)))
        .inspect_err(|_| take_back(&connection, uuid, console))?;
        Ok((parameters, public))
    });
    if made.is_err() && !there {
        // Nothing was there before, so nothing stays.
        let _ = connection.forget_lock();
    }
    made
}

fn exists(args: &CreateArgs) -> Error {
    Error::new(Kind::Usage, format!("cannot create {}", args.location))
        .found("a disk that exists already")
        .expected("a name that no disk of the pool and namespace has")
        .remedy("choose another name, or give --force to overwrite it, with its snapshots")
}

/// Refuses a layout that the pool cannot keep.
fn check_pool(connection: &Connection, args: &CreateArgs, params: &ObjectParams) -> Result<()> {
    if connection.has_keys() || !params.layout.needs_keys() {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, format!("cannot create {}", args.location))
        .found(format!(
            "the layout {} in an erasure-coded pool, whose objects have no keys to keep metadata in",
            params.layout.name()
        ))
        .expected("a layout that keeps metadata beside the data")
        .remedy("give --layout segment-end, or use a replicated pool"))
}

/// Removes what is at the place of the new disk.
fn clear(connection: &Connection, args: &CreateArgs, console: Console) -> Result<()> {
    match uuid_of(connection) {
        Ok(uuid) => remove_objects(connection, uuid, console)?,
        Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt) => console.note(&format!(
            "{}: what was there does not say which objects are its own; they stay in the pool ({e})",
            args.location
        )),
        Err(e) => return Err(e),
    }
    connection.remove_header()
}

fn uuid_of(connection: &Connection) -> Result<Uuid> {
    Ok(lacuna_header::read_public(&*connection.header()?)?.0.uuid)
}

/// Lays the disk down, the header last.
fn lay(connection: &Connection, params: &ObjectParams, header: NewHeader) -> Result<()> {
    let unlocked = header.unlocked();
    let uuid = unlocked.header.uuid;
    ObjectDisk::create(&connection.stores(uuid)?, params, &unlocked.master_keys[0], &uuid.0)?;
    header.write(&*connection.new_header()?, |_| Ok(())).map(drop)
}

/// Removes a disk that could not be made whole. That it was ours is sure: its UUID was made by this process.
fn take_back(connection: &Connection, uuid: Uuid, console: Console) {
    let _ = connection.remove_header();
    let _ = remove_objects(connection, uuid, console);
}

/// Removes the snapshots, the data and the books of the disk with this UUID.
fn remove_objects(connection: &Connection, uuid: Uuid, console: Console) -> Result<()> {
    let stores = connection.stores(uuid)?;
    // A removal that was cut short may have taken the table with it, and then all snapshots before.
    let snapshots = list_snapshots(&*stores.book).or_else(|e| match e.kind() {
        Kind::Corrupt => {
            console.note(&format!("{e}; snapshots that it may have named stay in the pool"));
            Ok(Vec::new())
        }
        _ => Err(e),
    })?;
    for snapshot in snapshots {
        forget(&*stores.data, snapshot.data_id)?;
        forget(&*stores.book, snapshot.book_id)?;
    }
    let bar = console.progress(0, "{per_sec}");
    let shown = |done: usize, of: usize| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    };
    let removed = cluster::remove_all(&*stores.data, shown);
    bar.finish_and_clear();
    removed?;
    cluster::remove_all(&*stores.book, |_, _| {})
}

/// Lets a store forget a snapshot, which it may have done already.
fn forget(store: &dyn ObjectStore, id: SnapshotId) -> Result<()> {
    match store.remove_snapshot(id) {
        Err(e) if e.kind() == Kind::NotFound => Ok(()),
        other => other,
    }
}

/// `lacuna delete`.
pub fn delete(args: &DeleteArgs, console: Console) -> Result<()> {
    let what = format!("cannot delete {}", args.location);
    let Site::Pool(target) = Site::held(&args.location, &args.holder)? else {
        return Err(Error::new(Kind::Usage, what)
            .found("the path of a file or block device")
            .expected("a location rados:POOL/NAME")
            .remedy("remove a file with rm"));
    };
    cluster::refuse_snapshot(&args.location, "delete")?;
    if !args.yes && !console::can_ask() {
        return Err(Error::new(Kind::Usage, what)
            .found("no terminal to ask whether to go on")
            .remedy("to remove all its data and its snapshots, give --yes"));
    }
    let mut connection = Connection::open(&target)?;
    let uuid = uuid_of(&connection).map_err(|e| e.context(&what))?;
    connection.hold(args.holder.steal)?;
    let place =
        target.namespace().map(|namespace| format!(" in the namespace {namespace}")).unwrap_or_default();
    console
        .note(&format!("all data of {}{place} (UUID {uuid}) and its snapshots will be gone", args.location));
    if !args.yes {
        console::confirm()?;
    }
    // Again, under the lock: another client may have put a new disk there.
    if uuid_of(&connection)? != uuid {
        return Err(Error::new(Kind::Changed, what)
            .found("another disk of this name, made meanwhile")
            .remedy("look at it with `lacuna info`"));
    }
    remove_objects(&connection, uuid, console)?;
    connection.remove_header()?;
    connection.forget_lock()?;
    console.done(&format!("deleted {}{place}", args.location))
}
