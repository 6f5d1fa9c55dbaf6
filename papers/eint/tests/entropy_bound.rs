//! The thresholds of IsRand agree with the bound that proves them.

use eint::{RUN_BOUND, TailBound};
use lacuna_integrity::{STATISTIC_BITS, threshold};

const SIZES: [usize; 6] = [128, 256, 512, 1024, 2048, 4096];

#[test]
fn thresholds_are_one_more_than_the_least_that_the_bound_proves() {
    for len in SIZES {
        let threshold = threshold(len).expect("this size is judged");
        let bounds = TailBound::new(len);
        let bound = bounds.log2(threshold);
        assert!(bound <= -f64::from(RUN_BOUND), "{len}: 2^{bound}");
        let least = bounds.least_statistic(f64::from(RUN_BOUND));
        assert_eq!(threshold, least + 1, "{len} bytes");
    }
}

/// The closed form for whole blocks in the literature, (e x / 255)^255 e^-x nats, is weaker: this
/// bound never exceeds it.
#[test]
fn the_bound_is_below_the_closed_form() {
    for len in [1024_usize, 4096] {
        let bounds = TailBound::new(len);
        for nats in [400.0_f64, 492.0, 700.0] {
            let bits = nats / std::f64::consts::LN_2 - 8.0 * len as f64 + len as f64 * (len as f64).log2();
            let reached = (bits * f64::from(1_u32 << STATISTIC_BITS)) as u64;
            let closed = (255.0 * (1.0 + (nats / 255.0).ln()) - nats) / std::f64::consts::LN_2;
            let bound = bounds.log2(reached);
            assert!(bound <= closed + 0.01, "{len}, {nats}: {bound} above {closed}");
        }
    }
}
