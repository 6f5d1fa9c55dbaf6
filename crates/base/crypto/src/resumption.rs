//! Whether this process goes on as a copy: in a virtual machine that was resumed from a snapshot,
//! or restored from a checkpoint of its own. What it drew before, another copy may have drawn too.
//!
//! Linux has no file that tells the generation of a virtual machine (vmgenid). Its driver keys the
//! kernel's generator anew, so fresh bytes from there differ between copies; and it sends an event,
//! which nothing can be asked for later. What can be asked is whether the boot id is another, and
//! whether the clock of the wall jumped against the time since boot, as it does when a copy that
//! was stopped is told the time.

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds by which the clock of the wall jumps and does not only drift.
const JUMP: i64 = 50_000_000;
/// Nanoseconds between two looks at the boot id, which take a system call each.
const BOOT_LOOK: i64 = 1_000_000_000;
/// Where the kernel tells the boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

fn nanoseconds(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec)
}

/// Nanoseconds of a clock that costs next to nothing to look at.
pub(crate) fn about_now() -> i64 {
    nanoseconds(ClockId::MonotonicCoarse)
}

/// The signs of a machine that ran on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Machine {
    /// None where the kernel does not tell.
    boot_id: Option<String>,
    /// Nanoseconds from the boot clock to the clock of the wall.
    offset: i64,
}

impl Machine {
    /// Whether this can be the same machine, which ran on.
    fn ran_on_from(&self, before: &Machine) -> bool {
        self.boot_id == before.boot_id && self.offset.wrapping_sub(before.offset).unsigned_abs() < JUMP as u64
    }
}

fn boot_id() -> Option<String> {
    std::fs::read_to_string(BOOT_ID).ok()
}

/// Looks again and again.
pub(crate) struct ResumptionWatch(Mutex<Seen>);

struct Seen {
    machine: Machine,
    boot_looked: i64,
    times: u64,
}

impl ResumptionWatch {
    pub(crate) fn new() -> Self {
        let boot_looked = nanoseconds(ClockId::Boottime);
        let offset = nanoseconds(ClockId::Realtime).wrapping_sub(boot_looked);
        ResumptionWatch(Mutex::new(Seen {
            machine: Machine { boot_id: boot_id(), offset },
            boot_looked,
            times: 0,
        }))
    }

    /// How often it was noticed so far, and whether it was now.
    pub(crate) fn look(&self) -> (u64, bool) {
        let mut seen = self.0.lock();
        let since_boot = nanoseconds(ClockId::Boottime);
        let mut now = seen.machine.clone();
        now.offset = nanoseconds(ClockId::Realtime).wrapping_sub(since_boot);
        if since_boot.wrapping_sub(seen.boot_looked).unsigned_abs() >= BOOT_LOOK as u64 {
            (now.boot_id, seen.boot_looked) = (boot_id(), since_boot);
        }
        let resumed = !now.ran_on_from(&seen.machine);
        seen.machine = now;
        seen.times += u64::from(resumed);
        (seen.times, resumed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_boot_and_a_jump_of_the_clock_are_noticed_and_drift_is_not() {
        let machine = |id: &str, offset| Machine { boot_id: Some(id.into()), offset };
        let before = machine("a", 1 << 60);
        assert!(machine("a", (1 << 60) + JUMP / 2).ran_on_from(&before));
        assert!(!machine("b", 1 << 60).ran_on_from(&before));
        assert!(!machine("a", (1 << 60) + JUMP).ran_on_from(&before));
        assert!(!machine("a", (1 << 60) - JUMP).ran_on_from(&before));
        assert!(!Machine { boot_id: None, offset: 1 << 60 }.ran_on_from(&before));
    }
}
