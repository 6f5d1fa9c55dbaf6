//! Records and superblocks are read as they were written, and the parsers survive arbitrary bytes.

use super::*;
use lacuna_sim::Rng;
use proptest::prelude::*;

fn commit(n: u8) -> Commit {
    Commit { machine: [n; 16], number: u64::from(n), digest: [n + 1; 32], previous_digest: [n + 2; 32] }
}

fn state() -> CommitState {
    CommitState {
        machine: [3; 16],
        time: 1_700_000_000,
        next_object: 77,
        object_limit: 1101,
        table: vec![commit(1), commit(5)],
        appendable: vec![(4, 100), (9, 0)],
    }
}

fn changes(root: Option<Vec<u8>>) -> RecordChanges {
    let page = JournaledPage { object: 4, page: 1 << 40, place: 9, sequence: 12, tag: [8; 16] };
    let (cuts, removals) = (vec![(4, 2)], vec![5, 6, 7]);
    RecordChanges { cuts, removals, pages: vec![page; 3], root, puts: b"puts".to_vec() }
}

#[test]
fn records_and_superblocks_round_trip() {
    for root in [None, Some(vec![]), Some(b"root".to_vec())] {
        let bytes = record_to_bytes(&state(), &changes(root.clone()));
        assert_eq!(record_from_bytes(&bytes).unwrap(), (state(), changes(root.clone())));
        let bytes = super_to_bytes(&commit(3), &state(), root.as_deref(), 1);
        let found = super_from_bytes(&bytes).unwrap();
        assert_eq!((found.root, found.area, found.state), (root, 1, state()));
        assert_eq!(found.commit, commit(3));
    }
}

#[test]
fn an_unreadable_commit_is_refused() {
    let (state, changes) = (state(), changes(None));
    assert!(is_readable(MOST_NUMBER, &state, &changes) && !is_readable(MOST_NUMBER + 1, &state, &changes));
    for (longest, readable) in [(MOST_PAGES - 1, true), (MOST_PAGES, false)] {
        let longer = CommitState { appendable: vec![(4, longest)], ..state.clone() };
        assert_eq!(is_readable(9, &longer, &changes), readable);
        assert_eq!(record_from_bytes(&record_to_bytes(&longer, &changes)).is_ok(), readable);
    }
}

#[test]
fn truncated_and_extended_bytes_are_refused() {
    let record = record_to_bytes(&state(), &changes(None));
    let superblock = super_to_bytes(&commit(3), &state(), Some(b"root"), 0);
    for len in 0..record.len() {
        assert!(record_from_bytes(&record[..len]).is_err(), "{len}");
    }
    for len in 0..superblock.len() {
        assert!(super_from_bytes(&superblock[..len]).is_err(), "{len}");
    }
    assert!(record_from_bytes(&[&record[..], &[0]].concat()).is_err());
    assert!(super_from_bytes(&[&superblock[..], &[0]].concat()).is_err());
}

#[test]
fn altered_bytes_never_panic() {
    let mut rng = Rng::new(1);
    let record = record_to_bytes(&state(), &changes(Some(vec![1; 20])));
    let superblock = super_to_bytes(&commit(3), &state(), Some(b"root"), 0);
    for _ in 0..20_000 {
        let (mut a, mut b) = (record.clone(), superblock.clone());
        for bytes in [&mut a, &mut b] {
            for _ in 0..=rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = *rng.pick(&[0, 1, 0x7f, 0xff, rng.clone().next_u64() as u8]);
            }
        }
        let _ = (record_from_bytes(&a), super_from_bytes(&b));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = (record_from_bytes(&bytes), super_from_bytes(&bytes));
    }
}
