//! The right to one transaction on an object: its seal, what it must assert, and how it ended.

use super::super::chain::Tails;
use super::super::seal::{Seal, SealPlace};
use super::super::version_pages::Seen;
use super::VersionTable;
use lacuna_core::{Error, Kind, Result};
use lacuna_medium::Step;
use std::sync::atomic::Ordering;

/// The only transaction of an object in flight.
pub(crate) struct Ticket<'a> {
    version_table: &'a VersionTable,
    object: u64,
    /// The head of the next seal; the tails are those of the object as it is, or of the seal that was placed last.
    seal: Seal,
    placed: Vec<u8>,
    /// The object as it must still be.
    seen: Seen,
    refusal: Option<Error>,
    /// Its counter, from the moment when the transaction may happen.
    pub(super) counter: Option<u64>,
    outcome: Outcome,
}

/// How a transaction ended.
enum Outcome {
    Unknown,
    /// It happened, and gave the object this version.
    Acknowledged(Seen),
    /// It did not happen and will not. Whether the object is still as it was seen.
    Declined(bool),
    Condemned,
}

impl<'a> Ticket<'a> {
    /// The right to the next transaction on an object, which its holder has until this is dropped.
    pub(super) fn new(version_table: &'a VersionTable, object: u64) -> Ticket<'a> {
        Ticket {
            version_table,
            object,
            seal: Seal::default(),
            placed: Vec::new(),
            seen: Seen::UNKNOWN,
            refusal: None,
            counter: None,
            outcome: Outcome::Unknown,
        }
    }

    /// The object is as it should be, and must still be so when the transaction happens.
    pub(super) fn keeping(mut self, seen: Seen, tails: Tails) -> Result<Ticket<'a>> {
        self.seen = seen;
        self.seal.tails = tails;
        self.ready(0)
    }

    /// The object is not as it should be. If its seal is genuine, it has this counter.
    pub(super) fn refused(mut self, why: Error, counter: u64) -> Result<Ticket<'a>> {
        self.refusal = Some(why);
        self.ready(counter)
    }

    /// Gives the ticket a counter above every one given before.
    pub(super) fn ready(mut self, at_least: u64) -> Result<Ticket<'a>> {
        let version_table = self.version_table;
        let first = version_table.pages.open_for(self.object)?;
        let held = version_table.pages.hold(self.object)?;
        let lost = version_table.objects().lost.get(&self.object).copied().unwrap_or(0);
        let counter = (held.max(lost).max(at_least) + 1).max(first);
        self.seal.counter = counter;
        self.seal.snapshot = version_table.number.load(Ordering::Acquire);
        self.counter = Some(counter);
        Ok(self)
    }

    /// Why nothing of the object may be kept: the transaction must leave only what it writes itself.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// Whether there is no object yet, nor ever was.
    pub(crate) fn is_first(&self) -> bool {
        self.seen == Seen::ABSENT
    }

    /// The step that every transaction begins with which keeps anything of the object.
    pub(crate) fn guard_step(&self) -> Option<Step<'static>> {
        self.seen.guard()
    }

    /// What the seal says of the entries of the object as it is; nothing of one that is refused.
    pub(crate) fn tails(&self) -> Tails {
        self.seal.tails
    }

    /// The step that every transaction on the object contains: the seal, which says this of the entries.
    pub(crate) fn place_step(&mut self, tails: Tails) -> Step<'_> {
        self.seal.tails = tails;
        self.placed = self.version_table.seals.make(self.object, &self.seal);
        self.version_table.place.step(&self.placed)
    }

    /// Steps after which nothing is left of the object.
    pub(crate) fn clearing_steps(&self) -> Vec<Step<'static>> {
        let mut steps = vec![Step::Truncate(0)];
        if self.version_table.place == SealPlace::Key {
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

    /// Notes how the transaction ended, by the store's answer to it, which is given back. A ticket dropped otherwise
    /// is of unknown outcome.
    pub(crate) fn ended(mut self, answer: Result<u64>) -> Result<u64> {
        self.outcome = match &answer {
            Ok(version) => Outcome::Acknowledged(Seen::of(Some(*version))),
            Err(e) => match e.kind() {
                Kind::Changed | Kind::Exists => Outcome::Declined(false),
                Kind::NoSpace => Outcome::Declined(true),
                _ => Outcome::Unknown,
            },
        };
        answer
    }

    /// There is no transaction, and what is there must not be believed: the version table counts one all the same.
    pub(crate) fn condemn(mut self) {
        self.outcome = Outcome::Condemned;
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut objects = self.version_table.objects();
        if let Some(counter) = self.counter {
            match self.outcome {
                Outcome::Unknown => {
                    objects.lost.insert(self.object, counter);
                    self.version_table.pages.doubt(self.object);
                    self.version_table.pages.release(self.object, None, Seen::UNKNOWN);
                }
                Outcome::Acknowledged(seen) => {
                    objects.set_verified(self.object);
                    objects.lost.remove(&self.object);
                    self.version_table.know(self.object, seen, self.seal.tails);
                    self.version_table.pages.release(self.object, Some(counter), seen);
                }
                Outcome::Declined(same) => {
                    // Somebody has seen the seal: its counter is not given again.
                    objects.lost.insert(self.object, counter);
                    let seen = if same { self.seen } else { Seen::UNKNOWN };
                    self.version_table.pages.release(self.object, None, seen);
                }
                Outcome::Condemned => {
                    objects.set_doubtful(self.object);
                    self.version_table.pages.release(self.object, Some(counter), Seen::UNKNOWN);
                }
            }
        }
        objects.busy.remove(&self.object);
        drop(objects);
        self.version_table.idle.notify_all();
    }
}
