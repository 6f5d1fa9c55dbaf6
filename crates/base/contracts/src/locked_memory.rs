//! Memory for secrets only: separate pages, locked so that they never reach swap, and excluded from
//! core dumps.
//!
//! Invariants:
//! - A page is locked when it is mapped and stays locked until the process ends (for large memory,
//!   until it is unmapped): dropping another secret on the same page does not unlock it.
//! - Memory is zero when it is handed out, and zeroed before it is handed out again.
//! - Locks do not survive a fork: the first small allocation in the child locks the shared pages
//!   again. Large memory stays unlocked in the child.
//!
//! Locking is best-effort (`RLIMIT_MEMLOCK`): if the system refuses, the memory is used unlocked.
#![allow(unsafe_code)]

use parking_lot::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use zeroize::Zeroize;

const PAGE: usize = 4096;
/// Bytes of a slot in a shared page. The longest key has 64 bytes.
const SLOT: usize = 64;

/// Bytes of a secret, zeroed on drop.
pub(crate) struct LockedMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value alone owns the memory, like a `Box<[u8]>`.
unsafe impl Send for LockedMemory {}
// SAFETY: as for `Send`; a shared reference gives only shared access.
unsafe impl Sync for LockedMemory {}

/// The pages that are divided into slots.
struct Slots {
    /// Addresses of the pages, to lock them again after a fork.
    pages: Vec<usize>,
    /// Addresses of the free slots, which are all zero.
    free: Vec<usize>,
    /// The process that has locked the pages.
    process: u32,
}

static SLOTS: Mutex<Slots> = Mutex::new(Slots { pages: Vec::new(), free: Vec::new(), process: 0 });

fn slots() -> MutexGuard<'static, Slots> {
    SLOTS.lock()
}

impl Slots {
    fn take(&mut self) -> NonNull<u8> {
        let process = std::process::id();
        if self.process != process {
            self.process = process;
            self.pages.iter().for_each(|page| lock(*page as *const u8, PAGE));
        }
        if self.free.is_empty() {
            let page = map(PAGE).as_ptr() as usize;
            self.pages.push(page);
            self.free.extend((0..PAGE / SLOT).map(|slot| page + slot * SLOT));
        }
        let slot = self.free.pop().expect("a page was just added") as *mut u8;
        NonNull::new(slot).expect("no page lies at address 0")
    }
}

impl LockedMemory {
    /// `len` zero bytes.
    pub(crate) fn zeroed(len: usize) -> LockedMemory {
        let start = if len <= SLOT { slots().take() } else { map(len) };
        LockedMemory { start, len }
    }
}

impl Deref for LockedMemory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes starting at `start` are mapped, initialised, and owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for LockedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        self.zeroize();
        if self.len <= SLOT {
            return slots().free.push(self.start.as_ptr() as usize);
        }
        // SAFETY: `map` returned exactly these pages for this value, and nothing refers to them any
        // more.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.len.next_multiple_of(PAGE));
        }
    }
}

/// Maps new pages, locked and zero.
fn map(len: usize) -> NonNull<u8> {
    let len = len.next_multiple_of(PAGE);
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the system chooses touches no memory in use.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        let layout =
            std::alloc::Layout::from_size_align(len, PAGE).expect("a length that the system refused");
        std::alloc::handle_alloc_error(layout);
    }
    // SAFETY: the advice concerns the pages just mapped, and changes none of their bytes.
    unsafe {
        libc::madvise(start, len, libc::MADV_DONTDUMP);
    }
    lock(start.cast(), len);
    NonNull::new(start.cast()).expect("a mapping never starts at address 0")
}

fn lock(start: *const u8, len: usize) {
    // SAFETY: mlock neither reads nor writes the memory; a bad range only returns an error.
    unsafe {
        libc::mlock(start.cast(), len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmLck:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn dropping_another_secret_does_not_unlock_the_page() {
        let kept = LockedMemory::zeroed(32);
        if locked_kib() == 0 {
            eprintln!("skipped: the system locks no memory for this process");
            return;
        }
        drop(LockedMemory::zeroed(32));
        drop(LockedMemory::zeroed(3 * PAGE));
        assert!(locked_kib() >= 4);
        assert!(kept.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn memory_is_given_out_zeroed_and_never_twice() {
        for len in [1, 32, SLOT, SLOT + 1, 3 * PAGE] {
            let mut all: Vec<LockedMemory> = (0..200).map(|_| LockedMemory::zeroed(len)).collect();
            for (number, one) in all.iter_mut().enumerate() {
                assert!(one.len() == len && one.iter().all(|byte| *byte == 0));
                one.fill(number as u8);
            }
            assert!(all.iter().enumerate().all(|(number, one)| one.iter().all(|byte| *byte == number as u8)));
        }
    }
}
