//! Watching an object, and notifying its watchers.

use super::super::error::RadosCode;
use super::context::IoContext;
use super::handle::check;
use super::symbols::Api;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// The most bytes of a notification's answer that are parsed.
const LONGEST_REPLY: usize = 1 << 20;

/// The data of the callbacks of a watch. librados holds a raw pointer to it until the watch is
/// over.
struct WatchContext {
    context: Arc<IoContext>,
    object: CString,
    on_lost: Box<dyn Fn(RadosCode) + Send + Sync>,
}

/// Answers a notification: this client is alive.
// SAFETY: only librados calls this; `argument` is the `WatchContext` that was passed to
// `rados_watch3`.
unsafe extern "C" fn on_notify(
    argument: *mut c_void,
    notify_id: u64,
    watch: u64,
    _notifier: u64,
    _data: *mut c_void,
    _len: usize,
) {
    // SAFETY: librados passes the pointer given to `rados_watch3`, which lives until the watch is
    // over.
    let watcher = unsafe { &*argument.cast::<WatchContext>() };
    let context = &watcher.context;
    // SAFETY: context and name are live; an empty answer may be null.
    let _nobody_to_tell = unsafe {
        (context.api().rados_notify_ack)(
            context.raw(),
            watcher.object.as_ptr(),
            notify_id,
            watch,
            ptr::null(),
            0,
        )
    };
}

/// Reports that the watch is lost.
// SAFETY: as above.
unsafe extern "C" fn lost(argument: *mut c_void, _watch: u64, error: c_int) {
    // SAFETY: as above.
    let watcher = unsafe { &*argument.cast::<WatchContext>() };
    (watcher.on_lost)(RadosCode(error));
}

/// A watch on an object. Notifications are answered while it lives.
pub(in super::super) struct ObjectWatch {
    watcher: *mut WatchContext,
    context: Arc<IoContext>,
    cookie: u64,
}

// SAFETY: the watcher is only ever read, and its parts are all `Send` and `Sync`.
unsafe impl Send for ObjectWatch {}

impl ObjectWatch {
    /// Watches an existing object. If this client is unreachable for `timeout` seconds, or the
    /// object is removed, the watch is lost and `on_lost` is called, which must neither block nor
    /// panic.
    pub(in super::super) fn new(
        context: &Arc<IoContext>,
        object: &CStr,
        timeout: u32,
        lost_call: Box<dyn Fn(RadosCode) + Send + Sync>,
    ) -> Result<ObjectWatch, RadosCode> {
        let watcher =
            WatchContext { context: context.clone(), object: object.to_owned(), on_lost: lost_call };
        let watcher = Box::into_raw(Box::new(watcher));
        let mut cookie = 0;
        // SAFETY: context and name are live; the watcher lives until no callback can come.
        let made = check(unsafe {
            (context.api().rados_watch3)(
                context.raw(),
                object.as_ptr(),
                &raw mut cookie,
                on_notify,
                Some(lost),
                timeout,
                watcher.cast(),
            )
        });
        match made {
            Ok(_) => Ok(ObjectWatch { watcher, context: context.clone(), cookie }),
            Err(code) => {
                // SAFETY: librados has dropped the watch, and must not be asked to drop it again.
                // No callback comes after the flush.
                unsafe { free(watcher, context) };
                Err(code)
            }
        }
    }
}

/// Frees the data of the callbacks of a watch.
///
/// # Safety
/// The watcher must come from `Box::into_raw`, and its watch must be over, so that librados starts
/// no more callbacks.
unsafe fn free(watcher: *mut WatchContext, context: &IoContext) {
    // SAFETY: the cluster is connected; the flush returns after all started callbacks, and then the
    // watcher is exclusively ours.
    unsafe {
        let _nothing_to_flush = (context.api().rados_watch_flush)(context.cluster().raw());
        drop(Box::from_raw(watcher));
    }
}

impl Drop for ObjectWatch {
    fn drop(&mut self) {
        let api: &Api = self.context.api();
        // SAFETY: context and watch are live, and the watch is ended once.
        unsafe {
            let _lost_already = (api.rados_unwatch2)(self.context.raw(), self.cookie);
            free(self.watcher, &self.context);
        }
    }
}

impl IoContext {
    /// Asks the watchers of an object to answer within `timeout_ms`. Returns the connections that
    /// answered.
    pub(in super::super) fn notify(&self, object: &CStr, timeout_ms: u64) -> Result<Vec<u64>, RadosCode> {
        let mut reply: *mut c_char = ptr::null_mut();
        let mut len = 0_usize;
        // SAFETY: context and name are live; an empty message may be null; `reply` and `len`
        // outlive the call.
        let result = check(unsafe {
            (self.api().rados_notify2)(
                self.raw(),
                object.as_ptr(),
                ptr::null(),
                0,
                timeout_ms,
                &raw mut reply,
                &raw mut len,
            )
        });
        let mut answered = None;
        if !reply.is_null() {
            // SAFETY: librados allocated `len` bytes at `reply`, which are ours until freed.
            unsafe {
                answered = Some(parse_acknowledgements(std::slice::from_raw_parts(
                    reply.cast(),
                    len.min(LONGEST_REPLY),
                )));
                (self.api().rados_buffer_free)(reply);
            }
        }
        match (result, answered) {
            // Some watchers did not answer; the reply lists the rest.
            (Ok(_) | Err(RadosCode::TIMED_OUT), Some(answered)) => Ok(answered),
            (Ok(_), None) => Ok(Vec::new()),
            // The notification itself failed: nothing is known about the watchers.
            (Err(code), _) => Err(code),
        }
    }
}

/// The connections that acknowledged a notification, parsed from the answer in the layout of
/// `librados.h`: a count (32 bits; all numbers little-endian), then for each its connection (64
/// bits), its watch (64), a length (32) and that number of bytes.
fn parse_acknowledgements(mut reply: &[u8]) -> Vec<u64> {
    fn word<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (word, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(*word)
    }
    let Some(count) = word(&mut reply).map(u32::from_le_bytes) else { return Vec::new() };
    let mut connections = Vec::new();
    for _ in 0..count {
        let Some(connection) = word(&mut reply).map(u64::from_le_bytes) else { break };
        let Some(_watch) = word::<8>(&mut reply) else { break };
        let Some(len) = word(&mut reply).map(u32::from_le_bytes) else { break };
        let Some(rest) = reply.get(len as usize..) else { break };
        reply = rest;
        connections.push(connection);
    }
    connections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_parsed_and_malformed_ones_ignored() {
        let mut reply = 2_u32.to_le_bytes().to_vec();
        for (connection, payload) in [(4123_u64, &b"me"[..]), (7, b"")] {
            reply.extend(connection.to_le_bytes());
            reply.extend(99_u64.to_le_bytes());
            reply.extend((payload.len() as u32).to_le_bytes());
            reply.extend(payload);
        }
        assert_eq!(parse_acknowledgements(&reply), [4123, 7]);
        assert_eq!(parse_acknowledgements(&reply[..reply.len() - 1]), [4123]);
        assert_eq!(parse_acknowledgements(&u32::MAX.to_le_bytes()), []);
        assert_eq!(parse_acknowledgements(&[]), []);
    }
}
