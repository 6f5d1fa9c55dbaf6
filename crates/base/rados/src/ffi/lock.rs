//! The lock class: advisory locks on objects, kept by the cluster.

use super::super::error::RadosCode;
use super::context::IoContext;
use super::handle::check;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

/// The initial and the maximum size, in bytes, of each list of strings that describes the lockers
/// of an object.
const FIRST_LEN: usize = 1 << 10;
const MOST_LEN: usize = 1 << 20;

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Locker {
    /// The client, as `client.NNN`.
    pub(in super::super) client: CString,
    /// Distinguishes the locks of one client.
    pub(in super::super) cookie: CString,
    /// The address of the client, in the form that the blocklist takes.
    pub(in super::super) address: CString,
}

impl Locker {
    /// The number of the client's connection.
    pub(in super::super) fn instance(&self) -> Option<u64> {
        self.client.to_str().ok()?.strip_prefix("client.")?.parse().ok()
    }
}

/// Strings that each end in NUL.
fn strings(bytes: &[u8]) -> impl Iterator<Item = CString> {
    bytes.split_inclusive(|&b| b == 0).filter_map(|s| Some(CStr::from_bytes_with_nul(s).ok()?.to_owned()))
}

impl IoContext {
    /// Takes a lock that never expires; fails with [`RadosCode::BUSY`] if another client has it.
    /// Creates the object if needed.
    pub(in super::super) fn lock(
        &self,
        object: &CStr,
        lock: &CStr,
        cookie: &CStr,
        about: &CStr,
    ) -> Result<(), RadosCode> {
        // SAFETY: the context is live; the strings end in NUL; a null duration means no expiry.
        check(unsafe {
            (self.api().rados_lock_exclusive)(
                self.raw(),
                object.as_ptr(),
                lock.as_ptr(),
                cookie.as_ptr(),
                about.as_ptr(),
                ptr::null_mut(),
                0,
            )
        })
        .map(drop)
    }

    /// Releases a lock.
    pub(in super::super) fn unlock(
        &self,
        object: &CStr,
        lock: &CStr,
        cookie: &CStr,
    ) -> Result<(), RadosCode> {
        // SAFETY: the context is live; the strings end in NUL.
        check(unsafe {
            (self.api().rados_unlock)(self.raw(), object.as_ptr(), lock.as_ptr(), cookie.as_ptr())
        })
        .map(drop)
    }

    /// Takes a lock away from its holder.
    pub(in super::super) fn break_lock(
        &self,
        object: &CStr,
        lock: &CStr,
        of: &Locker,
    ) -> Result<(), RadosCode> {
        // SAFETY: the context is live; the strings end in NUL.
        check(unsafe {
            (self.api().rados_break_lock)(
                self.raw(),
                object.as_ptr(),
                lock.as_ptr(),
                of.client.as_ptr(),
                of.cookie.as_ptr(),
            )
        })
        .map(drop)
    }

    /// The holders of a lock.
    pub(in super::super) fn lockers(&self, object: &CStr, lock: &CStr) -> Result<Vec<Locker>, RadosCode> {
        let mut len = FIRST_LEN;
        loop {
            match self.lockers_within(object, lock, len) {
                Err(RadosCode::RANGE) if len < MOST_LEN => len *= 4,
                Err(RadosCode::NO_ENTRY) => return Ok(Vec::new()),
                result => return result,
            }
        }
    }

    fn lockers_within(&self, object: &CStr, lock: &CStr, len: usize) -> Result<Vec<Locker>, RadosCode> {
        let mut exclusive: c_int = 0;
        let mut texts: [Vec<u8>; 4] = std::array::from_fn(|_| vec![0; len]);
        let mut lens = [len; 4];
        let [at_tag, at_client, at_cookie, at_address] =
            texts.each_mut().map(|text| text.as_mut_ptr().cast::<c_char>());
        let [tag_len, client_len, cookie_len, address_len] = &mut lens;
        // SAFETY: the context is live; librados writes to each buffer no more bytes than its
        // length, and sets the length to the bytes written or needed.
        let found = unsafe {
            (self.api().rados_list_lockers)(
                self.raw(),
                object.as_ptr(),
                lock.as_ptr(),
                &raw mut exclusive,
                at_tag,
                tag_len,
                at_client,
                client_len,
                at_cookie,
                cookie_len,
                at_address,
                address_len,
            )
        };
        let count = check(c_int::try_from(found).map_err(|_| RadosCode::INVALID)?)? as usize;
        let [_, mut clients, mut cookies, mut addresses] =
            texts.each_ref().map(|text| strings(text)).map(|all| all.take(count));
        let lockers = std::iter::from_fn(|| {
            Some(Locker { client: clients.next()?, cookie: cookies.next()?, address: addresses.next()? })
        });
        Ok(lockers.collect())
    }
}
