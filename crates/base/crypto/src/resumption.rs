//! Detects that this process runs as a copy: in a virtual machine that was resumed from a snapshot,
//! or after a restore from its own checkpoint. Another copy may have drawn the same random bytes.
//!
//! Linux has no file with the generation of a virtual machine (vmgenid). The vmgenid driver rekeys
//! the kernel's generator, so fresh bytes from the kernel differ between copies, and it sends an
//! event that cannot be queried later. This module therefore checks whether the boot id changed,
//! and whether the wall clock jumped relative to the time since boot: the wall clock of a stopped
//! copy is set when the copy is resumed.

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// A jump of the wall clock by this many nanoseconds or more is not drift.
const JUMP: i64 = 50_000_000;
/// Nanoseconds between two reads of the boot id, which cost a system call each.
const BOOT_ID_INTERVAL: i64 = 1_000_000_000;
/// The kernel's file with the boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

fn nanoseconds(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec)
}

/// The time in nanoseconds by a clock that is cheap to read.
pub(crate) fn coarse_now() -> i64 {
    nanoseconds(ClockId::MonotonicCoarse)
}

/// The values that stay the same while one machine runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BootFingerprint {
    /// `None` if the kernel does not provide it.
    boot_id: Option<String>,
    /// Nanoseconds from the boot clock to the wall clock.
    offset: i64,
}

impl BootFingerprint {
    /// Whether this can be the machine of `before`, running on.
    fn continues(&self, before: &BootFingerprint) -> bool {
        self.boot_id == before.boot_id && self.offset.wrapping_sub(before.offset).unsigned_abs() < JUMP as u64
    }
}

fn boot_id() -> Option<String> {
    std::fs::read_to_string(BOOT_ID).ok()
}

/// Counts the resumptions that it detects.
pub(crate) struct ResumptionDetector(Mutex<ResumptionState>);

struct ResumptionState {
    fingerprint: BootFingerprint,
    boot_id_read_at: i64,
    count: u64,
}

impl ResumptionDetector {
    pub(crate) fn new() -> Self {
        let boot_looked = nanoseconds(ClockId::Boottime);
        let offset = nanoseconds(ClockId::Realtime).wrapping_sub(boot_looked);
        ResumptionDetector(Mutex::new(ResumptionState {
            fingerprint: BootFingerprint { boot_id: boot_id(), offset },
            boot_id_read_at: boot_looked,
            count: 0,
        }))
    }

    /// The number of resumptions so far, and whether this call detected one.
    pub(crate) fn check(&self) -> (u64, bool) {
        let mut seen = self.0.lock();
        let since_boot = nanoseconds(ClockId::Boottime);
        let mut now = seen.fingerprint.clone();
        now.offset = nanoseconds(ClockId::Realtime).wrapping_sub(since_boot);
        if since_boot.wrapping_sub(seen.boot_id_read_at).unsigned_abs() >= BOOT_ID_INTERVAL as u64 {
            (now.boot_id, seen.boot_id_read_at) = (boot_id(), since_boot);
        }
        let resumed = !now.continues(&seen.fingerprint);
        seen.fingerprint = now;
        seen.count += u64::from(resumed);
        (seen.count, resumed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_boot_id_or_a_clock_jump_is_a_resumption_and_drift_is_none() {
        let machine = |id: &str, offset| BootFingerprint { boot_id: Some(id.into()), offset };
        let before = machine("a", 1 << 60);
        assert!(machine("a", (1 << 60) + JUMP / 2).continues(&before));
        assert!(!machine("b", 1 << 60).continues(&before));
        assert!(!machine("a", (1 << 60) + JUMP).continues(&before));
        assert!(!machine("a", (1 << 60) - JUMP).continues(&before));
        assert!(!BootFingerprint { boot_id: None, offset: 1 << 60 }.continues(&before));
    }
}
