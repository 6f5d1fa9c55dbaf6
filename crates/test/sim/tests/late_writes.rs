//! Tests that requests of a dead process arrive later, and not after a fence.

use lacuna_contracts::Result;
use lacuna_medium::{Medium, WriteExtent};
use lacuna_sim::{CrashMedium, InterceptedMedium, LateMedium, LateRequests, MediumInterceptor, Rng};
use std::collections::HashSet;
use std::sync::{Arc, Barrier};

const PAGE: usize = 4096;
const LEN: u64 = 16 * PAGE as u64;
/// More changes than any late request waits for.
const LONG: u64 = 500;

/// A process that begins on a medium with the requests of its predecessors.
fn process(medium: &Arc<CrashMedium>, late: LateRequests, rng: &mut Rng) -> InterceptedMedium<LateMedium> {
    InterceptedMedium(LateMedium::new(medium.clone(), medium.clone(), late, rng))
}

fn byte(medium: &dyn Medium, page: usize) -> u8 {
    let mut buf = [0; PAGE];
    medium.read_at((page * PAGE) as u64, &mut buf).unwrap();
    assert!(buf.iter().all(|byte| *byte == buf[0]), "a page is of one version");
    buf[0]
}

/// The medium and the late requests of a process that wrote version 1 of two pages, and died while
/// it wrote version 2.
fn die_in_a_write(rng: &mut Rng) -> (Arc<CrashMedium>, LateRequests) {
    let medium = Arc::new(CrashMedium::new(LEN));
    let first = process(&medium, LateRequests::default(), rng);
    first.write_at(0, &[1; 2 * PAGE]).unwrap();
    assert_eq!(first.0.in_flight(), 0);
    medium.cut_after(0);
    first.write_at(0, &[2; 2 * PAGE]).unwrap_err();
    assert_eq!(first.0.in_flight(), 1);
    // A dead process submits nothing.
    first.discard(0, LEN).unwrap_err();
    assert_eq!(first.0.in_flight(), 1);
    let (left, late) = first.0.after_process_death(rng);
    assert!((0..2).all(|page| [1, 2].contains(&byte(&left, page))));
    (Arc::new(left), late)
}

/// The versions that page 0 has after the next process wrote version 3 of it.
fn versions_after_a_newer_one(rng: &mut Rng, fenced: bool) -> HashSet<u8> {
    let (medium, late) = die_in_a_write(rng);
    let next = process(&medium, late, rng);
    if fenced {
        next.0.fence(rng);
    }
    next.write_at(0, &[3; PAGE]).unwrap();
    let mut seen = HashSet::from([byte(&next, 0)]);
    for _ in 0..LONG {
        next.write_at(8 * PAGE as u64, &[4; PAGE]).unwrap();
        seen.insert(byte(&next, 0));
    }
    assert!(!fenced || next.0.arrived() == 0);
    seen
}

#[test]
fn a_request_of_a_dead_process_lands_on_newer_data() {
    let mut rng = Rng::new(1);
    let seen: Vec<HashSet<u8>> = (0..60).map(|_| versions_after_a_newer_one(&mut rng, false)).collect();
    let stale = seen.iter().filter(|versions| versions.contains(&2)).count();
    assert!(stale > 5 && stale < 60, "{stale} of 60");
    assert!(seen.iter().all(|versions| versions.contains(&3)));
}

#[test]
fn nothing_arrives_after_a_fence() {
    let mut rng = Rng::new(2);
    for _ in 0..60 {
        assert_eq!(versions_after_a_newer_one(&mut rng, true), HashSet::from([3]));
    }
}

#[test]
fn a_fence_ends_each_page_of_a_request_with_either_version() {
    let mut rng = Rng::new(3);
    let mut seen = HashSet::new();
    for _ in 0..200 {
        let (medium, late) = die_in_a_write(&mut rng);
        let next = process(&medium, late, &mut rng);
        next.0.fence(&mut rng);
        seen.insert([byte(&next, 0), byte(&next, 1)]);
    }
    assert_eq!(seen, HashSet::from([[1, 1], [1, 2], [2, 1], [2, 2]]));
}

#[test]
fn a_request_that_did_not_arrive_waits_for_the_next_process() {
    let mut rng = Rng::new(4);
    let mut arrived = 0;
    for _ in 0..60 {
        let (medium, late) = die_in_a_write(&mut rng);
        let submitted = late.len();
        let second = process(&medium, late, &mut rng);
        medium.cut_now();
        let (left, late) = second.0.after_process_death(&mut rng);
        assert_eq!(late.len(), submitted);
        let third = process(&Arc::new(left), late, &mut rng);
        (0..LONG).for_each(|_| third.sync().unwrap());
        assert_eq!(third.0.arrived(), submitted as u64);
        arrived += submitted;
    }
    assert!(arrived > 10, "{arrived}");
}

/// Writes only when two threads write, and then the process dies.
struct MeetingMedium {
    medium: Arc<CrashMedium>,
    both: Barrier,
}

impl MediumInterceptor for MeetingMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.medium
    }
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.both.wait();
        self.medium.cut_now();
        self.medium.write(batch)
    }
}

/// A process with two threads that dies in a write of each.
fn die_in_two_writes(rng: &mut Rng) -> LateMedium {
    let medium = Arc::new(CrashMedium::new(LEN));
    let below = Arc::new(InterceptedMedium(MeetingMedium { medium: medium.clone(), both: Barrier::new(2) }));
    let process = InterceptedMedium(LateMedium::new(medium, below, LateRequests::default(), rng));
    std::thread::scope(|scope| {
        for page in 0..2u64 {
            let process = &process;
            scope.spawn(move || process.write_at(page * PAGE as u64, &[1; PAGE]).unwrap_err());
        }
    });
    assert_eq!(process.0.in_flight(), 2);
    process.0
}

#[test]
fn requests_of_several_threads_are_in_flight_at_once() {
    let mut rng = Rng::new(5);
    let late: HashSet<usize> =
        (0..60).map(|_| die_in_two_writes(&mut rng).after_process_death(&mut rng).1.len()).collect();
    assert_eq!(late, HashSet::from([0, 1, 2]));
}

#[test]
fn a_power_cut_loses_requests_in_flight_or_does_them() {
    let mut rng = Rng::new(6);
    let mut seen = HashSet::new();
    for _ in 0..200 {
        let left = die_in_two_writes(&mut rng).after_power_cycle(&mut rng);
        let mut first = [0; 2];
        left.read_at(0, &mut first[..1]).unwrap();
        left.read_at(PAGE as u64, &mut first[1..]).unwrap();
        seen.insert(first);
    }
    assert_eq!(seen, HashSet::from([[0, 0], [0, 1], [1, 0], [1, 1]]));
}
