//! The connection to a cluster.

use super::super::error::RadosCode;
use super::handle::{Handle, check};
use super::symbols::{Api, api};
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The longest value of an option that can be read back.
const LONGEST_VALUE: usize = 256;

/// Handles that are not shut down yet. While there is one, threads may be in librados.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Whether librados is in use. A process that then ends in the usual way, by returning from `main`
/// or by `exit`, may crash, because librados destroys data that its threads still use. Such a
/// process must end by [`exit_at_once`].
pub fn is_in_use() -> bool {
    LIVE.load(Ordering::SeqCst) > 0
}

/// Ends the process with this exit code, without running any destructors, those of librados
/// included. Buffers must have been flushed.
pub fn exit_at_once(code: u8) -> ! {
    // SAFETY: the declaration is that of unistd.h.
    unsafe extern "C" {
        safe fn _exit(status: c_int) -> !;
    }
    _exit(c_int::from(code))
}

/// A cluster handle that is shut down when dropped.
struct ClusterHandle {
    api: &'static Api,
    raw: Handle,
}

// SAFETY: librados protects a cluster handle with its own locks, for use from many threads.
unsafe impl Send for ClusterHandle {}
// SAFETY: as above.
unsafe impl Sync for ClusterHandle {}

impl Drop for ClusterHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and no longer used; shutting down an unconnected handle only
        // frees it.
        unsafe { (self.api.rados_shutdown)(self.raw) }
        LIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A cluster handle that can be configured and is not connected yet. (Many calls of librados crash
/// on such a handle, so this type offers none of them.)
pub(in super::super) struct UnconnectedCluster(ClusterHandle);

impl UnconnectedCluster {
    /// A handle for `client`, such as `client.admin`. The outer error: librados cannot be loaded.
    pub(in super::super) fn new(
        client: &CStr,
    ) -> lacuna_contracts::Result<Result<UnconnectedCluster, RadosCode>> {
        let api = api()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call; the strings end in NUL. An empty cluster name leaves the
        // choice to the configuration file.
        let made = unsafe { (api.rados_create2)(&raw mut raw, c"".as_ptr(), client.as_ptr(), 0) };
        Ok(check(made).map(|_| {
            LIVE.fetch_add(1, Ordering::SeqCst);
            UnconnectedCluster(ClusterHandle { api, raw })
        }))
    }

    /// Reads a configuration file; without a path, the first in the standard locations.
    pub(in super::super) fn read_file(&mut self, path: Option<&CStr>) -> Result<(), RadosCode> {
        let path = path.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the handle is live; the path is null, which is allowed, or ends in NUL.
        check(unsafe { (self.0.api.rados_conf_read_file)(self.0.raw, path) }).map(drop)
    }

    /// Sets an option.
    pub(in super::super) fn set(&mut self, option: &CStr, value: &str) -> Result<(), RadosCode> {
        let value = CString::new(value).map_err(|_| RadosCode::INVALID)?;
        // SAFETY: the handle is live; both strings end in NUL.
        check(unsafe { (self.0.api.rados_conf_set)(self.0.raw, option.as_ptr(), value.as_ptr()) }).map(drop)
    }

    /// The value of an option; `None` if it does not exist or is too long.
    pub(in super::super) fn get(&self, option: &CStr) -> Option<String> {
        let mut value = [0_u8; LONGEST_VALUE];
        let at: *mut c_char = value.as_mut_ptr().cast();
        // SAFETY: the handle is live; librados writes no more bytes than the buffer holds,
        // including a NUL.
        check(unsafe { (self.0.api.rados_conf_get)(self.0.raw, option.as_ptr(), at, value.len()) }).ok()?;
        CStr::from_bytes_until_nul(&value).ok()?.to_str().ok().map(str::to_owned)
    }

    /// Connects.
    pub(in super::super) fn connect(self) -> Result<ClusterConnection, RadosCode> {
        // SAFETY: the handle is live and was not connected before.
        check(unsafe { (self.0.api.rados_connect)(self.0.raw) })?;
        Ok(ClusterConnection(self.0))
    }
}

/// A connected cluster handle.
pub(in super::super) struct ClusterConnection(ClusterHandle);

impl ClusterConnection {
    pub(super) fn api(&self) -> &'static Api {
        self.0.api
    }

    pub(super) fn raw(&self) -> Handle {
        self.0.raw
    }

    /// The number of this connection, unique in the cluster: the NNN of `client.NNN`.
    pub(in super::super) fn instance(&self) -> u64 {
        // SAFETY: the handle is live and connected.
        unsafe { (self.api().rados_get_instance_id)(self.raw()) }
    }

    /// Whether a pool with this number still exists.
    pub(in super::super) fn has_pool(&self, pool: i64) -> bool {
        let mut name = [0_u8; LONGEST_VALUE];
        let at: *mut c_char = name.as_mut_ptr().cast();
        // SAFETY: the handle is live; librados writes no more bytes than the buffer holds.
        let found = unsafe { (self.api().rados_pool_reverse_lookup)(self.raw(), pool, at, name.len()) };
        check(found) != Err(RadosCode::NO_ENTRY)
    }

    /// Puts the client at this address on the blocklist for `seconds`: storage daemons refuse its
    /// operations. Returns when this client has the new map, so all of its later operations come
    /// after the exclusion.
    pub(in super::super) fn blocklist(&self, address: &CStr, seconds: u32) -> Result<(), RadosCode> {
        let mut address = address.to_owned().into_bytes_with_nul();
        // SAFETY: the handle is live; the address ends in NUL, and is our copy in case librados
        // writes to it.
        check(unsafe { (self.api().rados_blocklist_add)(self.raw(), address.as_mut_ptr().cast(), seconds) })?;
        // SAFETY: the handle is live.
        check(unsafe { (self.api().rados_wait_for_latest_osdmap)(self.raw()) }).map(drop)
    }
}
