//! Formats times for the user.

/// Seconds since 1970 (UTC) as `2024-05-01 13:37:00 UTC`.
pub(crate) fn utc(seconds: u64) -> String {
    let moment = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    moment.map_or_else(
        || format!("{seconds} s after 1970"),
        |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
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
