//! The large-deviation bound behind the thresholds of IsRand (`crates/parts/integrity`,
//! `entropy.rs`): an upper bound of the probability that a uniformly random run of bytes reaches a
//! given statistic. docs/integrity.md derives it step by step; tests check the thresholds against
//! it.
//!
//! For n uniformly random bytes, T = Σ t\[c\] and any λ > 0 and r > 0:
//!
//! - P(T ≥ s) ≤ E\[2^(λT)\] / 2^(λs) (Markov's inequality for 2^(λT));
//! - E\[2^(λT)\] = n! / 256^n · \[z^n\] G(z)^256 (multinomial counts; \[z^n\] is the coefficient of
//!   z^n);
//! - \[z^n\] G(z)^256 ≤ G(r)^256 / r^n (no coefficient is negative),
//!
//! where G(z) = Σ 2^(λ t\[c\]) z^c / c! over the counts c = 0 ... n.

use lacuna_integrity::{STATISTIC_BITS, statistic_term};

/// The false-accept bound of one run is 2^-`RUN_BOUND`.
pub const RUN_BOUND: i32 = 101;

/// Number of tried values of λ, in 64ths: each gives a valid bound, and the least bound is used.
const LAMBDAS: usize = 96;
const LAMBDA_PARTS: f64 = 64.0;

/// Steps of the search for the best r; any r gives a valid bound.
const STEPS: usize = 44;

/// The bound for runs of one size.
pub struct TailBound {
    /// (λ, log2 of a bound of E\[2^(λT)\]) for each tried λ.
    moments: Vec<(f64, f64)>,
}

impl TailBound {
    /// The bound for runs of `len` bytes. Takes up to a second.
    ///
    /// # Panics
    /// If `len` is above 4096 or zero.
    pub fn new(len: usize) -> TailBound {
        let generating = MomentBound::new(len);
        let lambdas = (1..=LAMBDAS).map(|step| step as f64 / LAMBDA_PARTS);
        TailBound { moments: lambdas.map(|lambda| (lambda, generating.log2_moment(lambda))).collect() }
    }

    /// log2 of an upper bound of the probability that a uniformly random run has at least this
    /// statistic. At most 0. Computed in floating point with an error below 10^-6.
    pub fn log2(&self, statistic: u64) -> f64 {
        let bits = statistic as f64 / f64::from(1_u32 << STATISTIC_BITS);
        self.moments.iter().map(|(lambda, moment)| moment - lambda * bits).fold(0.0, f64::min)
    }

    /// The least statistic that a uniformly random run reaches with probability at most 2^-`bits`
    /// by this bound.
    pub fn least_statistic(&self, bits: f64) -> u64 {
        let least =
            self.moments.iter().map(|(lambda, moment)| (moment + bits) / lambda).fold(f64::MAX, f64::min);
        (least * f64::from(1_u32 << STATISTIC_BITS)).ceil() as u64
    }
}

/// An upper bound of log2 of the moment E\[2^(λT)\], for runs of one size.
struct MomentBound {
    len: usize,
    /// t\[c\] in bits.
    terms: Vec<f64>,
    /// ln c!
    factorials: Vec<f64>,
}

impl MomentBound {
    fn new(len: usize) -> MomentBound {
        let scale = f64::from(1_u32 << STATISTIC_BITS);
        let terms = (0..=len).map(|count| f64::from(statistic_term(count)) / scale).collect();
        let mut factorials = vec![0.0; len + 1];
        for count in 1..=len {
            factorials[count] = factorials[count - 1] + (count as f64).ln();
        }
        MomentBound { len, terms, factorials }
    }

    /// The bound for the best r for this λ: the logarithm of the bound is convex in ln r, so a
    /// ternary search finds it.
    fn log2_moment(&self, lambda: f64) -> f64 {
        let (mut low, mut high) = (-12.0_f64, 12.0_f64);
        for _ in 0..STEPS {
            let third = (high - low) / 3.0;
            if self.at(lambda, low + third) < self.at(lambda, high - third) {
                high -= third;
            } else {
                low += third;
            }
        }
        self.at(lambda, f64::midpoint(low, high))
    }

    fn at(&self, lambda: f64, ln_r: f64) -> f64 {
        let exponent = |count: usize| {
            lambda * self.terms[count] * std::f64::consts::LN_2 + count as f64 * ln_r - self.factorials[count]
        };
        let greatest = (0..=self.len).map(exponent).fold(f64::MIN, f64::max);
        let sum: f64 = (0..=self.len).map(|count| (exponent(count) - greatest).exp()).sum();
        let len = self.len as f64;
        let nats =
            self.factorials[self.len] - len * 256.0_f64.ln() + 256.0 * (greatest + sum.ln()) - len * ln_r;
        nats / std::f64::consts::LN_2
    }
}
