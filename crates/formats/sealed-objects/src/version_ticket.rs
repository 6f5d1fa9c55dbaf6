//! The right to one transaction on an object: its seal, what it must assert, and how it ended.

use crate::chain::Tails;
use crate::objects::{Objects, Outcome};
use crate::seal::{Counter, Seal, SealPlace};
use crate::seals::Seals;
use crate::segment::Segment;
use crate::version_pages::Seen;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::Step;

/// What a look at an object for a transaction found.
#[derive(Default)]
pub(crate) struct Standing {
    /// The object as it must still be when the transaction happens; unknown if nothing of it is
    /// kept.
    pub(crate) seen: Seen,
    /// What its seal says of the entries that are kept.
    pub(crate) tails: Tails,
    /// Why nothing of it may be kept: the transaction must leave only what it writes itself.
    pub(crate) refusal: Option<Error>,
    /// A counter that was given, though the version table may not know it.
    pub(crate) counter: Counter,
}

/// The only transaction of an object in flight.
pub(crate) struct Ticket<'a> {
    objects: &'a Objects,
    seals: &'a Seals,
    segment: Segment,
    standing: Standing,
    /// The next seal, as soon as the transaction has a counter.
    seal: Option<Seal>,
    placed: Vec<u8>,
    outcome: Outcome,
}

impl<'a> Ticket<'a> {
    /// Waits for the right to the next transaction on an object, which the caller has until the
    /// ticket is dropped, and then looks at the object.
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

    /// Why nothing of the object may be kept: the transaction must leave only what it writes
    /// itself.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.standing.refusal.as_ref()
    }

    /// Whether there is no object yet, nor ever was.
    pub(crate) fn is_first(&self) -> bool {
        self.standing.seen == Seen::ABSENT
    }

    /// The step that every transaction begins with which keeps anything of the object.
    pub(crate) fn guard_step(&self) -> Option<Step<'static>> {
        self.standing.seen.guard()
    }

    /// What the seal says of the entries of the object as it is; nothing of one that is refused.
    pub(crate) fn tails(&self) -> Tails {
        self.standing.tails
    }

    /// The step that every transaction on the object contains: the seal, which says this of the
    /// entries.
    pub(crate) fn place_step(&mut self, tails: Tails) -> Step<'_> {
        let seal = self.seal.as_mut().expect("a ticket that was given has a counter");
        seal.tails = tails;
        self.placed = self.seals.key.make(self.segment, seal);
        self.seals.place.step(&self.placed)
    }

    /// Steps after which nothing is left of the object.
    pub(crate) fn clearing_steps(&self) -> Vec<Step<'static>> {
        let mut steps = vec![Step::Truncate(0)];
        if self.seals.place == SealPlace::Key {
            steps.push(Step::RemoveKeyRange(Vec::new(), vec![u8::MAX]));
        }
        steps
    }

    /// A whole transaction: nothing is left of the object but its seal.
    pub(crate) fn emptying_steps(&mut self) -> Vec<Step<'_>> {
        let mut steps: Vec<Step<'_>> = self.clearing_steps();
        steps.push(self.place_step(Tails::default()));
        steps
    }

    /// Notes how the transaction ended, by the store's answer to it, which is given back. A ticket
    /// dropped otherwise is of unknown outcome.
    pub(crate) fn ended(mut self, answer: Result<u64>) -> Result<u64> {
        self.outcome = match &answer {
            Ok(version) => Outcome::Acknowledged(Seen::of(Some(*version))),
            Err(e) if matches!(e.kind(), Kind::Changed | Kind::Exists) => Outcome::Declined(Seen::UNKNOWN),
            // It was refused, or what it needs could not be read.
            Err(e) if e.changed_nothing() => Outcome::Declined(self.standing.seen),
            Err(_) => Outcome::Unknown,
        };
        answer
    }

    /// There is no transaction, and what is there must not be believed: the version table counts
    /// one all the same.
    pub(crate) fn condemn(mut self) {
        self.outcome = Outcome::Condemned;
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.objects.end_turn(self.segment, self.seal.as_ref(), &self.outcome);
    }
}
