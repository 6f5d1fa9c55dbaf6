//! With its threads: many clients at once on all levels, the paced cover beating, and a medium that fails.

mod fixture;

use lacuna_core::BLOCK_SIZE;
use lacuna_deniable::{Geometry, Params};
use lacuna_sim::OpKind;
use lacuna_sim::levels::Threaded;

fn params() -> Params {
    Params::plan((2 << 20) + 200 * 13 * BLOCK_SIZE as u64, Geometry { public: 4, hidden: 8 }, 200, 3).unwrap()
}

fn threaded(params: &Params) -> Threaded<'_, Params> {
    Threaded { params, levels: 3 }
}

#[test]
fn many_clients_on_all_levels() {
    threaded(&params()).serves_many_clients();
}

/// The trace of the game, with threads: when a checkpoint is written must not depend on who was faster.
#[test]
fn the_order_of_writes_is_no_matter_of_speed() {
    let params = Params { cover_millis: 0, ..params() };
    let places = |busy| -> Vec<(u64, u64)> {
        threaded(&params).writes_of(6000, busy).iter().map(|write| (write.offset, write.len)).collect()
    };
    let idle = places(false);
    let checkpoints = idle.iter().filter(|(_, len)| *len == BLOCK_SIZE as u64).count();
    assert!(checkpoints > 100, "{checkpoints} checkpoints");
    for _ in 0..3 {
        assert!(places(true) == idle);
    }
}

#[test]
fn a_medium_that_fails_stops_everything_and_hangs_nothing() {
    threaded(&params()).stops_at(OpKind::Write, 3);
    threaded(&params()).stops_at(OpKind::Sync, 3);
}

#[test]
fn nobody_syncs_again_after_a_sync_that_failed() {
    for nth in 1..8 {
        assert_eq!(threaded(&params()).syncs_after_a_failed_one(nth), 0, "sync {nth} failed");
    }
}
