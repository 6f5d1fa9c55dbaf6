//! How fast an open disk overwrites levels that are not open, in words.
//!
//! Deniability contract: the words follow from the public parameters of the disk alone, so they are
//! the same whatever levels exist and whichever are open.

use crate::format::Description;
use lacuna_contracts::{Hint, Setting};
use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

impl Description {
    /// The warning for opening a disk with levels for writing; `None` for other disks.
    pub fn overwriting_warning(&self) -> Option<Hint> {
        self.hidden_sizes.as_ref()?;
        let loss = match self.overwritten_within {
            Some(time) => format!(
                "While this disk is open, deeper levels that are not open are overwritten, even if nothing is written: all of \
                 them within about {}, up to an eighth at each close.",
                lasting(time)
            ),
            None => "While this disk is open, writing to level 0 overwrites deeper levels that are not open, and closing \
                     the disk after that overwrites up to an eighth of them."
                .to_owned(),
        };
        let advice = " If you have a deeper passphrase, give it. To look only, give ";
        Some(Hint::from(loss).text(advice).setting(Setting("read_only")).text("."))
    }

    /// The same fact for a description of the disk; `None` for a format without levels.
    pub fn overwriting_words(&self) -> Option<String> {
        self.hidden_sizes.as_ref()?;
        Some(match self.overwritten_within {
            Some(time) => {
                format!("levels that are not open, within about {} while the disk is open", lasting(time))
            }
            None => "levels that are not open, by writes to level 0".to_owned(),
        })
    }
}

/// A time in the unit that suits it, with one decimal below ten.
fn lasting(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (unit, name) = match time.as_secs() {
        ..120 => (1, "seconds"),
        120..7200 => (MINUTE, "minutes"),
        7200..172_800 => (HOUR, "hours"),
        _ => (DAY, "days"),
    };
    let count = seconds / unit as f64;
    let tenths = (count * 10.0).round();
    if count < 10.0 && tenths % 10.0 > 0.0 {
        format!("{:.1} {name}", tenths / 10.0)
    } else {
        format!("{count:.0} {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Params;
    use lacuna_deniable::{Params as StripedParams, StripeGeometry};
    use lacuna_oblivious::{Params as CellParams, Plan};

    fn striped(room: u64, cover: u32) -> Description {
        StripedParams::plan(room, StripeGeometry::DEFAULT, 200, cover).unwrap().describe()
    }

    fn cells(room: u64, cover: u32) -> Description {
        CellParams::plan(room, Plan { cover_millis: cover, ..Plan::DEFAULT }).unwrap().describe()
    }

    #[test]
    fn the_time_follows_from_the_length_of_the_log_or_the_journal_and_the_cover() {
        let within = |disk: &Description| disk.overwritten_within.map(|time| time.as_secs());
        // Stripes of 256 KiB after the header, one each second.
        assert_eq!(within(&striped(24 << 20, 1000)), Some((24 << 20) / (256 << 10) - 5));
        assert_eq!(within(&striped(24 << 20, 2000)), Some(2 * ((24 << 20) / (256 << 10) - 5)));
        assert_eq!(within(&cells(20 << 30, 1000)), Some(16_384));
        let journal = within(&cells(1 << 30, 1000)).unwrap();
        assert!((800..1024).contains(&journal), "{journal}");
        for disk in [striped(64 << 20, 0), cells(64 << 20, 0)] {
            assert_eq!(within(&disk), None);
            assert!(disk.overwriting_words().unwrap().contains("by writes to level 0"));
        }
    }

    #[test]
    fn the_warning_has_the_time_and_tells_how_to_look_only() {
        let warning =
            |disk: &Description| disk.overwriting_warning().unwrap().render_with(|_| "--read-only".into());
        let words = warning(&striped(200 << 20, 1000));
        assert!(words.contains("even if nothing is written: all of them within about 13 minutes"), "{words}");
        assert!(words.ends_with("To look only, give --read-only."), "{words}");
        let words = warning(&striped(200 << 20, 0));
        assert!(words.contains("writing to level 0 overwrites") && !words.contains("within"), "{words}");
        let other = Description::of(1024, 1024);
        assert!(other.overwriting_warning().is_none() && other.overwriting_words().is_none());
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        for (millis, words) in [
            (0, "0 seconds"),
            (1820, "1.8 seconds"),
            (91_000, "91 seconds"),
            (120_000, "2 minutes"),
            (251_000, "4.2 minutes"),
            (795_000, "13 minutes"),
            (7_200_000, "2 hours"),
            (16_384_000, "4.6 hours"),
            (35_990_000, "10 hours"),
            (81_920_000, "23 hours"),
            (172_800_000, "2 days"),
        ] {
            assert_eq!(lasting(Duration::from_millis(millis)), words);
        }
    }
}
