//! The functions of librados, loaded on first use, so that lacuna runs on systems without Ceph.

use super::handle::Handle;
use lacuna_contracts::{Error, Kind, Result};
use libloading::Library;
use parking_lot::Mutex;
use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::sync::OnceLock;

/// The soname of every librados since Ceph 0.5.
const LIBRARY: &str = "librados.so.2";

/// Called by librados when an operation completes.
// SAFETY: only a type; each call has its own SAFETY comment.
pub(super) type Callback = unsafe extern "C" fn(completion: Handle, argument: *mut c_void);
/// Called by librados for a notification on a watched object.
// SAFETY: only a type; each call has its own SAFETY comment.
pub(super) type WatchCallback = unsafe extern "C" fn(
    argument: *mut c_void,
    notify_id: u64,
    watch: u64,
    notifier: u64,
    data: *mut c_void,
    len: usize,
);
/// Called by librados when a watch is lost.
// SAFETY: only a type; each call has its own SAFETY comment.
pub(super) type WatchErrorCallback = unsafe extern "C" fn(argument: *mut c_void, watch: u64, error: c_int);

/// Declares functions as in `librados.h`, and looks them up, under an older name if needed.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)? $(, formerly $older:literal)?;)*) => {
        /// The functions of librados that this crate uses.
        pub(super) struct Api {
            // SAFETY: only types; each call has its own SAFETY comment.
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn find(library: &Library) -> std::result::Result<Api, libloading::Error> {
                Ok(Api {
                    // SAFETY: the type is that of the function in librados.h.
                    $($name: unsafe { symbol(library, &[stringify!($name) $(, $older)?])? },)*
                })
            }
        }
    };
}

functions! {
    rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados_conf_get(Handle, *const c_char, *mut c_char, usize) -> c_int;
    rados_connect(Handle) -> c_int;
    rados_shutdown(Handle);
    rados_get_instance_id(Handle) -> u64;
    rados_wait_for_latest_osdmap(Handle) -> c_int;
    rados_pool_reverse_lookup(Handle, i64, *mut c_char, usize) -> c_int;
    rados_blocklist_add(Handle, *mut c_char, u32) -> c_int, formerly "rados_blacklist_add";
    rados_watch_flush(Handle) -> c_int;
    rados_buffer_free(*mut c_char);

    rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_destroy(Handle);
    rados_ioctx_get_id(Handle) -> i64;
    rados_ioctx_pool_requires_alignment2(Handle, *mut c_int) -> c_int;
    rados_ioctx_set_namespace(Handle, *const c_char);
    rados_ioctx_snap_set_read(Handle, u64);
    rados_ioctx_selfmanaged_snap_create(Handle, *mut u64) -> c_int;
    rados_ioctx_selfmanaged_snap_remove(Handle, u64) -> c_int;
    rados_ioctx_selfmanaged_snap_rollback(Handle, *const c_char, u64) -> c_int;
    rados_ioctx_selfmanaged_snap_set_write_ctx(Handle, u64, *mut u64, c_int) -> c_int;
    rados_set_pool_full_try(Handle), formerly "rados_set_osdmap_full_try";

    rados_nobjects_list_open(Handle, *mut Handle) -> c_int;
    rados_nobjects_list_next2(
        Handle, *mut *const c_char, *mut *const c_char, *mut *const c_char, *mut usize, *mut usize, *mut usize
    ) -> c_int;
    rados_nobjects_list_close(Handle);

    rados_aio_create_completion2(*mut c_void, Option<Callback>, *mut Handle) -> c_int;
    rados_aio_wait_for_complete(Handle) -> c_int;
    rados_aio_get_return_value(Handle) -> c_int;
    rados_aio_get_version(Handle) -> u64;
    rados_aio_release(Handle);

    rados_create_write_op() -> Handle;
    rados_release_write_op(Handle);
    rados_write_op_set_flags(Handle, c_int);
    rados_write_op_assert_version(Handle, u64);
    rados_write_op_cmpext(Handle, *const c_char, usize, u64, *mut c_int);
    rados_write_op_cmpxattr(Handle, *const c_char, u8, *const c_char, usize);
    rados_write_op_setxattr(Handle, *const c_char, *const c_char, usize);
    rados_write_op_create(Handle, c_int, *const c_char);
    rados_write_op_write(Handle, *const c_char, usize, u64);
    rados_write_op_zero(Handle, u64, u64);
    rados_write_op_truncate(Handle, u64);
    rados_write_op_remove(Handle);
    rados_write_op_omap_set2(
        Handle, *const *const c_char, *const *const c_char, *const usize, *const usize, usize
    );
    rados_write_op_omap_rm_keys2(Handle, *const *const c_char, *const usize, usize);
    rados_write_op_omap_rm_range2(Handle, *const c_char, usize, *const c_char, usize);
    rados_aio_write_op_operate(Handle, Handle, Handle, *const c_char, *mut c_void, c_int) -> c_int;

    rados_create_read_op() -> Handle;
    rados_release_read_op(Handle);
    rados_read_op_assert_exists(Handle);
    rados_read_op_assert_version(Handle, u64);
    rados_read_op_read(Handle, u64, usize, *mut c_char, *mut usize, *mut c_int);
    rados_read_op_omap_get_vals2(
        Handle, *const c_char, *const c_char, u64, *mut Handle, *mut c_uchar, *mut c_int
    );
    rados_read_op_omap_get_vals_by_keys2(
        Handle, *const *const c_char, usize, *const usize, *mut Handle, *mut c_int
    );
    rados_omap_get_next2(Handle, *mut *mut c_char, *mut *mut c_char, *mut usize, *mut usize) -> c_int;
    rados_omap_get_end(Handle);
    rados_aio_read_op_operate(Handle, Handle, Handle, *const c_char, c_int) -> c_int;

    rados_getxattr(Handle, *const c_char, *const c_char, *mut c_char, usize) -> c_int;
    rados_lock_exclusive(
        Handle, *const c_char, *const c_char, *const c_char, *const c_char, *mut c_void, u8
    ) -> c_int;
    rados_unlock(Handle, *const c_char, *const c_char, *const c_char) -> c_int;
    rados_list_lockers(
        Handle, *const c_char, *const c_char, *mut c_int, *mut c_char, *mut usize,
        *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize
    ) -> isize;
    rados_break_lock(Handle, *const c_char, *const c_char, *const c_char, *const c_char) -> c_int;
    rados_watch3(
        Handle, *const c_char, *mut u64, WatchCallback, Option<WatchErrorCallback>, u32, *mut c_void
    ) -> c_int;
    rados_unwatch2(Handle, u64) -> c_int;
    rados_notify2(Handle, *const c_char, *const c_char, c_int, u64, *mut *mut c_char, *mut usize) -> c_int;
    rados_notify_ack(Handle, *const c_char, u64, u64, *const c_char, c_int) -> c_int;
}

/// The first of these names that the library has.
///
/// # Safety
/// `T` must be the type of the function.
unsafe fn symbol<T: Copy>(library: &Library, names: &[&str]) -> std::result::Result<T, libloading::Error> {
    let mut last = None;
    for name in names {
        // SAFETY: the caller vouches for the type.
        match unsafe { library.get::<T>(name.as_bytes()) } {
            Ok(found) => return Ok(*found),
            Err(e) => last = Some(e),
        }
    }
    Err(last.expect("a function has a name"))
}

/// librados, loaded once and never unloaded, because its threads outlive all handles. A failure is
/// not cached.
pub(super) fn api() -> Result<&'static Api> {
    static API: OnceLock<Api> = OnceLock::new();
    static LOADING: Mutex<()> = Mutex::new(());
    if let Some(api) = API.get() {
        return Ok(api);
    }
    let _one_at_a_time = LOADING.lock();
    if let Some(api) = API.get() {
        return Ok(api);
    }
    // SAFETY: the initialisers of librados have no preconditions.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|e| {
        Error::new(Kind::NotFound, format!("cannot load Ceph's client library {LIBRARY}"))
            .found(e.to_string())
            .hint("install it (Debian and Ubuntu: `apt install librados2`, Fedora: `dnf install librados2`)")
    })?;
    let api = Api::find(&library).map_err(|e| {
        Error::new(Kind::NotFound, format!("cannot use Ceph's client library {LIBRARY}"))
            .found(e.to_string())
            .expected("librados of Ceph 16 (Pacific) or later")
            .hint("install a newer librados2")
    })?;
    std::mem::forget(library);
    Ok(API.get_or_init(|| api))
}
