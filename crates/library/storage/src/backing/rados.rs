//! Access to a disk in Ceph RADOS: the connection, the lock that makes this client the only writer,
//! and the names of the disk's objects.
//!
//! | part | prefix of its objects |
//! |---|---|
//! | header | `lacuna.NAME` |
//! | lock | `lacuna.NAME.lock` |
//! | data | `lacuna.UUID.data` |
//! | book | `lacuna.UUID.book` |
//!
//! A name contains no dot ([`Location`] ensures that), so no two of these prefixes can be equal.

use crate::observer::{Observer, Silent};
use crate::rados::{ClusterOptions, RadosPool, WriterLock, WriterSeries};
use data_encoding::HEXLOWER;
use lacuna_contracts::{Error, Kind, Result, shell_word};
use lacuna_header::{Location, PublicHeader, TAIL_AREA, Uuid};
use lacuna_medium::{KeySelection, Medium, ObjectStep, ObjectStore, ObjectTransaction, Query, StripedMedium};
use lacuna_sealed_objects::{SnapshotRecord, Stores, list_snapshots};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

/// Objects removed in parallel.
const REMOVAL_BATCH: usize = 64;

/// The disk and its cluster. May cross a fork.
#[derive(Clone)]
pub struct PoolLocation {
    pub(crate) pool: String,
    pub(crate) name: String,
    pub(crate) snapshot: Option<String>,
    pub(crate) options: ClusterOptions,
    /// The location, for error messages.
    pub(crate) display_name: String,
}

impl PoolLocation {
    /// The snapshot that the location names, if any.
    pub fn snapshot(&self) -> Option<&str> {
        self.snapshot.as_deref()
    }

    /// The namespace in the pool, if any.
    pub fn namespace(&self) -> Option<&str> {
        self.options.namespace.as_deref()
    }

    /// Distinguishes this target from other ones, for file names on this machine.
    pub fn identity(&self) -> String {
        format!("{}\0{:?}\0{:?}", self.display_name, self.options.namespace, non_default_conf(&self.options))
    }
}

/// The configuration file of the cluster, unless it is the default one.
pub fn non_default_conf(options: &ClusterOptions) -> Option<&Path> {
    options.conf.as_deref().filter(|conf| *conf != Path::new("/etc/ceph/ceph.conf"))
}

/// Refuses a location that names a snapshot, for commands that change a disk; `verb` names the
/// command.
pub fn refuse_snapshot(location: &Location, verb: &str) -> Result<()> {
    let Some(snapshot) = location.snapshot() else { return Ok(()) };
    let disk = location.to_string();
    let disk = disk.strip_suffix(&format!("@{snapshot}")).unwrap_or(&disk);
    Err(Error::new(Kind::Usage, format!("cannot {verb} {location}"))
        .found("a snapshot, which never changes")
        .expected("a disk")
        .hint(format!("give {disk}")))
}

/// The public list of snapshots of the disk with this UUID.
pub(crate) fn snapshots(connection: &PoolConnection, uuid: Uuid) -> Result<Vec<SnapshotRecord>> {
    list_snapshots(&*connection.stores(uuid)?.book)
}

/// The public record of the snapshot `name` of the disk with this UUID.
pub(crate) fn snapshot(connection: &PoolConnection, uuid: Uuid, name: &str) -> Result<SnapshotRecord> {
    snapshots(connection, uuid)?.into_iter().find(|snapshot| snapshot.name == name).ok_or_else(|| {
        Error::new(Kind::NotFound, "no such snapshot")
            .expected("the name of a snapshot of the disk")
            .hint("list the snapshots of the disk")
    })
}

fn header_prefix(name: &str) -> String {
    format!("lacuna.{name}")
}

/// The name of the disk, if an object's name is that of a header object.
fn disk_of_header_object(object: &str) -> Option<&str> {
    let (name, number) = object.strip_prefix("lacuna.")?.split_once('.')?;
    let is_number = number.len() == 16 && number.bytes().all(|b| b.is_ascii_hexdigit());
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    (is_number && is_name).then_some(name)
}

/// The prefix of the data objects of a disk.
pub(crate) fn data_prefix(uuid: Uuid) -> String {
    format!("lacuna.{}.data", hex(uuid))
}

fn book_prefix(uuid: Uuid) -> String {
    format!("lacuna.{}.book", hex(uuid))
}

fn hex(uuid: Uuid) -> String {
    HEXLOWER.encode(&uuid.0)
}

/// The object with the last copy of a header.
const LAST_COPY: u64 = 1;
/// Length of the medium of a header; each object holds 4 MiB.
const HEADER_MEDIUM_LEN: u64 = LAST_COPY * (4 << 20) + TAIL_AREA;

/// The operations of a pool. Tests of this crate have a pool in memory.
pub(crate) trait ObjectPool: Send + Sync {
    /// Whether objects have key-value maps.
    fn has_keys(&self) -> bool;
    /// The objects with this prefix and a number as their names.
    fn objects(&self, prefix: &str) -> Result<Arc<dyn ObjectStore>>;
    /// The names of all objects that begin with `prefix`.
    fn object_names(&self, prefix: &str) -> Result<Vec<String>>;
    /// Takes a writer's lock, with `steal` also from a live client, perhaps as the next of a series
    /// of connections.
    fn lock_writer(&self, object: &str, steal: bool, series: Option<WriterSeries>) -> Result<WriterLock>;
    /// An error if another client has taken over the lock.
    fn check_taken_over(&self) -> Result<()>;
}

impl ObjectPool for Arc<RadosPool> {
    fn has_keys(&self) -> bool {
        RadosPool::has_keys(self)
    }

    fn objects(&self, prefix: &str) -> Result<Arc<dyn ObjectStore>> {
        let objects = RadosPool::objects(self, prefix)?;
        Ok(objects)
    }

    fn object_names(&self, prefix: &str) -> Result<Vec<String>> {
        RadosPool::object_names(self, prefix)
    }

    fn lock_writer(&self, object: &str, steal: bool, series: Option<WriterSeries>) -> Result<WriterLock> {
        RadosPool::lock_writer_in_series(self, object, steal, series)
    }

    fn check_taken_over(&self) -> Result<()> {
        RadosPool::check_taken_over(self)
    }
}

/// A connection to the cluster, and possibly the lock on the disk. Never crosses a fork.
pub struct PoolConnection {
    // The first field, so that it is dropped first: its release needs the connection.
    lock: Mutex<Option<WriterLock>>,
    pool: Box<dyn ObjectPool>,
    location: PoolLocation,
}

impl PoolConnection {
    /// Connects. Does not check whether the disk exists.
    pub(crate) fn connect(target: &PoolLocation) -> Result<Self> {
        let pool = RadosPool::connect(&target.pool, &target.options)
            .map_err(|e| e.context(format!("cannot reach {}", target.display_name)))?;
        Ok(PoolConnection::over(Box::new(pool), target))
    }

    /// A disk of this pool.
    pub(crate) fn over(pool: Box<dyn ObjectPool>, target: &PoolLocation) -> PoolConnection {
        PoolConnection { lock: Mutex::new(None), pool, location: target.clone() }
    }

    /// The target of the connection.
    pub(crate) fn location(&self) -> &PoolLocation {
        &self.location
    }

    /// Takes the lock on the disk, until this is dropped; a snapshot needs none, since it is
    /// immutable. A dead client that holds the lock is fenced first, with `steal` also a live one;
    /// the observer is told. Errors: [`Kind::Busy`] while another client holds it.
    pub(crate) fn take_lock(&self, steal: bool, observer: &dyn Observer) -> Result<()> {
        if self.location.snapshot.is_some() {
            return Ok(());
        }
        let shown = &self.location.display_name;
        let lock = self.lock_writer(steal, None)?;
        if let Some(client) = lock.evicted_client() {
            let why = if steal { "held it" } else { "held it and did not answer" };
            observer.note(&format!(
                "{shown}: {client} {why}; it is shut out of the cluster, and its unflushed data is lost"
            ));
        }
        *self.lock.lock() = Some(lock);
        Ok(())
    }

    fn lock_writer(&self, steal: bool, series: Option<WriterSeries>) -> Result<WriterLock> {
        let object = format!("lacuna.{}.lock.{:016x}", self.location.name, 0);
        self.pool.lock_writer(&object, steal, series).map_err(|e| e.context(&self.location.display_name))
    }

    /// Whether objects of the pool have key-value maps.
    pub(crate) fn has_keys(&self) -> bool {
        self.pool.has_keys()
    }

    /// Whether any object of a header exists.
    pub(crate) fn exists(&self) -> Result<bool> {
        let objects = self.header_objects()?;
        for object in [0, LAST_COPY] {
            let found = objects.query_one(Query { object, extents: vec![], keys: KeySelection::None })?;
            if found.version.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The medium with the header of an existing disk.
    pub(crate) fn header(&self) -> Result<Arc<dyn Medium>> {
        let medium = self.header_of(&self.location.name).map_err(|e| match e.kind() {
            Kind::NotFound => {
                Error::new(Kind::NotFound, format!("cannot open {}", self.location.display_name))
                    .found(match &self.location.options.namespace {
                        Some(namespace) => {
                            format!("no disk of this name in the namespace {namespace} of the pool")
                        }
                        None => "no disk of this name in the pool".to_owned(),
                    })
                    .expected("a disk that was created there, and its namespace")
            }
            _ => e.context(&self.location.display_name),
        })?;
        Ok(Arc::new(medium))
    }

    /// The medium with the header of the disk of this name.
    fn header_of(&self, name: &str) -> Result<StripedMedium> {
        let objects = self.objects(&header_prefix(name))?;
        StripedMedium::open(objects.clone()).or_else(|e| {
            if e.kind() != Kind::NotFound {
                return Err(e);
            }
            let left = StripedMedium::with_len(objects, HEADER_MEDIUM_LEN);
            match lacuna_header::read_public(&left) {
                Ok(_) => Ok(left),
                Err(why) if why.kind() == Kind::NotFound => Err(e),
                Err(why) => Err(why),
            }
        })
    }

    /// Refuses to remove the objects of the disk with this UUID if another name leads to them as
    /// well, through a copy of its header. `what` describes the failed command. Errors:
    /// [`Kind::Usage`] in that case; all errors of the cluster.
    pub(crate) fn refuse_copied_header(&self, uuid: Uuid, what: &str) -> Result<()> {
        let objects = self.pool.object_names("lacuna.")?;
        let mut names: Vec<&str> =
            objects.iter().filter_map(|object| disk_of_header_object(object)).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| *name != self.location.name);
        let mut others = Vec::new();
        for name in names {
            match self.header_of(name).and_then(|header| lacuna_header::read_public(&header)) {
                Ok((header, _)) if header.uuid == uuid => others.push(name),
                Ok(_) => {}
                // An unreadable header is not a copy of a readable one.
                Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt | Kind::Other) => {}
                Err(e) => return Err(e),
            }
        }
        let Some(other) = others.first() else { return Ok(()) };
        let PoolLocation { pool, name, .. } = &self.location;
        let namespace =
            self.location.namespace().map_or_else(String::new, |n| format!(" -N {}", shell_word(n)));
        Err(Error::new(Kind::Usage, what)
            .found(format!(
                "a copy of its header under the name {}: both lead to the same data",
                others.join(", ")
            ))
            .expected("one name that leads to the data")
            .hint(format!(
                "remove one of the two headers, that of {name} or of {other}, and keep the data: \
                 `rados -p {}{namespace} rm lacuna.{name}.{:016x} lacuna.{name}.{LAST_COPY:016x}`",
                shell_word(pool),
                0
            )))
    }

    /// The medium of a header that may be missing.
    pub(crate) fn header_to_repair(&self) -> Result<Arc<dyn Medium>> {
        let objects = self.header_objects()?;
        match StripedMedium::open(objects.clone()) {
            Err(e) if e.kind() == Kind::NotFound => {
                Ok(Arc::new(StripedMedium::with_len(objects, HEADER_MEDIUM_LEN)))
            }
            opened => Ok(Arc::new(opened.map_err(|e| e.context(&self.location.display_name))?)),
        }
    }

    /// An empty medium for the header of a new disk.
    pub(crate) fn create_header(&self) -> Result<Arc<dyn Medium>> {
        let objects = self.header_objects()?;
        Ok(Arc::new(StripedMedium::create(objects, HEADER_MEDIUM_LEN)?))
    }

    /// The stores of the disk with this UUID.
    pub(crate) fn stores(&self, uuid: Uuid) -> Result<Stores> {
        Ok(Stores { data: self.objects(&data_prefix(uuid))?, book: self.objects(&book_prefix(uuid))? })
    }

    /// Removes the header; after that no disk of this name exists.
    pub(crate) fn remove_header(&self) -> Result<()> {
        remove_all(&*self.header_objects()?, |_, _| {})
    }

    /// Releases the lock and removes its object.
    pub(crate) fn remove_lock(&self) -> Result<()> {
        let lock = self.lock.lock().take();
        lock.map_or(Ok(()), WriterLock::remove)
    }

    /// An error if another client has taken over the lock from this one.
    pub(crate) fn check_taken_over(&self) -> Result<()> {
        self.pool.check_taken_over().map_err(|e| e.context(&self.location.display_name))
    }

    /// Leaves the lock to the next client, which takes it over as from a dead one: the cluster then
    /// refuses writes of this client that are still in flight.
    pub(crate) fn abandon_lock(&self) {
        if let Some(lock) = self.lock.lock().take() {
            lock.abandon();
        }
    }

    /// The objects of the header.
    fn header_objects(&self) -> Result<Arc<dyn ObjectStore>> {
        self.objects(&header_prefix(&self.location.name))
    }

    fn objects(&self, prefix: &str) -> Result<Arc<dyn ObjectStore>> {
        self.pool.objects(prefix)
    }

    /// Connects to an existing disk. The second value is the medium of its header.
    pub(crate) fn connect_existing(
        target: &PoolLocation,
        location: &Location,
    ) -> Result<(Arc<PoolConnection>, Arc<dyn Medium>)> {
        let connection = PoolConnection::connect(target)?;
        let header = connection.header()?;
        if let Some(name) = target.snapshot() {
            let found = lacuna_header::read_public(&*header)
                .and_then(|(public, _)| snapshot(&connection, public.uuid, name));
            found.map(drop).map_err(|e| e.context(location))?;
        }
        Ok((Arc::new(connection), header))
    }
}

/// An unlocked disk, for the process after a fork, which connects again.
pub(crate) struct ReconnectInfo {
    pub(crate) pool_location: PoolLocation,
    pub(crate) location: Location,
    /// Take over the disk from the client that holds it.
    pub(crate) steal: bool,
    /// The header at the time of unlocking.
    pub(crate) header: PublicHeader,
}

impl ReconnectInfo {
    /// Connects to the disk. Its header must be unchanged.
    pub(crate) fn connect(&self) -> Result<Arc<PoolConnection>> {
        let (connection, header) = PoolConnection::connect_existing(&self.pool_location, &self.location)?;
        // The process that unlocked the disk took it over, and has reported that.
        connection.take_lock(self.steal, &Silent)?;
        check_header_unchanged(&*header, &self.header, &self.location)?;
        Ok(connection)
    }

    /// The same for a server of a keeper, after the end of the server before it. If the series
    /// continues, only the servers before it had the disk since the unlocking, and they may have
    /// changed its header.
    ///
    /// Errors: [`Kind::Fenced`] if another client has had the disk since the last server.
    pub(crate) fn connect_in_series(&self, series: WriterSeries) -> Result<Arc<PoolConnection>> {
        let (connection, header) = PoolConnection::connect_existing(&self.pool_location, &self.location)?;
        // Only the first server may take the disk from another client.
        let lock = connection.lock_writer(self.steal && !series.continues, Some(series))?;
        *connection.lock.lock() = Some(lock);
        if !series.continues {
            check_header_unchanged(&*header, &self.header, &self.location)?;
        }
        Ok(connection)
    }
}

/// Refuses a header that has changed since it was unlocked.
pub(crate) fn check_header_unchanged(
    header: &dyn Medium,
    unlocked: &PublicHeader,
    location: &Location,
) -> Result<()> {
    let (public, _) = lacuna_header::read_public(header).map_err(|e| e.context(location))?;
    if public == *unlocked {
        return Ok(());
    }
    Err(Error::new(Kind::Changed, format!("cannot open {location}"))
        .found("a header that another client has rewritten since it was unlocked")
        .hint("try again"))
}

/// Removes every object of a store, calling `progress` with the number of removed objects and their
/// total.
pub(crate) fn remove_all(store: &dyn ObjectStore, mut progress: impl FnMut(usize, usize)) -> Result<()> {
    let objects = store.list()?;
    for (batch, part) in objects.chunks(REMOVAL_BATCH).enumerate() {
        let removals: Vec<ObjectTransaction<'_>> = part
            .iter()
            .map(|object| ObjectTransaction { object: *object, steps: vec![ObjectStep::Remove] })
            .collect();
        store.apply(&removals).into_iter().try_for_each(|removed| removed.map(|_| ()))?;
        progress(batch * REMOVAL_BATCH + part.len(), objects.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_object_names_its_disk() {
        assert_eq!(disk_of_header_object("lacuna.vm-1.0000000000000000"), Some("vm-1"));
        assert_eq!(disk_of_header_object("lacuna.vm_1.0000000000000001"), Some("vm_1"));
        let hex = "0123456789abcdef0123456789abcdef";
        for other in [
            "lacuna.vm.lock.0000000000000000".to_owned(),
            format!("lacuna.{hex}.data.0000000000000000"),
            "lacuna.vm.000000000000000".to_owned(),
            "lacuna.v m.0000000000000000".to_owned(),
            "rbd.vm.0000000000000000".to_owned(),
            "lacuna.".to_owned(),
        ] {
            assert_eq!(disk_of_header_object(&other), None, "{other}");
        }
    }
}
