//! The verdict of a comparison: whether one program takes more processor time than another, from
//! the ratios of several sessions.

use crate::measuring::samples::Samples;
use std::fmt;

/// The probability that the interval contains the true ratio.
const CONFIDENCE: f64 = 0.999;
/// A ratio closer to 1 than this is no relevant difference: the placement of a program in memory
/// has an effect of this size.
const MIN_DIFFERENCE: f64 = 0.01;

/// The conclusion from the ratios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RatioVerdict {
    /// The second program takes more processor time.
    More,
    /// The second program takes less processor time.
    Less,
    /// There is no significant difference.
    Same,
}

/// The ratio of the second program's processor time to that of the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    /// The median of the sessions.
    pub median: f64,
    /// The interval of the true ratio, with a confidence of 99.9 %.
    pub interval: (f64, f64),
    pub verdict: RatioVerdict,
}

impl Ratio {
    /// The ratio from one sample per session. The only assumption is that each session errs upwards
    /// and downwards with equal probability.
    pub(crate) fn of(sessions: &Samples) -> Ratio {
        let (low, high) = sessions.interval_with(CONFIDENCE);
        let verdict = if low > 1.0 + MIN_DIFFERENCE {
            RatioVerdict::More
        } else if high < 1.0 - MIN_DIFFERENCE {
            RatioVerdict::Less
        } else {
            RatioVerdict::Same
        };
        Ratio { median: sessions.median(), interval: (low, high), verdict }
    }
}

impl fmt::Display for RatioVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RatioVerdict::More => "MORE",
            RatioVerdict::Less => "less",
            RatioVerdict::Same => "no difference shows",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::Rng;

    /// Ratios around `centre` that scatter by 2 % in both directions.
    fn sessions(centre: f64, seed: u64) -> Samples {
        let mut rng = Rng::new(seed);
        (0..16).map(|_| centre * (1.0 + (rng.below(4001) as f64 - 2000.0) / 1e5)).collect()
    }

    #[test]
    fn a_difference_of_five_percent_is_found_and_none_in_equal_programs() {
        for seed in 0..200 {
            assert_eq!(Ratio::of(&sessions(1.05, seed)).verdict, RatioVerdict::More);
            assert_eq!(Ratio::of(&sessions(0.95, seed)).verdict, RatioVerdict::Less);
            assert_eq!(Ratio::of(&sessions(1.0, seed)).verdict, RatioVerdict::Same);
        }
    }

    #[test]
    fn one_outlier_session_does_not_change_the_verdict() {
        let wild: Samples = (0..16).map(|n| if n == 7 { 3.0 } else { 1.0 }).collect();
        assert_eq!(Ratio::of(&wild).verdict, RatioVerdict::Same);
    }
}
