//! Moments as people write them.

/// Seconds of a day.
const DAY: u64 = 86_400;
/// Days of 400 years of the Gregorian calendar, after which it repeats.
const ERA: u64 = 146_097;
/// Days from 1 March of the year 0 to 1 January 1970.
const BEFORE_1970: u64 = 719_468;

/// Seconds since 1970 (UTC) as `2024-05-01 13:37:00 UTC`.
///
/// Years count from March here, so that the day which some years have more comes last (H. Hinnant,
/// "chrono-compatible low-level date algorithms").
pub(crate) fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / DAY + BEFORE_1970, seconds % DAY);
    let (era, day_of_era) = (days / ERA, days % ERA);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn moments_that_are_known() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_799, "2000-02-29 23:59:59 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_714_570_620, "2024-05-01 13:37:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
