//! The faults of the medium in a session, and the failures that they excuse.

use lacuna_medium::Medium;
use lacuna_sim::{CrashMedium, Fault, FaultMedium, Lies, OpKind, Rng, SWEPT, Slow, refuses};
use std::sync::Arc;

/// Approximate number of medium operations of an opening.
const OPENING: u64 = 40;
/// Approximate number of syncs of a session.
const SYNCS: u64 = 16;
/// The number of lies in a thousand reads.
const OFTEN: [u64; 5] = [10, 40, 120, 300, 600];

/// The faults of the medium in one session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hardship {
    /// The number of operations before the power is cut.
    cut: Option<u64>,
    refusal: Option<Refusal>,
    /// The number of lies in a thousand reads.
    lies: Option<u64>,
    seed: u64,
}

/// The `nth` operation of a kind, counted from 1, fails with this errno.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    op: OpKind,
    nth: u64,
    errno: i32,
}

/// The reason that excuses a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// None: no fault occurred, so the request must succeed.
    Nothing,
    /// One call was refused, or one read failed: only requests that needed it may fail.
    Refusal,
    /// The medium failed or the power was cut: the disk may have stopped.
    Failure,
    /// The medium lies.
    Lies,
}

impl Hardship {
    /// Draws the faults of a session with about `operations` medium operations. A session may have
    /// none.
    pub(crate) fn draw(rng: &mut Rng, operations: u64) -> Hardship {
        let cut = rng.chance(2, 5).then(|| {
            let most = if rng.chance(1, 4) { OPENING } else { operations };
            rng.below(most)
        });
        let refusal = rng.chance(1, 2).then(|| Refusal::draw(rng, operations));
        let lies = rng.chance(1, 4).then(|| *rng.pick(&OFTEN));
        Hardship { cut, refusal, lies, seed: rng.next_u64() >> 8 }
    }

    /// Whether the medium lies.
    pub(crate) fn lies(self) -> bool {
        self.lies.is_some()
    }
}

impl Refusal {
    fn draw(rng: &mut Rng, operations: u64) -> Refusal {
        let op = match rng.below(8) {
            0 => OpKind::Read,
            1 | 2 => OpKind::Sync,
            _ => OpKind::Write,
        };
        // Sessions often end early, so prefer small numbers.
        let most = if op == OpKind::Sync { SYNCS } else { operations >> rng.below(6) };
        Refusal { op, nth: 1 + rng.below(most), errno: *rng.pick(&SWEPT) }
    }
}

/// The medium of a session.
pub(crate) struct Media {
    crashing: Arc<CrashMedium>,
    failing: Arc<FaultMedium<CrashMedium>>,
    hardship: Hardship,
}

impl Media {
    /// Wraps a medium and schedules its faults.
    pub(crate) fn new(crashing: &Arc<CrashMedium>, hardship: Hardship) -> Media {
        let failing = Arc::new(FaultMedium::new(Arc::clone(crashing)));
        // Cancels a cut that an earlier session did not reach.
        crashing.cut_after(hardship.cut.unwrap_or(u64::MAX));
        if let Some(Refusal { op, nth, errno }) = hardship.refusal {
            failing.add(Fault::ErrnoOf { op, nth, errno });
        }
        if let Some(of_a_thousand) = hardship.lies {
            let mut rng = Rng::new(hardship.seed);
            let forges = rng.chance(1, 2);
            crashing.lie(Some(Lies { of_a_thousand, rng, forges }));
        }
        Media { crashing: Arc::clone(crashing), failing, hardship }
    }

    /// The medium as the disk sees it. With threads it has random delays, so that other threads
    /// come first.
    pub(crate) fn of_disk(&self, threads: bool) -> Arc<dyn Medium> {
        let medium: Arc<dyn Medium> = self.failing.clone();
        if threads { Slow::at_times(medium, self.hardship.seed) } else { medium }
    }

    /// Whether the medium lies.
    pub(crate) fn lies(&self) -> bool {
        self.hardship.lies()
    }

    /// Whether the power was cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.crashing.is_cut()
    }

    /// The number of calls that failed, except those after a power cut.
    pub(crate) fn failed(&self) -> u64 {
        self.failing.fired()
    }

    /// The number of medium operations.
    pub(crate) fn operations(&self) -> u64 {
        self.crashing.ops()
    }

    /// The reason that excuses a failed request, given the faults so far.
    pub(crate) fn excuse(&self) -> Excuse {
        if self.lies() {
            return Excuse::Lies;
        }
        if self.is_cut() {
            return Excuse::Failure;
        }
        let Some(failed) = self.failing.last_fired() else { return Excuse::Nothing };
        let syncs = matches!(failed, OpKind::Sync | OpKind::WriteDurable);
        let is_refused = self.hardship.refusal.is_some_and(|refusal| refuses(refusal.errno));
        if failed == OpKind::Read || (is_refused && !syncs) { Excuse::Refusal } else { Excuse::Failure }
    }
}
