//! An I/O context: a pool with a namespace, and the snapshots for which writes preserve, or at
//! which reads look.

use super::super::error::Code;
use super::cluster::Cluster;
use super::handle::{Handle, check};
use super::symbols::Api;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::Arc;

/// The longest attribute that is read.
const LONGEST_ATTRIBUTE: usize = 64;

/// An I/O context.
pub(in super::super) struct IoContext {
    cluster: Arc<Cluster>,
    raw: Handle,
}

// SAFETY: librados allows one context to be used from many threads as long as nobody changes its
// settings, which takes `&mut self` here.
unsafe impl Send for IoContext {}
// SAFETY: as above.
unsafe impl Sync for IoContext {}

impl Drop for IoContext {
    fn drop(&mut self) {
        // SAFETY: the context is ours and used nowhere else any more; operations in flight hold it
        // themselves.
        unsafe { (self.api().rados_ioctx_destroy)(self.raw) }
    }
}

impl IoContext {
    pub(super) fn api(&self) -> &'static Api {
        self.cluster.api()
    }

    pub(super) fn raw(&self) -> Handle {
        self.raw
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// A context on a pool. Its operations fail, rather than wait, while the pool is full.
    pub(in super::super) fn open(cluster: &Arc<Cluster>, pool: &CStr) -> Result<IoContext, Code> {
        let mut raw = ptr::null_mut();
        // SAFETY: the cluster is connected; `raw` outlives the call.
        check(unsafe { (cluster.api().rados_ioctx_create)(cluster.raw(), pool.as_ptr(), &raw mut raw) })?;
        let context = IoContext { cluster: cluster.clone(), raw };
        // SAFETY: the context is live and nobody else has it yet.
        unsafe { (context.api().rados_set_pool_full_try)(raw) };
        Ok(context)
    }

    /// The number of the pool.
    pub(in super::super) fn pool(&self) -> i64 {
        // SAFETY: the context is live.
        unsafe { (self.api().rados_ioctx_get_id)(self.raw) }
    }

    /// Whether objects of the pool can only be appended to (erasure-coded, without overwrites).
    pub(in super::super) fn only_appends(&self) -> Result<bool, Code> {
        let mut answer = 0;
        // SAFETY: the context is live; `answer` outlives the call.
        check(unsafe { (self.api().rados_ioctx_pool_requires_alignment2)(self.raw, &raw mut answer) })?;
        Ok(answer != 0)
    }

    /// Objects of this namespace only.
    pub(in super::super) fn set_namespace(&mut self, namespace: &CStr) {
        // SAFETY: the context is live and, being borrowed for change, used by nobody else; the
        // string is copied.
        unsafe { (self.api().rados_ioctx_set_namespace)(self.raw, namespace.as_ptr()) }
    }

    /// Reads see the objects as they were at a snapshot.
    pub(in super::super) fn set_read_snapshot(&mut self, id: u64) {
        // SAFETY: as for the namespace.
        unsafe { (self.api().rados_ioctx_snap_set_read)(self.raw, id) }
    }

    /// Writes preserve what they overwrite for these snapshots, newest first.
    pub(in super::super) fn set_write_snapshots(&mut self, ids: &[u64]) -> Result<(), Code> {
        let mut ids = ids.to_vec();
        let count = c_int::try_from(ids.len()).map_err(|_| Code::INVALID)?;
        let newest = ids.first().copied().unwrap_or(0);
        let at = ids.as_mut_ptr();
        // SAFETY: as for the namespace; there are `count` numbers at `at`, which librados copies.
        check(unsafe { (self.api().rados_ioctx_selfmanaged_snap_set_write_ctx)(self.raw, newest, at, count) })
            .map(drop)
    }

    /// Takes the number of a new snapshot.
    pub(in super::super) fn create_snapshot(&self) -> Result<u64, Code> {
        let mut id = 0;
        // SAFETY: the context is live; `id` outlives the call.
        check(unsafe { (self.api().rados_ioctx_selfmanaged_snap_create)(self.raw, &raw mut id) })?;
        Ok(id)
    }

    /// Gives a snapshot up.
    pub(in super::super) fn remove_snapshot(&self, id: u64) -> Result<(), Code> {
        // SAFETY: the context is live.
        check(unsafe { (self.api().rados_ioctx_selfmanaged_snap_remove)(self.raw, id) }).map(drop)
    }

    /// An attribute of an object, if it has that and it is short; empty if not.
    pub(in super::super) fn attribute(&self, object: &CStr, name: &CStr) -> Result<Vec<u8>, Code> {
        let mut value = [0_u8; LONGEST_ATTRIBUTE];
        let at: *mut c_char = value.as_mut_ptr().cast();
        // SAFETY: the context is live; the strings end in NUL; librados writes at most as many
        // bytes as the buffer holds.
        let found =
            unsafe { (self.api().rados_getxattr)(self.raw, object.as_ptr(), name.as_ptr(), at, value.len()) };
        match check(found) {
            Ok(len) => Ok(value[..(len as usize).min(LONGEST_ATTRIBUTE)].to_vec()),
            Err(Code::NO_DATA | Code::RANGE) => Ok(Vec::new()),
            Err(code) => Err(code),
        }
    }

    /// Makes an object what it was at a snapshot.
    pub(in super::super) fn roll_back(&self, object: &CStr, id: u64) -> Result<(), Code> {
        // SAFETY: the context is live; the name ends in NUL.
        check(unsafe { (self.api().rados_ioctx_selfmanaged_snap_rollback)(self.raw, object.as_ptr(), id) })
            .map(drop)
    }

    /// Hands every object's name to `each`.
    pub(in super::super) fn list(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), Code> {
        /// Closes the listing however it ends.
        struct Listing<'a>(&'a Api, Handle);
        impl Drop for Listing<'_> {
            fn drop(&mut self) {
                // SAFETY: the listing is ours and used nowhere else any more.
                unsafe { (self.0.rados_nobjects_list_close)(self.1) }
            }
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the context is live; `raw` outlives the call.
        check(unsafe { (self.api().rados_nobjects_list_open)(self.raw, &raw mut raw) })?;
        let listing = Listing(self.api(), raw);
        loop {
            let mut name: *const c_char = ptr::null();
            let mut len = 0_usize;
            // SAFETY: the listing is live; `name` and `len` outlive the call; null says that the
            // rest is not wanted.
            let next = unsafe {
                (self.api().rados_nobjects_list_next2)(
                    listing.1,
                    &raw mut name,
                    ptr::null_mut(),
                    ptr::null_mut(),
                    &raw mut len,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            };
            match check(next) {
                Ok(_) => {}
                Err(Code::NO_ENTRY) => return Ok(()),
                Err(code) => return Err(code),
            }
            // SAFETY: librados keeps the `len` bytes at `name` until the listing is moved on.
            each(unsafe { std::slice::from_raw_parts(name.cast(), len) });
        }
    }
}
