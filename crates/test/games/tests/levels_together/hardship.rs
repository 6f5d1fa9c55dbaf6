//! What the medium does to a session, and what may fail because of it.

use lacuna_medium::Medium;
use lacuna_sim::{CrashMedium, Fault, FaultMedium, Lies, OpKind, Rng, SWEPT, Slow, refuses};
use std::sync::Arc;

/// Operations of the medium during an opening, about.
const OPENING: u64 = 40;
/// Syncs of a session, about.
const SYNCS: u64 = 16;
/// Of a thousand reads, how many lie.
const OFTEN: [u64; 5] = [10, 40, 120, 300, 600];

/// What happens to the medium of one session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hardship {
    /// The power goes in the midst of the operation after so many.
    cut: Option<u64>,
    refusal: Option<Refusal>,
    /// Of a thousand reads so many lie.
    lies: Option<u64>,
    seed: u64,
}

/// An operation of a kind that fails, the first being 1, and how.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    op: OpKind,
    nth: u64,
    errno: i32,
}

/// Why a request may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// It must not: nothing happened.
    Nothing,
    /// One call was refused, or one read failed: what it was for fails, and nothing else.
    Refusal,
    /// The medium or its power failed: the disk may have stopped.
    Failure,
    /// The medium lies.
    Lies,
}

impl Hardship {
    /// That of a session which asks the medium for so many operations, about. Some sessions have
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
        // Early ones come sooner than those that no session lives to see.
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
    /// A medium, and what happens to it from now on.
    pub(crate) fn new(crashing: &Arc<CrashMedium>, hardship: Hardship) -> Media {
        let failing = Arc::new(FaultMedium::new(Arc::clone(crashing)));
        // A cut that an earlier session did not live to see does not come any more.
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

    /// As the disk has it. With threads it hesitates at times, so that others come first.
    pub(crate) fn of_disk(&self, threads: bool) -> Arc<dyn Medium> {
        let medium: Arc<dyn Medium> = self.failing.clone();
        if threads { Slow::at_times(medium, self.hardship.seed) } else { medium }
    }

    /// Whether the medium lies.
    pub(crate) fn lies(&self) -> bool {
        self.hardship.lies()
    }

    /// Whether the power has gone.
    pub(crate) fn is_cut(&self) -> bool {
        self.crashing.is_cut()
    }

    /// How many calls have failed so far, those without power apart.
    pub(crate) fn failed(&self) -> u64 {
        self.failing.fired()
    }

    /// Operations of the medium so far.
    pub(crate) fn operations(&self) -> u64 {
        self.crashing.ops()
    }

    /// Why a request may have failed, as far as anything has happened by now.
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
