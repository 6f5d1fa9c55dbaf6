//! An I/O context: a pool with a namespace, and the snapshots that writes preserve or that reads
//! see.

use super::super::error::RadosCode;
use super::cluster::ClusterConnection;
use super::handle::{Handle, check};
use super::symbols::Api;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::Arc;

/// The longest attribute that can be read.
const LONGEST_ATTRIBUTE: usize = 64;

/// An I/O context.
pub(in super::super) struct IoContext {
    cluster: Arc<ClusterConnection>,
    raw: Handle,
}

// SAFETY: librados allows many threads to use one context unless its settings are being changed,
// which takes `&mut self` here.
unsafe impl Send for IoContext {}
// SAFETY: as above.
unsafe impl Sync for IoContext {}

impl Drop for IoContext {
    fn drop(&mut self) {
        // SAFETY: the context is ours and no longer used; operations in flight hold references of
        // their own.
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

    pub(super) fn cluster(&self) -> &ClusterConnection {
        &self.cluster
    }

    /// A context on a pool. While the pool is full, its operations fail instead of waiting.
    pub(in super::super) fn open(
        cluster: &Arc<ClusterConnection>,
        pool: &CStr,
    ) -> Result<IoContext, RadosCode> {
        let mut raw = ptr::null_mut();
        // SAFETY: the cluster is connected; `raw` outlives the call.
        check(unsafe { (cluster.api().rados_ioctx_create)(cluster.raw(), pool.as_ptr(), &raw mut raw) })?;
        let context = IoContext { cluster: cluster.clone(), raw };
        // SAFETY: the context is live and not shared yet.
        unsafe { (context.api().rados_set_pool_full_try)(raw) };
        Ok(context)
    }

    /// The number of the pool.
    pub(in super::super) fn pool(&self) -> i64 {
        // SAFETY: the context is live.
        unsafe { (self.api().rados_ioctx_get_id)(self.raw) }
    }

    /// Whether objects of the pool allow only appending (erasure-coded, without overwrites).
    pub(in super::super) fn is_append_only(&self) -> Result<bool, RadosCode> {
        let mut answer = 0;
        // SAFETY: the context is live; `answer` outlives the call.
        check(unsafe { (self.api().rados_ioctx_pool_requires_alignment2)(self.raw, &raw mut answer) })?;
        Ok(answer != 0)
    }

    /// Restricts the context to objects of this namespace.
    pub(in super::super) fn set_namespace(&mut self, namespace: &CStr) {
        // SAFETY: the context is live, and the exclusive borrow excludes other use; the string is
        // copied.
        unsafe { (self.api().rados_ioctx_set_namespace)(self.raw, namespace.as_ptr()) }
    }

    /// Makes reads see the objects as of a snapshot.
    pub(in super::super) fn set_read_snapshot(&mut self, id: u64) {
        // SAFETY: as for the namespace.
        unsafe { (self.api().rados_ioctx_snap_set_read)(self.raw, id) }
    }

    /// Makes writes preserve overwritten data for these snapshots, newest first.
    pub(in super::super) fn set_write_snapshots(&mut self, ids: &[u64]) -> Result<(), RadosCode> {
        let mut ids = ids.to_vec();
        let count = c_int::try_from(ids.len()).map_err(|_| RadosCode::INVALID)?;
        let newest = ids.first().copied().unwrap_or(0);
        let at = ids.as_mut_ptr();
        // SAFETY: as for the namespace; there are `count` numbers at `at`, which librados copies.
        check(unsafe { (self.api().rados_ioctx_selfmanaged_snap_set_write_ctx)(self.raw, newest, at, count) })
            .map(drop)
    }

    /// Allocates the number of a new snapshot.
    pub(in super::super) fn create_snapshot(&self) -> Result<u64, RadosCode> {
        let mut id = 0;
        // SAFETY: the context is live; `id` outlives the call.
        check(unsafe { (self.api().rados_ioctx_selfmanaged_snap_create)(self.raw, &raw mut id) })?;
        Ok(id)
    }

    /// Removes a snapshot.
    pub(in super::super) fn remove_snapshot(&self, id: u64) -> Result<(), RadosCode> {
        // SAFETY: the context is live.
        check(unsafe { (self.api().rados_ioctx_selfmanaged_snap_remove)(self.raw, id) }).map(drop)
    }

    /// An attribute of an object; empty if it is absent or too long.
    pub(in super::super) fn attribute(&self, object: &CStr, name: &CStr) -> Result<Vec<u8>, RadosCode> {
        let mut value = [0_u8; LONGEST_ATTRIBUTE];
        let at: *mut c_char = value.as_mut_ptr().cast();
        // SAFETY: the context is live; the strings end in NUL; librados writes no more bytes than
        // the buffer holds.
        let found =
            unsafe { (self.api().rados_getxattr)(self.raw, object.as_ptr(), name.as_ptr(), at, value.len()) };
        match check(found) {
            Ok(len) => Ok(value[..(len as usize).min(LONGEST_ATTRIBUTE)].to_vec()),
            Err(RadosCode::NO_DATA | RadosCode::RANGE) => Ok(Vec::new()),
            Err(code) => Err(code),
        }
    }

    /// Restores an object to its state at a snapshot.
    pub(in super::super) fn roll_back(&self, object: &CStr, id: u64) -> Result<(), RadosCode> {
        // SAFETY: the context is live; the name ends in NUL.
        check(unsafe { (self.api().rados_ioctx_selfmanaged_snap_rollback)(self.raw, object.as_ptr(), id) })
            .map(drop)
    }

    /// Passes the name of every object to `each`.
    pub(in super::super) fn list(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), RadosCode> {
        /// Closes the listing on every path.
        struct Listing<'a>(&'a Api, Handle);
        impl Drop for Listing<'_> {
            fn drop(&mut self) {
                // SAFETY: the listing is ours and no longer used.
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
            // SAFETY: the listing is live; `name` and `len` outlive the call; null skips an output.
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
                Err(RadosCode::NO_ENTRY) => return Ok(()),
                Err(code) => return Err(code),
            }
            // SAFETY: librados keeps the `len` bytes at `name` until the next step of the listing.
            each(unsafe { std::slice::from_raw_parts(name.cast(), len) });
        }
    }
}
