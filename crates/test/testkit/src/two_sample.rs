//! Tests whether two samples have the same distribution: the Kolmogorov-Smirnov test.

/// The probability that two samples of one distribution differ no less than these, measured
/// by the greatest distance of their distribution functions. The approximation is good for samples
/// of ten values or more; ties make it too large.
pub fn kolmogorov_smirnov(one: &[f64], other: &[f64]) -> f64 {
    let sorted = |sample: &[f64]| {
        let mut sample = sample.to_vec();
        sample.sort_by(f64::total_cmp);
        sample
    };
    let (one, other) = (sorted(one), sorted(other));
    let (n, m) = (one.len() as f64, other.len() as f64);
    let below = |sample: &[f64], value: f64| sample.partition_point(|found| *found <= value) as f64;
    let distance = one
        .iter()
        .chain(&other)
        .map(|value| (below(&one, *value) / n - below(&other, *value) / m).abs())
        .fold(0.0, f64::max);
    let root = (n * m / (n + m)).sqrt();
    let scaled = (root + 0.12 + 0.11 / root) * distance;
    if scaled < 0.2 {
        return 1.0;
    }
    let term = |k: i32| f64::from(1 - 2 * ((k - 1) % 2)) * (-2.0 * f64::from(k * k) * scaled * scaled).exp();
    (2.0 * (1..=100).map(term).sum::<f64>()).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::Rng;

    fn sample(seed: u64, shift: u64) -> Vec<f64> {
        let mut rng = Rng::new(seed);
        (0..200).map(|_| (rng.below(1000) + rng.below(1000) + shift) as f64).collect()
    }

    #[test]
    fn samples_of_one_distribution_pass_and_others_fail() {
        let same =
            (1..=100).filter(|seed| kolmogorov_smirnov(&sample(*seed, 0), &sample(1000 + seed, 0)) < 0.01);
        assert!(same.count() <= 5);
        let apart =
            (1..=100).filter(|seed| kolmogorov_smirnov(&sample(*seed, 0), &sample(seed + 1000, 250)) < 0.01);
        assert!(apart.count() > 95);
        assert!(kolmogorov_smirnov(&[1.0; 30], &[1.0; 20]) >= 1.0);
        assert!(kolmogorov_smirnov(&[1.0; 30], &[2.0; 20]) < 1e-9);
    }
}
