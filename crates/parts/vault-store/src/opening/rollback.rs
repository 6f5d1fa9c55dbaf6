//! The rollback check: tells a crash and another machine's use from a rollback.

use crate::anchor::AnchorState;
use crate::commits::codec::{Commit, CommitState, MACHINES, Superblock};
use crate::ids::CommitInfo;
use lacuna_contracts::{Action, Error, Hint, Kind, Result};

/// How a state relates to the anchored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lineage {
    /// There is no anchored state.
    NoAnchor,
    /// It is the anchored state.
    Anchored,
    /// The next state, by this machine: a crash came before the anchor advanced.
    NextOwn,
    /// A later state by another machine that knows this machine's last commit.
    Descendant,
}

/// Checks the newest state in the folder.
///
/// Errors: [`Kind::RolledBack`] for a state that does not descend from the anchored state,
/// [`Kind::Usage`] for the anchor of another vault.
pub(crate) fn check_rollback(
    uuid: &[u8; 16],
    anchor: Option<&AnchorState>,
    last: &Commit,
    facts: &CommitState,
) -> Result<Lineage> {
    let Some(known) = anchor else { return Ok(Lineage::NoAnchor) };
    if known.uuid != *uuid {
        return Err(Error::new(Kind::Usage, "the anchor belongs to another vault")
            .hint("name the anchor of this vault, or let lacuna choose it"));
    }
    if (last.number, last.digest) == (known.number, known.digest) {
        return Ok(Lineage::Anchored);
    }
    let is_known = |commit: &Commit| (commit.number, commit.digest) == (known.number, known.digest);
    let follows =
        |commit: &Commit| commit.number == known.number + 1 && commit.previous_digest == known.digest;
    if last.machine == known.machine {
        if follows(last) {
            return Ok(Lineage::NextOwn);
        }
    } else if last.number > known.number {
        match facts.table.iter().find(|commit| commit.machine == known.machine) {
            // `follows`: a crash came before the anchor advanced, and then another machine used the
            // vault.
            Some(own) if is_known(own) || follows(own) => return Ok(Lineage::Descendant),
            None if facts.table.len() >= MACHINES => return Err(evicted_machine(known, last, facts)),
            _ => {}
        }
    }
    Err(rolled_back(known, last, facts))
}

/// Checks that a state is not before that of a superblock which the opening passed over. Without an
/// anchor nothing else shows that it is not the newest.
///
/// Errors: [`Kind::RolledBack`].
pub(crate) fn not_before(passed_over: Option<Superblock>, last: &Commit, facts: &CommitState) -> Result<()> {
    let Some(newer) = passed_over.filter(|newer| newer.commit.number > last.number) else { return Ok(()) };
    let found = CommitInfo { number: last.number, time: facts.time };
    let expected = CommitInfo { number: newer.commit.number, time: newer.state.time };
    Err(Error::new(Kind::RolledBack, "the vault is older than one of its superblocks")
        .found(found.to_string())
        .expected(format!("{expected}, which that superblock has")))
}

/// The two compared states: the found and the anchored one.
fn states(known: &AnchorState, last: &Commit, facts: &CommitState) -> (CommitInfo, CommitInfo) {
    (
        CommitInfo { number: last.number, time: facts.time },
        CommitInfo { number: known.number, time: known.time },
    )
}

/// The refusal of a state with a full table of other machines, and without this one. It may descend
/// from the anchored state; that cannot be told.
fn evicted_machine(known: &AnchorState, last: &Commit, facts: &CommitState) -> Error {
    let (found, expected) = states(known, last, facts);
    Error::new(Kind::RolledBack, "the vault no longer remembers this machine")
        .found(format!(
            "{found}, made by another machine, with the last commits of {MACHINES} machines and none of this one"
        ))
        .expected(format!("{expected}, made by this machine, or one that follows it and names it"))
        .hint(
            Hint::from(format!(
                "a vault remembers the {MACHINES} machines that used it last; if more than that have used it since this one \
                 did, and the directory is its newest copy, "
            ))
            .action(Action("vault::accept"))
            .text(" takes it"),
        )
}

fn rolled_back(known: &AnchorState, last: &Commit, facts: &CommitState) -> Error {
    let (found, expected) = states(known, last, facts);
    let (what, why) = if last.number < known.number {
        ("the vault is older than this machine's last commit", "")
    } else {
        (
            "the vault has another history than the one this machine knows",
            ", which does not continue this machine's last commit",
        )
    };
    let by = if last.machine == known.machine { "this machine" } else { "another machine" };
    Error::new(Kind::RolledBack, what)
        .found(format!("{found}, made by {by}{why}"))
        .expected(format!("{expected}, made by this machine, or one that follows it"))
        .hint(
            Hint::from(
                "let the sync program finish, then try again (opening a copy as a trial makes it the newest); if an older one \
                 was restored on purpose, if two machines wrote at once, or if the anchor itself is an older copy, ",
            )
            .action(Action("vault::accept"))
            .text(" takes this one"),
        )
}

#[cfg(test)]
#[path = "rollback_tests.rs"]
mod tests;
