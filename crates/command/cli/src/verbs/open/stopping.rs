//! The end of the mounts of a disk after a signal.

use crate::terminal::console;
use crate::verbs::serve::settling::Settling;
use lacuna_fuse::{MountedDisk, Stopper};
use lacuna_storage::{Disk, OpenDisk, Pace};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Two pauses of this length follow the cover of a closing after a signal, on every disk with
/// levels. During the first one, deeper levels still wait for more cover. At its end they drop
/// their pending data, all at once (except on a terminal, where closing waits for it), and are
/// unmounted during the second one, while level 0 is still open.
const PAUSE: Duration = Duration::from_secs(1);
/// How long deeper levels still drop pending data after that.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// A mounted level that a signal ends.
pub(crate) struct StoppedLevel {
    number: u64,
    stopper: Stopper,
    is_closing: Box<dyn Fn() -> bool + Send>,
}

impl StoppedLevel {
    /// The level with this number, as it is mounted.
    pub(crate) fn of(number: u64, mounted: &MountedDisk) -> Self {
        StoppedLevel { number, stopper: mounted.stopper(), is_closing: Box::new(mounted.closing()) }
    }
}

/// Ends all mounted levels, level 0 when the cover of the closing has settled (deniability
/// contract), whether or not it is mounted. As with `lacuna close`, pending data of closing deeper
/// levels is waited for only on a terminal. `covering` is set until level 0 is asked to end, so
/// that the service manager extends its timeout in the same way on every disk.
pub(crate) fn stop_all(
    levels: &[StoppedLevel],
    disk: &Weak<OpenDisk>,
    settling: &Settling,
    covering: &AtomicBool,
) {
    let begun = settling.begin();
    let (public, deeper): (Vec<_>, Vec<_>) = levels.iter().partition(|level| level.number == 0);
    deeper.iter().for_each(|level| level.stopper.request());
    let Some(disk) = disk.upgrade() else { return };
    covering.store(true, Ordering::Relaxed);
    // Closing reports the same failure.
    let _told = disk.cover_closing(Pace::Even);
    let pause = if disk.has_levels() && !disk.is_read_only() { PAUSE } else { Duration::ZERO };
    let settled = Instant::now() + 2 * pause;
    begun.settles_at(settled);
    thread::sleep(pause);
    let closing = deeper.iter().filter(|level| !console::is_terminal() && (level.is_closing)());
    let given_up: Vec<u64> = closing.map(|level| level.number).collect();
    given_up.iter().for_each(|level| disk.give_up(*level, true));
    // Giving up waits for the locks of deeper levels, and level 0 must not end later for it.
    thread::sleep(settled.saturating_duration_since(Instant::now()));
    public.iter().for_each(|level| level.stopper.request());
    covering.store(false, Ordering::Relaxed);
    if !given_up.is_empty() {
        thread::sleep(GIVEN_UP);
        given_up.iter().for_each(|level| disk.give_up(*level, false));
    }
}
