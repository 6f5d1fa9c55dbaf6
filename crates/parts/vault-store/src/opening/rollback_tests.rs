//! Every result of the rollback check, and the texts of its refusals.

use super::*;

const UUID: [u8; 16] = [9; 16];
const HERE: [u8; 16] = [1; 16];
const THERE: [u8; 16] = [2; 16];

fn commit(machine: [u8; 16], number: u64, previous_digest: u8) -> Commit {
    Commit { machine, number, digest: [number as u8; 32], previous_digest: [previous_digest; 32] }
}

fn known(number: u64) -> AnchorState {
    AnchorState { uuid: UUID, machine: HERE, number, digest: [number as u8; 32], time: 1_700_000_000 }
}

fn standing(last: &Commit, table: Vec<Commit>) -> Result<Lineage> {
    check_rollback(
        &UUID,
        Some(&known(7)),
        last,
        &CommitState { table, time: 1_600_000_000, ..CommitState::default() },
    )
}

#[test]
fn descendants_of_the_anchored_state_are_accepted() {
    assert_eq!(
        check_rollback(&UUID, None, &commit(HERE, 3, 2), &CommitState::default()).unwrap(),
        Lineage::NoAnchor
    );
    assert_eq!(standing(&commit(HERE, 7, 6), vec![]).unwrap(), Lineage::Anchored);
    assert_eq!(standing(&commit(HERE, 8, 7), vec![]).unwrap(), Lineage::NextOwn);
    assert_eq!(standing(&commit(THERE, 8, 7), vec![commit(HERE, 7, 6)]).unwrap(), Lineage::Descendant);
    assert_eq!(standing(&commit(THERE, 12, 11), vec![commit(HERE, 8, 7)]).unwrap(), Lineage::Descendant);
}

#[test]
fn other_states_are_refused() {
    let other = |number, digest: u8| Commit { digest: [digest; 32], ..commit(HERE, number, 0) };
    let cases = [
        (commit(HERE, 6, 5), vec![]),
        (other(7, 99), vec![]),
        (commit(HERE, 8, 6), vec![]),
        (commit(HERE, 9, 8), vec![commit(HERE, 7, 6)]),
        (commit(THERE, 8, 7), vec![]),
        (commit(THERE, 9, 8), vec![commit(HERE, 6, 5)]),
        (commit(THERE, 9, 8), vec![other(7, 98)]),
        (commit(THERE, 9, 8), vec![other(8, 98)]),
        (Commit { digest: [99; 32], ..commit(THERE, 7, 6) }, vec![commit(HERE, 7, 6)]),
    ];
    for (last, table) in cases {
        let refused = standing(&last, table.clone()).unwrap_err();
        assert_eq!(refused.kind(), Kind::RolledBack, "{last:?} {table:?}");
    }
    assert_eq!(
        check_rollback(&[8; 16], Some(&known(7)), &commit(HERE, 7, 6), &CommitState::default())
            .unwrap_err()
            .kind(),
        Kind::Usage
    );
}

#[test]
fn the_refusal_for_an_evicted_machine_says_why() {
    let others =
        |count: u8| (0..count).map(|n| commit([100 + n; 16], 8 + u64::from(n), 7)).collect::<Vec<_>>();
    let words = |table| {
        let refused = standing(&commit(THERE, 99, 98), table).unwrap_err();
        assert_eq!(refused.kind(), Kind::RolledBack);
        refused.to_string()
    };
    let full = words(others(MACHINES as u8));
    for part in ["no longer remembers this machine", "the last commits of 32 machines", "`vault::accept`"] {
        assert!(full.contains(part), "{full}");
    }
    // If the table has room for this machine, or has another commit of it, it is another history.
    let mut forked = others(MACHINES as u8);
    forked[5] = commit(HERE, 6, 5);
    for table in [others(MACHINES as u8 - 1), forked] {
        assert!(words(table).contains("another history"));
    }
}

#[test]
fn the_refusal_says_what_to_do() {
    let words = standing(&commit(HERE, 6, 5), vec![]).unwrap_err().to_string();
    for part in [
        "older than this machine's last commit",
        "found: state 6 of 2020-09-13 12:26:40 UTC",
        "expected: state 7 of 2023-11-14 22:13:20 UTC",
        "`vault::accept`",
    ] {
        assert!(words.contains(part), "{words}");
    }
    let words = standing(&commit(THERE, 9, 8), vec![]).unwrap_err().to_string();
    assert!(words.contains("another history") && words.contains("another machine"), "{words}");
}
