//! The faults of the medium in a session, and the failures that they excuse.

use lacuna_medium::Medium;
use lacuna_sim::{
    CrashMedium, Fault, FaultMedium, Lies, OpKind, Rng, SWEPT_ERRNOS, SlowMedium, is_refusal_errno,
};
use std::sync::Arc;

/// Approximate number of medium operations of an opening.
const OPENING: u64 = 40;
/// Approximate number of syncs of a session.
const SYNCS: u64 = 16;
/// The number of lies in a thousand reads.
const LIE_RATES: [u64; 5] = [10, 40, 120, 300, 600];

/// The faults of the medium in one session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionFaults {
    /// The number of operations before the power is cut.
    cut_after: Option<u64>,
    refusal: Option<CallFault>,
    /// The number of lies in a thousand reads.
    lie_rate: Option<u64>,
    seed: u64,
}

/// The `nth` operation of a kind, counted from 1, fails with this errno.
#[derive(Clone, Copy, Debug)]
struct CallFault {
    op: OpKind,
    nth: u64,
    errno: i32,
}

/// The reason that excuses a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureExcuse {
    /// None: no fault occurred, so the request must succeed.
    Nothing,
    /// One call was refused, or one read failed: only requests that needed it may fail.
    Refusal,
    /// The medium failed or the power was cut: the disk may have stopped.
    Failure,
    /// The medium lies.
    Lies,
}

impl SessionFaults {
    /// Draws the faults of a session with about `operations` medium operations. A session may have
    /// none.
    pub(crate) fn draw(rng: &mut Rng, operations: u64) -> SessionFaults {
        let cut = rng.chance(2, 5).then(|| {
            let most = if rng.chance(1, 4) { OPENING } else { operations };
            rng.below(most)
        });
        let refusal = rng.chance(1, 2).then(|| CallFault::draw(rng, operations));
        let lies = rng.chance(1, 4).then(|| *rng.pick(&LIE_RATES));
        SessionFaults { cut_after: cut, refusal, lie_rate: lies, seed: rng.next_u64() >> 8 }
    }

    /// Whether the medium lies.
    pub(crate) fn has_lies(self) -> bool {
        self.lie_rate.is_some()
    }
}

impl CallFault {
    fn draw(rng: &mut Rng, operations: u64) -> CallFault {
        let op = match rng.below(8) {
            0 => OpKind::Read,
            1 | 2 => OpKind::Sync,
            _ => OpKind::Write,
        };
        // Sessions often end early, so prefer small numbers.
        let most = if op == OpKind::Sync { SYNCS } else { operations >> rng.below(6) };
        CallFault { op, nth: 1 + rng.below(most), errno: *rng.pick(&SWEPT_ERRNOS) }
    }
}

/// The medium of a session.
pub(crate) struct SessionMedium {
    crashing: Arc<CrashMedium>,
    failing: Arc<FaultMedium<CrashMedium>>,
    faults: SessionFaults,
}

impl SessionMedium {
    /// Wraps a medium and schedules its faults.
    pub(crate) fn new(crashing: &Arc<CrashMedium>, hardship: SessionFaults) -> SessionMedium {
        let failing = Arc::new(FaultMedium::new(Arc::clone(crashing)));
        // Cancels a cut that an earlier session did not reach.
        crashing.cut_after(hardship.cut_after.unwrap_or(u64::MAX));
        if let Some(CallFault { op, nth, errno }) = hardship.refusal {
            failing.add(Fault::ErrnoOf { op, nth, errno });
        }
        if let Some(of_a_thousand) = hardship.lie_rate {
            let mut rng = Rng::new(hardship.seed);
            let forges = rng.chance(1, 2);
            crashing.set_lies(Some(Lies { per_mille: of_a_thousand, rng, may_forge: forges }));
        }
        SessionMedium { crashing: Arc::clone(crashing), failing, faults: hardship }
    }

    /// The medium as the disk sees it. With threads it has random delays, so that other threads
    /// come first.
    pub(crate) fn for_disk(&self, threads: bool) -> Arc<dyn Medium> {
        let medium: Arc<dyn Medium> = self.failing.clone();
        if threads { SlowMedium::wrap_occasional(medium, self.faults.seed) } else { medium }
    }

    /// Whether the medium lies.
    pub(crate) fn is_lying(&self) -> bool {
        self.faults.has_lies()
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
    pub(crate) fn excuse(&self) -> FailureExcuse {
        if self.is_lying() {
            return FailureExcuse::Lies;
        }
        if self.is_cut() {
            return FailureExcuse::Failure;
        }
        let Some(failed) = self.failing.last_fired() else { return FailureExcuse::Nothing };
        let syncs = matches!(failed, OpKind::Sync | OpKind::WriteDurable);
        let is_refused = self.faults.refusal.is_some_and(|refusal| is_refusal_errno(refusal.errno));
        if failed == OpKind::Read || (is_refused && !syncs) {
            FailureExcuse::Refusal
        } else {
            FailureExcuse::Failure
        }
    }
}
