//! The code that needs `unsafe`: page-aligned memory, descriptors inherited from a service manager,
//! and the number of times that a thread has slept.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// The unit of allocation.
pub(crate) const PAGE: usize = 4096;

/// Page-aligned bytes, so that media may read and write them directly. Wiped on drop.
pub(crate) struct PageBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory alone, as a `Box<[u8]>` does.
unsafe impl Send for PageBuffer {}

impl PageBuffer {
    /// A buffer of at least `len` bytes, all zero; `None` when the system has no memory for it.
    pub(crate) fn try_new(len: usize) -> Option<Self> {
        let layout = Self::layout(len.max(1))?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        Some(PageBuffer { start: NonNull::new(start)?, len: layout.size() })
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len.checked_next_multiple_of(PAGE)?, PAGE).ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl std::ops::Deref for PageBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` bytes, initialised at allocation and owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        lacuna_contracts::wipe(self);
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: `start` came from `alloc_zeroed` with this very layout: `len` is already
            // rounded.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

/// The number of times that the calling thread gave up the processor to wait (voluntary context
/// switches).
pub(crate) fn times_slept() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is of the right size, and all zeros are a valid value of it.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}

/// The result of `look` for each open descriptor among the `count` descriptors that begin at 3.
pub(crate) fn look_at_inherited<R>(count: RawFd, look: impl Fn(BorrowedFd) -> R) -> Vec<R> {
    if INHERITED_TAKEN.load(Ordering::SeqCst) {
        return Vec::new();
    }
    (3..3 + count)
        .filter(|fd| {
            // SAFETY: F_GETFD touches no memory; on a closed descriptor it only fails.
            unsafe { libc::fcntl(*fd, libc::F_GETFD) >= 0 }
        })
        .map(|fd| {
            // SAFETY: the descriptor is open and was passed to this process; it is not closed,
            // because `inherited` has not taken it.
            look(unsafe { BorrowedFd::borrow_raw(fd) })
        })
        .collect()
}

static INHERITED_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the `count` descriptors that begin at 3, which the service manager passed to this process.
/// They can be taken once: a second call returns none.
pub(crate) fn inherited(count: RawFd) -> Vec<OwnedFd> {
    if INHERITED_TAKEN.swap(true, Ordering::SeqCst) {
        return Vec::new();
    }
    (3..3 + count)
        .filter(|fd| {
            // SAFETY: F_SETFD touches no memory; on a closed descriptor it only fails.
            unsafe { libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC) == 0 }
        })
        .map(|fd| {
            // SAFETY: the descriptor is open, LISTEN_PID names this process, and it is taken only
            // once.
            unsafe { OwnedFd::from_raw_fd(fd) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero() {
        let mut buffer = PageBuffer::try_new(5000).unwrap();
        assert_eq!(buffer.len(), 8192);
        assert_eq!(buffer.as_ptr() as usize % PAGE, 0);
        assert!(buffer.iter().all(|b| *b == 0));
        buffer[8191] = 1;
        assert!(PageBuffer::try_new(usize::MAX).is_none());
    }
}
