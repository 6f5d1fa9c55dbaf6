//! Watching an object, and notifying those who do.

use super::super::error::Code;
use super::context::IoContext;
use super::handle::check;
use super::symbols::Api;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// The longest answer to a notification that is looked at.
const LONGEST_REPLY: usize = 1 << 20;

/// What the callbacks of a watch need. Reached by librados through a raw pointer until the watch is
/// over.
struct Watcher {
    context: Arc<IoContext>,
    object: CString,
    lost: Box<dyn Fn(Code) + Send + Sync>,
}

/// Answers a notification: this client lives.
// SAFETY: of the caller, which is librados alone: `argument` is the watcher that the watch was made
// with.
unsafe extern "C" fn notified(
    argument: *mut c_void,
    notify_id: u64,
    watch: u64,
    _notifier: u64,
    _data: *mut c_void,
    _len: usize,
) {
    // SAFETY: librados passes what the watch was made with, which lives until the watch is over.
    let watcher = unsafe { &*argument.cast::<Watcher>() };
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

/// Passes on that the watch is lost.
// SAFETY: of the caller, as above.
unsafe extern "C" fn lost(argument: *mut c_void, _watch: u64, error: c_int) {
    // SAFETY: as above.
    let watcher = unsafe { &*argument.cast::<Watcher>() };
    (watcher.lost)(Code(error));
}

/// A watch on an object: notifications are answered as long as it lives.
pub(in super::super) struct Watch {
    watcher: *mut Watcher,
    context: Arc<IoContext>,
    cookie: u64,
}

// SAFETY: the watcher is only ever read, and its parts are all `Send` and `Sync`.
unsafe impl Send for Watch {}

impl Watch {
    /// Watches an object that is there. If this client cannot be reached for `timeout` seconds, or
    /// the object goes, the watch is lost: then `lost` is called, which must neither block nor
    /// panic.
    pub(in super::super) fn new(
        context: &Arc<IoContext>,
        object: &CStr,
        timeout: u32,
        lost_call: Box<dyn Fn(Code) + Send + Sync>,
    ) -> Result<Watch, Code> {
        let watcher = Watcher { context: context.clone(), object: object.to_owned(), lost: lost_call };
        let watcher = Box::into_raw(Box::new(watcher));
        let mut cookie = 0;
        // SAFETY: context and name are live; the watcher lives until no callback can come any more.
        let made = check(unsafe {
            (context.api().rados_watch3)(
                context.raw(),
                object.as_ptr(),
                &raw mut cookie,
                notified,
                Some(lost),
                timeout,
                watcher.cast(),
            )
        });
        match made {
            Ok(_) => Ok(Watch { watcher, context: context.clone(), cookie }),
            Err(code) => {
                // SAFETY: librados has forgotten the watch, and must not be asked to do so again.
                // Of its callbacks none comes any more once they are flushed.
                unsafe { free(watcher, context) };
                Err(code)
            }
        }
    }
}

/// Frees what the callbacks of a watch needed.
///
/// # Safety
/// The watcher must come from `Box::into_raw`, and its watch must be over, so that librados starts
/// no callback any more.
unsafe fn free(watcher: *mut Watcher, context: &IoContext) {
    // SAFETY: the cluster is connected; those callbacks that were started are over when this
    // returns, and then the watcher is ours alone.
    unsafe {
        let _nothing_to_flush = (context.api().rados_watch_flush)(context.cluster().raw());
        drop(Box::from_raw(watcher));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let api: &Api = self.context.api();
        // SAFETY: context and watch are live, and the watch is taken back once.
        unsafe {
            let _lost_already = (api.rados_unwatch2)(self.context.raw(), self.cookie);
            free(self.watcher, &self.context);
        }
    }
}

impl IoContext {
    /// Asks those who watch an object to answer within `timeout_ms`: the connections of those who
    /// did.
    pub(in super::super) fn notify(&self, object: &CStr, timeout_ms: u64) -> Result<Vec<u64>, Code> {
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
            // SAFETY: librados made `len` bytes at `reply`, which are ours until we free them.
            unsafe {
                answered =
                    Some(acknowledged(std::slice::from_raw_parts(reply.cast(), len.min(LONGEST_REPLY))));
                (self.api().rados_buffer_free)(reply);
            }
        }
        match (result, answered) {
            // Some did not answer; those who did are listed all the same.
            (Ok(_) | Err(Code::TIMED_OUT), Some(answered)) => Ok(answered),
            (Ok(_), None) => Ok(Vec::new()),
            // The question itself did not get through: nothing is known of those who watch.
            (Err(code), _) => Err(code),
        }
    }
}

/// The connections that acknowledged a notification, from the answer as `librados.h` lays it out: a
/// count (32 bits, little-endian, as all here), then for each its connection (64), its watch (64),
/// a length (32) and as many bytes.
fn acknowledged(mut reply: &[u8]) -> Vec<u64> {
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
    fn answers_are_read_and_nonsense_is_not_believed() {
        let mut reply = 2_u32.to_le_bytes().to_vec();
        for (connection, payload) in [(4123_u64, &b"me"[..]), (7, b"")] {
            reply.extend(connection.to_le_bytes());
            reply.extend(99_u64.to_le_bytes());
            reply.extend((payload.len() as u32).to_le_bytes());
            reply.extend(payload);
        }
        assert_eq!(acknowledged(&reply), [4123, 7]);
        assert_eq!(acknowledged(&reply[..reply.len() - 1]), [4123]);
        assert_eq!(acknowledged(&u32::MAX.to_le_bytes()), []);
        assert_eq!(acknowledged(&[]), []);
    }
}
