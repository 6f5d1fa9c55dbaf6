//! Tests that a lying medium also lies to discreet reads. Hidden levels are read by them, past the
//! system's cache.

use lacuna_medium::{Medium, ReadExtent};
use lacuna_sim::{
    CrashMedium, FaultMedium, HonestReads, LatencyMedium, LatencyModel, Lies, Recorder, Rng, SlowMedium,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const PAGE: usize = 4096;

/// A medium of one page with the versions 0 to 3. Every read of it may lie.
fn lying_medium(honest: HonestReads) -> Arc<CrashMedium> {
    let medium = Arc::new(CrashMedium::new(PAGE as u64));
    medium.keep_history();
    for version in 1..=3 {
        medium.write_at(0, &[version; PAGE]).unwrap();
    }
    medium.set_lies_except(Some(Lies { per_mille: 1000, rng: Rng::new(1), may_forge: false }), honest);
    medium
}

/// The versions that discreet reads of the page return.
fn discreet_versions(medium: &dyn Medium) -> BTreeSet<u8> {
    let read = |_| {
        let mut page = [9; PAGE];
        medium.read_discreetly(&mut [ReadExtent { offset: 0, buf: &mut page }]).unwrap();
        page[0]
    };
    (0..200).map(read).collect()
}

#[test]
fn discreet_reads_lie_directly_and_through_every_wrapper() {
    let medium = lying_medium(HonestReads::default());
    let shared: Arc<dyn Medium> = medium.clone();
    let wrapped: [Arc<dyn Medium>; 5] = [
        shared.clone(),
        Arc::new(FaultMedium::new(medium.clone())),
        Arc::new(Recorder::new(medium.clone())),
        Arc::new(LatencyMedium::new(medium, LatencyModel::zero_cost(), Arc::default())),
        SlowMedium::wrap_occasional(shared, 1),
    ];
    for (at, medium) in wrapped.iter().enumerate() {
        assert_eq!(discreet_versions(&**medium), BTreeSet::from([0, 1, 2, 3]), "wrapper {at}");
    }
}

#[test]
fn discreet_reads_alone_lie_if_requested() {
    let medium = lying_medium(HonestReads { cached_reads: true, ..HonestReads::default() });
    let mut page = [9; PAGE];
    for _ in 0..50 {
        medium.read_at(0, &mut page).unwrap();
        assert_eq!(page[0], 3);
    }
    assert_eq!(discreet_versions(&*medium), BTreeSet::from([0, 1, 2, 3]));
}
