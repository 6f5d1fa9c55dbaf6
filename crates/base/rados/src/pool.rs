//! A connection to a pool.

use super::cluster_options::{ClusterOptions, c_string};
use super::epoch::Epoch;
use super::error::{self, RadosCode};
use super::ffi::{ClusterConnection, IoContext, WriteOp};
use super::objects::RadosObjects;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::RwLock;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A pool of a RADOS cluster, over its own connection. The connection is closed when the pool and
/// all values taken from it are dropped.
pub struct RadosPool {
    cluster: Arc<ClusterConnection>,
    name: String,
    /// The pool with its namespace, for advice in errors.
    cap_scope: String,
    pool: CString,
    number: i64,
    namespace: Option<CString>,
    has_keys: bool,
    object_limit: u64,
    fenced: AtomicBool,
    in_doubt: AtomicBool,
    epoch: RwLock<Option<Epoch>>,
}

impl RadosPool {
    /// Connects to the cluster and opens the pool.
    ///
    /// Errors: [`Kind::NotFound`] if there is no librados, no configuration or no such pool;
    /// [`Kind::Permission`]; [`Kind::TimedOut`] if no monitor answers; [`Kind::Usage`] for a pool
    /// that does not support overwrites.
    pub fn connect(pool: &str, options: &ClusterOptions) -> Result<Arc<RadosPool>> {
        let c_pool = c_string(pool, "the pool")?;
        let namespace = options.namespace.as_deref().map(|n| c_string(n, "the namespace")).transpose()?;
        let (cluster, object_limit) = options.connect()?;
        let cluster = Arc::new(cluster);
        let what = || format!("cannot open pool `{pool}`");
        let place = error::cap_scope(pool, options.namespace.as_deref());
        let context = IoContext::open(&cluster, &c_pool).map_err(|code| match code {
            RadosCode::NO_ENTRY => error::no_pool(what(), pool),
            _ => error::failed(code, what(), &place),
        })?;
        if context.is_append_only().map_err(|code| error::failed(code, what(), &place))? {
            return Err(Error::new(Kind::Usage, what())
                .found("an erasure-coded pool without overwrites")
                .expected("a pool with objects that can be changed in place")
                .hint(format!("allow it: `ceph osd pool set {pool} allow_ec_overwrites true`")));
        }
        let mut found = RadosPool {
            number: context.pool(),
            cluster,
            name: pool.to_owned(),
            cap_scope: place,
            pool: c_pool,
            namespace,
            has_keys: true,
            object_limit,
            fenced: AtomicBool::new(false),
            in_doubt: AtomicBool::new(false),
            epoch: RwLock::new(None),
        };
        found.has_keys = found.probe_keys()?;
        Ok(Arc::new(found))
    }

    /// Whether objects of the pool have key-value maps; those of erasure-coded pools do not.
    pub fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// The name of the pool.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The objects named `{prefix}.{number as 16 hexadecimal digits}`. Preserves no snapshots
    /// before [`lacuna_medium::ObjectStore::set_snapshots`] is called.
    pub fn objects(self: &Arc<Self>, prefix: &str) -> Result<Arc<RadosObjects>> {
        c_string(prefix, "the prefix of objects")?;
        Ok(Arc::new(RadosObjects::new(self.clone(), prefix, None)?))
    }

    /// The names of all objects in the pool's namespace that begin with `prefix`, in any order.
    /// Names that are not UTF-8 are omitted.
    pub fn object_names(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let each = &mut |name: &[u8]| {
            let name = std::str::from_utf8(name).into_iter().find(|name| name.starts_with(prefix));
            names.extend(name.map(str::to_owned));
        };
        self.context()?.list(each).map_err(|code| {
            self.failed(code, format!("cannot list objects `{prefix}*` of pool `{}`", self.name))
        })?;
        Ok(names)
    }

    /// Tests whether the pool has keys, by an operation that sets a key and then always fails, so
    /// that it leaves no trace. A pool without keys refuses the first step, other pools refuse the
    /// second. A client without write permission gets no answer and assumes keys: reading absent
    /// keys does no harm.
    fn probe_keys(&self) -> Result<bool> {
        let mut op = WriteOp::new()?;
        op.set_keys(&[(b"k".to_vec(), b"v")]);
        op.assert_version(u64::MAX);
        let answer =
            self.context()?.write_all(std::iter::once(Ok((c"lacuna.keys?".to_owned(), op)))).remove(0)?;
        match answer {
            Err(RadosCode::UNSUPPORTED) => Ok(false),
            Ok(_) => Ok(true),
            Err(code) if code.is_guard() || code.is_refusal() => Ok(true),
            Err(code) => Err(error::failed(
                code,
                format!("cannot probe whether pool `{}` has keys", self.name),
                &self.cap_scope,
            )),
        }
    }

    /// A new I/O context.
    pub(super) fn context(&self) -> Result<IoContext> {
        let mut context = IoContext::open(&self.cluster, &self.pool)
            .map_err(|code| self.failed(code, format!("cannot open pool `{}`", self.name)))?;
        if let Some(namespace) = &self.namespace {
            context.set_namespace(namespace);
        }
        Ok(context)
    }

    pub(super) fn cluster(&self) -> &ClusterConnection {
        &self.cluster
    }

    /// The most bytes that an object may hold.
    pub(super) fn object_limit(&self) -> u64 {
        self.object_limit
    }

    /// An error of an operation in this pool.
    pub(super) fn failed(&self, code: RadosCode, what: String) -> Error {
        if code == RadosCode::NO_ENTRY && !self.exists() {
            return error::no_pool(what, &self.name);
        }
        if code == RadosCode::TIMED_OUT {
            self.in_doubt.store(true, Ordering::Release);
        }
        error::failed(code, what, &self.cap_scope)
    }

    /// Whether an operation timed out that the cluster may still perform.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Acquire)
    }

    /// Whether the pool still exists.
    pub(super) fn exists(&self) -> bool {
        self.cluster.has_pool(self.number)
    }

    /// Sets the epoch of all later writes. A connection holds one lock at a time.
    pub(super) fn set_epoch(&self, epoch: Epoch) {
        *self.epoch.write() = Some(epoch);
    }

    /// The epoch of writes, if this client holds or held a lock.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        *self.epoch.read()
    }

    /// Makes all later operations fail.
    pub(super) fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
    }

    /// Returns an error of [`Kind::Fenced`] if another client took over the lock of this client.
    pub fn check_taken_over(&self) -> Result<()> {
        self.check_fenced(|| format!("cannot use pool `{}` any more", self.name))
    }

    /// Returns an error if this client was fenced.
    pub(super) fn check_fenced(&self, what: impl FnOnce() -> String) -> Result<()> {
        if self.fenced.load(Ordering::Acquire) { Err(error::fenced(what())) } else { Ok(()) }
    }
}
