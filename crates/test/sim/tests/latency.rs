//! Tests the costs that the latency models charge.

use lacuna_contracts::ManualClock;
use lacuna_medium::{Medium, MemoryMedium, ReadExtent, WriteExtent};
use lacuna_sim::{LatencyMedium, LatencyModel};
use std::sync::Arc;
use std::time::Duration;

const SCATTERED: Duration = Duration::from_millis(10);

fn medium(model: LatencyModel) -> LatencyMedium<MemoryMedium> {
    LatencyMedium::new(Arc::new(MemoryMedium::new(1 << 20)), model, Arc::new(ManualClock::default()))
}

#[test]
fn a_write_after_the_last_one_is_sequential_despite_reads_between() {
    let stick = medium(LatencyModel { scattered_write: SCATTERED, ..LatencyModel::zero_cost() });
    let write = |offset| stick.write(&[WriteExtent { offset, data: &[1; 4096] }]).unwrap();
    write(0);
    assert_eq!(stick.elapsed(), Duration::ZERO);
    let mut buf = [0; 4096];
    stick.read(&mut [ReadExtent { offset: 65_536, buf: &mut buf }]).unwrap();
    write(4096);
    assert_eq!(stick.elapsed(), Duration::ZERO);
    // A write at the end of the last read is scattered.
    write(69_632);
    assert_eq!(stick.elapsed(), SCATTERED);
}

#[test]
fn a_cache_puts_scattered_writes_in_order() {
    let model = LatencyModel { scattered_write: SCATTERED, write_back: 1 << 20, ..LatencyModel::zero_cost() };
    let stick = medium(model);
    for block in [3u64, 1, 2, 0] {
        stick.write(&[WriteExtent { offset: block * 4096, data: &[1; 4096] }]).unwrap();
    }
    stick.sync().unwrap();
    assert_eq!(stick.elapsed(), Duration::ZERO);
}
