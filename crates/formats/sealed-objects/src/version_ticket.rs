//! The right to one transaction on an object: its seal, its assertion and its outcome.

use crate::chain::Tails;
use crate::objects::{Objects, Outcome};
use crate::seal::{Counter, Seal, SealPlace};
use crate::seals::Seals;
use crate::segment::Segment;
use crate::version_pages::Seen;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::Step;

/// The state of an object before a transaction.
#[derive(Default)]
pub(crate) struct Standing {
    /// The version that the object must still have when the transaction happens; unknown if the
    /// transaction keeps nothing of it.
    pub(crate) seen: Seen,
    /// The tails from its seal, for the entries that are kept.
    pub(crate) tails: Tails,
    /// Why the transaction must keep nothing of the object, if that is so.
    pub(crate) refusal: Option<Error>,
    /// A counter that was assigned earlier, though the version table may not have it.
    pub(crate) counter: Counter,
}

/// The only transaction of an object in flight.
pub(crate) struct Ticket<'a> {
    objects: &'a Objects,
    seals: &'a Seals,
    segment: Segment,
    standing: Standing,
    /// The next seal, once the transaction has a counter.
    seal: Option<Seal>,
    placed: Vec<u8>,
    outcome: Outcome,
}

impl<'a> Ticket<'a> {
    /// Waits for the turn to the next transaction on an object, which the caller holds until the
    /// ticket is dropped, and then examines the object with `look`.
    pub(crate) fn take(
        objects: &'a Objects,
        seals: &'a Seals,
        segment: Segment,
        look: impl FnOnce() -> Result<Standing>,
    ) -> Result<Ticket<'a>> {
        objects.take_turn(segment);
        let (standing, outcome) = (Standing::default(), Outcome::Unknown);
        let mut ticket = Ticket { objects, seals, segment, standing, seal: None, placed: vec![], outcome };
        ticket.standing = look()?;
        let counter = objects.give_counter(segment, ticket.standing.counter)?;
        ticket.seal = Some(Seal { counter, snapshot: seals.newest.get(), tails: ticket.standing.tails });
        Ok(ticket)
    }

    /// The counter of the transaction.
    #[cfg(test)]
    pub(crate) fn counter(&self) -> Counter {
        self.seal.as_ref().unwrap().counter
    }

    /// Why the transaction must keep nothing of the object, if that is so.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.standing.refusal.as_ref()
    }

    /// Whether the object does not exist and never has.
    pub(crate) fn is_first(&self) -> bool {
        self.standing.seen == Seen::ABSENT
    }

    /// The first step of every transaction that keeps anything of the object.
    pub(crate) fn guard_step(&self) -> Option<Step<'static>> {
        self.standing.seen.guard()
    }

    /// The tails of the object's present seal; empty for a refused object.
    pub(crate) fn tails(&self) -> Tails {
        self.standing.tails
    }

    /// The step that every transaction on the object contains: it writes the seal with these tails.
    pub(crate) fn place_step(&mut self, tails: Tails) -> Step<'_> {
        let seal = self.seal.as_mut().expect("a ticket that was given has a counter");
        seal.tails = tails;
        self.placed = self.seals.key.make(self.segment, seal);
        self.seals.place.step(&self.placed)
    }

    /// Steps that remove all content of the object.
    pub(crate) fn clearing_steps(&self) -> Vec<Step<'static>> {
        let mut steps = vec![Step::Truncate(0)];
        if self.seals.place == SealPlace::Key {
            steps.push(Step::RemoveKeyRange(Vec::new(), vec![u8::MAX]));
        }
        steps
    }

    /// A whole transaction that leaves only the seal of the object.
    pub(crate) fn emptying_steps(&mut self) -> Vec<Step<'_>> {
        let mut steps: Vec<Step<'_>> = self.clearing_steps();
        steps.push(self.place_step(Tails::default()));
        steps
    }

    /// Records the outcome of the transaction from the store's answer, and returns the answer. A
    /// ticket dropped without this call has an unknown outcome.
    pub(crate) fn ended(mut self, answer: Result<u64>) -> Result<u64> {
        self.outcome = match &answer {
            Ok(version) => Outcome::Acknowledged(Seen::of(Some(*version))),
            Err(e) if matches!(e.kind(), Kind::Changed | Kind::Exists) => Outcome::Declined(Seen::UNKNOWN),
            // The store refused it, or could not read something that it needs.
            Err(e) if e.changed_nothing() => Outcome::Declined(self.standing.seen),
            Err(_) => Outcome::Unknown,
        };
        answer
    }

    /// There is no transaction, and the object must not be trusted: the version table counts a
    /// transaction all the same.
    pub(crate) fn condemn(mut self) {
        self.outcome = Outcome::Condemned;
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.objects.end_turn(self.segment, self.seal.as_ref(), &self.outcome);
    }
}
