//! The activity of a server: its counters, independent of the format of its disk.
//!
//! Deniability contract: the counters are those of open levels. Nothing here depends on other
//! levels.

use crate::terminal::progress;
use lacuna_storage::human_size;
use serde_json::Value;

/// The most useful counters, summed over all open levels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// The levels that the counters are of, on a disk with levels.
    pub levels: Vec<u64>,
    /// Bytes that clients read since it was opened; `None` from a server that does not count them.
    pub read: Option<u64>,
    /// Bytes that clients wrote.
    pub written: Option<u64>,
    /// Requests in flight.
    pub in_flight: Option<u64>,
    /// Bytes that are acknowledged and not yet on the medium; `None` if these are not counted in
    /// bytes.
    pub pending: Option<u64>,
    /// The part of `pending` that waits for cover; `None` without cover.
    pub waiting_for_cover: Option<u64>,
    /// Of a vault: files and directories that changed since the last commit.
    pub changed_files: Option<u64>,
    /// Milliseconds between two writes of cover, 0 for no cover of its own; `None` for a disk
    /// without cover.
    pub cover_interval: Option<u64>,
    /// Writes of cover.
    pub cover: Option<u64>,
    /// Blocks written to the medium and blocks written by clients; their quotient is the write
    /// amplification.
    pub amplified: Option<(u64, u64)>,
    /// Look-ups of metadata pages in the cache; `None` without such a cache.
    pub cache: Option<CacheUse>,
    /// Whether the host has no space left.
    pub medium_full: bool,
}

impl Activity {
    /// Parses the `items` of a server.
    pub(crate) fn of(items: &Value) -> Activity {
        let all = progress::counters(items);
        let each = |name: &'static str| all.clone().filter(move |(item, _)| *item == name).map(|(_, v)| v);
        let sum = |name| each(name).reduce(u64::saturating_add);
        let of_disk = |name| each(name).next();
        let cells =
            sum("waiting_for_cells").map(|blocks| blocks.saturating_mul(lacuna_storage::BLOCK_SIZE as u64));
        let waiting_for_cover = sum("waiting_for_cover");
        let pending = [sum("dirty"), waiting_for_cover, cells].into_iter().flatten();
        Activity {
            levels: each("level").collect(),
            read: sum("bytes_read"),
            written: sum("bytes_written"),
            in_flight: sum("in_flight"),
            pending: pending.reduce(u64::saturating_add),
            waiting_for_cover,
            changed_files: sum("changed_inodes"),
            cover_interval: of_disk("cover_interval"),
            cover: of_disk("refreshes"),
            amplified: of_disk("medium_blocks_written").zip(of_disk("public_blocks_written")),
            cache: of_disk("metadata_cache_hits")
                .zip(of_disk("metadata_cache_misses"))
                .map(|(hits, misses)| CacheUse { hits, misses }),
            medium_full: of_disk("medium_full").is_some_and(|full| full > 0),
        }
    }

    /// Pending data as text; `None` if it is not counted.
    pub(crate) fn pending_text(&self) -> Option<String> {
        match (self.pending, self.changed_files) {
            (Some(bytes), _) => Some(human_size(bytes)),
            (None, Some(1)) => Some("1 file".to_owned()),
            (None, Some(files)) => Some(format!("{files} files")),
            (None, None) => None,
        }
    }

    /// The levels as text; empty for a disk without levels.
    pub(crate) fn levels_text(&self) -> String {
        let words = |level: &u64| {
            let kind = if *level == 0 { "public" } else { "hidden" };
            format!("level {level} ({kind})")
        };
        self.levels.iter().map(words).collect::<Vec<_>>().join(", ")
    }
}

/// Look-ups in a cache, by result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheUse {
    pub hits: u64,
    pub misses: u64,
}

impl CacheUse {
    /// The hits in percent; `None` without look-ups.
    pub(crate) fn percent(self) -> Option<u64> {
        let all = u128::from(self.hits) + u128::from(self.misses);
        (all > 0).then(|| u64::try_from(u128::from(self.hits) * 100 / all).unwrap_or(100))
    }

    /// The look-ups since an earlier state `before`.
    pub(crate) fn since(self, before: CacheUse) -> CacheUse {
        CacheUse {
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn items(list: &[(&str, u64)]) -> Value {
        list.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
    }

    #[test]
    fn counters_of_levels_are_added_and_those_of_the_disk_are_not() {
        let group = |level| {
            [
                ("level", level),
                ("refreshes", 7),
                ("cover_interval", 1000),
                ("bytes_read", 10),
                ("in_flight", 1),
            ]
        };
        let mut list = group(0).to_vec();
        list.extend(group(1));
        list.push(("waiting_for_cover", 4096));
        let activity = Activity::of(&items(&list));
        assert_eq!((activity.read, activity.in_flight, activity.cover), (Some(20), Some(2), Some(7)));
        assert_eq!(activity.levels_text(), "level 0 (public), level 1 (hidden)");
        assert_eq!(activity.pending, Some(4096));
        let vault = Activity::of(&items(&[("changed_inodes", 2)]));
        assert_eq!(vault.pending_text().unwrap(), "2 files");
        assert_eq!(Activity::of(&json!([])), Activity::default());
    }

    #[test]
    fn hits_of_a_cache_are_a_part_of_all_look_ups() {
        let used = |hits, misses| CacheUse { hits, misses };
        for (cache, percent) in [
            (used(3, 1), Some(75)),
            (used(0, 0), None),
            (used(u64::MAX, 0), Some(100)),
            (used(0, 7), Some(0)),
        ] {
            assert_eq!(cache.percent(), percent, "{cache:?}");
        }
        assert_eq!(used(5, 9).since(used(2, 9)), used(3, 0));
        // Another server may count from the beginning again.
        assert_eq!(used(1, 0).since(used(2, 9)), used(0, 0));
        let counted = items(&[("metadata_cache_hits", 3), ("metadata_cache_misses", 1)]);
        assert_eq!(Activity::of(&counted).cache, Some(used(3, 1)));
    }
}
