//! Repeated measurements of one value, and statistics of them.

/// Measurements, in the order of their execution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

/// A figure is marked if the interval of its median is wider than this fraction of it.
const MAX_SPREAD: f64 = 0.15;
/// Minimum probability that the interval contains the median.
const CONFIDENCE: f64 = 0.95;

impl Samples {
    /// Adds a measurement.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The measurements, each mapped by a function.
    pub(crate) fn map(&self, of: impl Fn(f64) -> f64) -> Samples {
        self.0.iter().copied().map(of).collect()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The quantile for `part`, interpolated between two measurements.
    fn quantile(&self, part: f64) -> f64 {
        let sorted = self.sorted();
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        let at = part * last as f64;
        let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
        low + (high - low) * at.fract()
    }

    /// The median.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The lower quartile. Other work on a machine can only add to a processor time, so the lower
    /// quartile varies less than the median.
    pub(crate) fn lower_quartile(&self) -> f64 {
        self.quantile(0.25)
    }

    /// The upper quartile: for speeds, the counterpart of the lower quartile of times.
    pub(crate) fn upper_quartile(&self) -> f64 {
        self.quantile(0.75)
    }

    /// The mean.
    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// Ratios of the measurements of equal rounds; `None` if the numbers of measurements differ.
    pub(crate) fn ratios(&self, to: &Samples) -> Option<Samples> {
        let pairs = self.0.iter().zip(&to.0).map(|(ours, theirs)| ours / theirs);
        (self.0.len() == to.0.len()).then(|| Samples(pairs.collect()))
    }

    /// Two measurements with the true median between them, with a probability of at least 95 %: the
    /// second and the eighth of nine. With too few measurements, the least and the greatest.
    pub(crate) fn interval(&self) -> (f64, f64) {
        self.interval_with(CONFIDENCE)
    }

    /// The same interval with another probability.
    pub(crate) fn interval_with(&self, confidence: f64) -> (f64, f64) {
        let sorted = self.sorted();
        let n = sorted.len();
        if n == 0 {
            return (f64::NAN, f64::NAN);
        }
        let mut outside = 0;
        // The median lies below the k-th least, or above the k-th greatest, if fewer than k of n
        // measurements are on one side.
        while outside + 1 < n / 2 && 2.0 * fewer_than(outside + 2, n) <= 1.0 - confidence {
            outside += 1;
        }
        (sorted[outside], sorted[n - 1 - outside])
    }

    /// The width of that interval, relative to the median.
    pub(crate) fn spread(&self) -> f64 {
        let (low, high) = self.interval();
        (high - low) / self.median()
    }

    /// A mark for figures that vary too much.
    pub(crate) fn mark(&self) -> &'static str {
        if self.spread() > MAX_SPREAD { "~" } else { "" }
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Samples {
        Samples(values.into_iter().collect())
    }
}

/// The probability that fewer than `k` of `n` fair coins show heads.
fn fewer_than(k: usize, n: usize) -> f64 {
    let mut ways = 1.0;
    let mut sum = 0.0;
    for i in 0..k {
        sum += ways;
        ways = ways * (n - i) as f64 / (i + 1) as f64;
    }
    sum / 2f64.powi(n as i32)
}

#[cfg(test)]
mod tests {
    use super::Samples;

    fn samples(values: impl IntoIterator<Item = i32>) -> Samples {
        values.into_iter().map(f64::from).collect()
    }

    #[test]
    #[allow(clippy::float_cmp, reason = "small whole numbers and halves are exact")]
    fn medians_quartiles_and_ratios() {
        assert_eq!(samples([3, 1, 2]).median(), 2.0);
        assert_eq!(samples([4, 1, 2, 3]).median(), 2.5);
        assert!(samples([]).median().is_nan());
        assert_eq!(samples(1..=9).lower_quartile(), 3.0);
        assert_eq!(samples([1, 3]).lower_quartile(), 1.5);
        let ratios = samples([1, 9, 4]).ratios(&samples([2, 3, 4])).unwrap();
        assert_eq!(ratios.median(), 1.0);
        assert!(samples([1]).ratios(&samples([])).is_none());
    }

    #[test]
    #[allow(clippy::float_cmp, reason = "small whole numbers are exact")]
    fn the_interval_of_nine_leaves_out_one_on_each_side() {
        assert_eq!(samples(1..=9).interval(), (2.0, 8.0));
        assert_eq!(samples(1..=5).interval(), (1.0, 5.0));
        // By the table of the sign test: the 6th and the 15th of 20.
        assert_eq!(samples(1..=20).interval(), (6.0, 15.0));
        assert_eq!(samples([7]).spread(), 0.0);
    }

    #[test]
    fn wide_intervals_are_marked() {
        assert_eq!(samples([100, 101, 102, 103, 104, 105, 106, 107, 900]).mark(), "");
        assert_eq!(samples([80, 81, 82, 103, 104, 105, 106, 120, 121]).mark(), "~");
    }
}
