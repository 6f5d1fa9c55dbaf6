//! The right to one transaction on an object: its seal, its assertion and its outcome.

use crate::layouts::chain::ChainTails;
use crate::segment::Segment;
use crate::session_objects::{SessionObjects, TransactionOutcome};
use crate::versions::pages::StoreVersion;
use crate::versions::seal::{Seal, SealPlace, WriteCounter};
use crate::versions::seals::Seals;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::ObjectStep;

/// The state of an object before a transaction.
#[derive(Default)]
pub(crate) struct ObjectState {
    /// The version that the object must still have when the transaction happens; unknown if the
    /// transaction keeps nothing of it.
    pub(crate) version: StoreVersion,
    /// The tails from its seal, for the entries that are kept.
    pub(crate) tails: ChainTails,
    /// Why the transaction must keep nothing of the object, if that is so.
    pub(crate) refusal: Option<Error>,
    /// A counter that was assigned earlier, though the version table may not have it.
    pub(crate) counter: WriteCounter,
}

/// The only transaction of an object in flight.
pub(crate) struct TransactionTicket<'a> {
    objects: &'a SessionObjects,
    seals: &'a Seals,
    segment: Segment,
    object_state: ObjectState,
    /// The next seal, once the transaction has a counter.
    seal: Option<Seal>,
    seal_bytes: Vec<u8>,
    outcome: TransactionOutcome,
}

impl<'a> TransactionTicket<'a> {
    /// Waits for the turn to the next transaction on an object, which the caller holds until the
    /// ticket is dropped, and then examines the object with `look`.
    pub(crate) fn acquire(
        objects: &'a SessionObjects,
        seals: &'a Seals,
        segment: Segment,
        look: impl FnOnce() -> Result<ObjectState>,
    ) -> Result<TransactionTicket<'a>> {
        objects.begin_exclusive(segment);
        let (standing, outcome) = (ObjectState::default(), TransactionOutcome::Unknown);
        let mut ticket = TransactionTicket {
            objects,
            seals,
            segment,
            object_state: standing,
            seal: None,
            seal_bytes: vec![],
            outcome,
        };
        ticket.object_state = look()?;
        let counter = objects.assign_counter(segment, ticket.object_state.counter)?;
        ticket.seal = Some(Seal { counter, snapshot: seals.newest.get(), tails: ticket.object_state.tails });
        Ok(ticket)
    }

    /// The counter of the transaction.
    #[cfg(test)]
    pub(crate) fn counter(&self) -> WriteCounter {
        self.seal.as_ref().unwrap().counter
    }

    /// Why the transaction must keep nothing of the object, if that is so.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.object_state.refusal.as_ref()
    }

    /// Whether the object does not exist and never has.
    pub(crate) fn is_new_object(&self) -> bool {
        self.object_state.version == StoreVersion::ABSENT
    }

    /// The first step of every transaction that keeps anything of the object.
    pub(crate) fn guard_step(&self) -> Option<ObjectStep<'static>> {
        self.object_state.version.guard()
    }

    /// The tails of the object's present seal; empty for a refused object.
    pub(crate) fn tails(&self) -> ChainTails {
        self.object_state.tails
    }

    /// The step that every transaction on the object contains: it writes the seal with these tails.
    pub(crate) fn seal_step(&mut self, tails: ChainTails) -> ObjectStep<'_> {
        let seal = self.seal.as_mut().expect("a ticket that was given has a counter");
        seal.tails = tails;
        self.seal_bytes = self.seals.key.encode(self.segment, seal);
        self.seals.place.write_step(&self.seal_bytes)
    }

    /// Steps that remove all content of the object.
    pub(crate) fn clearing_steps(&self) -> Vec<ObjectStep<'static>> {
        let mut steps = vec![ObjectStep::Truncate(0)];
        if self.seals.place == SealPlace::Key {
            steps.push(ObjectStep::RemoveKeyRange(Vec::new(), vec![u8::MAX]));
        }
        steps
    }

    /// A whole transaction that leaves only the seal of the object.
    pub(crate) fn emptying_steps(&mut self) -> Vec<ObjectStep<'_>> {
        let mut steps: Vec<ObjectStep<'_>> = self.clearing_steps();
        steps.push(self.seal_step(ChainTails::default()));
        steps
    }

    /// Records the outcome of the transaction from the store's answer, and returns the answer. A
    /// ticket dropped without this call has an unknown outcome.
    pub(crate) fn finish(mut self, answer: Result<u64>) -> Result<u64> {
        self.outcome = match &answer {
            Ok(version) => TransactionOutcome::Acknowledged(StoreVersion::of(Some(*version))),
            Err(e) if matches!(e.kind(), Kind::Changed | Kind::Exists) => {
                TransactionOutcome::NotPerformed(StoreVersion::UNKNOWN)
            }
            // The store refused it, or could not read something that it needs.
            Err(e) if e.changed_nothing() => TransactionOutcome::NotPerformed(self.object_state.version),
            Err(_) => TransactionOutcome::Unknown,
        };
        answer
    }

    /// There is no transaction, and the object must not be trusted: the version table counts a
    /// transaction all the same.
    pub(crate) fn distrust(mut self) {
        self.outcome = TransactionOutcome::Distrusted;
    }
}

impl Drop for TransactionTicket<'_> {
    fn drop(&mut self) {
        self.objects.end_exclusive(self.segment, self.seal.as_ref(), &self.outcome);
    }
}
