//! Measurements are sound: every subject returns written data, for files and for a trace, and the
//! schemes hold the expected bytes of US.

use eint::measure::{
    AccessKind, CacheKind, MeasuredScheme, SyntheticContents, Trace, TraceRequest, measure_files, replay,
};

fn all() -> impl Iterator<Item = MeasuredScheme> {
    MeasuredScheme::PAPER.into_iter().chain(MeasuredScheme::FILES)
}

#[test]
fn every_scheme_returns_the_written_data() {
    let text: Vec<u8> = b"the integrity of files ".iter().copied().cycle().take(300 * 4096).collect();
    let noise: Vec<u8> =
        (0..40 * 4096_u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    for block_size in [128, 4096] {
        for subject in all() {
            for cache in [None, Some((CacheKind::List, 512)), Some((CacheKind::Table, 512))] {
                let files = [text.clone(), noise.clone()];
                let figures = measure_files(subject, block_size, cache, &files).unwrap();
                let blocks = (files[0].len() + files[1].len()) / block_size;
                assert_eq!((figures.written, figures.checked), (blocks as u64, blocks as u64), "{subject:?}");
            }
        }
    }
    let held = |subject| measure_files(subject, 4096, None, std::slice::from_ref(&text)).unwrap().stored_us;
    assert_eq!(held(MeasuredScheme::Aes), 0);
    assert_eq!(held(MeasuredScheme::ReferenceMt), (2 * 300 - 1) * 32);
    assert_eq!(held(MeasuredScheme::ReferenceRand), 0);
    assert_eq!(held(MeasuredScheme::ReferenceComp), 0);
}

#[test]
fn every_scheme_replays_a_trace() {
    let request = |access, file, first, count| TraceRequest { access, file, first, count };
    let trace = Trace {
        comments: Vec::new(),
        files: vec![("a".into(), 100), ("b".into(), 0)],
        requests: vec![
            request(AccessKind::Read, 0, 90, 20),
            request(AccessKind::Write, 1, 5, 3),
            request(AccessKind::Write, 0, 50, 100),
            request(AccessKind::Truncate, 0, 60, 0),
            request(AccessKind::Read, 0, 0, 150),
            request(AccessKind::Read, 1, 0, 8),
        ],
    };
    for percent in [0, 50, 100] {
        for subject in all() {
            let figures =
                replay(subject, 4096, &trace, &mut SyntheticContents::new(4096, percent, 1)).unwrap();
            assert_eq!((figures.written, figures.checked), (103, 10 + 60 + 8), "{subject:?}");
        }
    }
}
