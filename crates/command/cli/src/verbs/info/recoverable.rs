//! The part of `info` on deleted data of a disk on flash: the recoverable amount, its age, and the
//! next purge.

use crate::verbs::info::open_facts::OpenFacts;
use lacuna_storage::{BLOCK_SIZE, human_size};
use serde_json::{Value, json};

/// Recoverable data.
#[derive(Debug, PartialEq)]
pub(crate) struct RecoverableData {
    /// Upper bound on the versions of blocks that were deleted or overwritten since the last purge.
    recoverable: u64,
    /// The part of these that is certain.
    known: u64,
    /// Seconds since the first of these was deleted.
    since: Option<u64>,
    /// Seconds until the next purge is due.
    purge_in: Option<u64>,
    /// Whether a purge has begun and is not complete.
    purge_wanted: bool,
    /// Purges since the disk was created.
    epoch: u64,
}

impl RecoverableData {
    /// The recoverable data according to a server, or to a disk that was opened here.
    pub(crate) fn from_facts(facts: &OpenFacts) -> Option<RecoverableData> {
        let found = parse(&facts.items)?;
        // The age of deleted data is not tracked while the disk is closed, and it is not purged
        // then.
        Some(if facts.served { found } else { RecoverableData { since: None, purge_in: None, ..found } })
    }

    /// As JSON.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "recoverable": self.recoverable * BLOCK_SIZE as u64,
            "recoverable_known": self.known * BLOCK_SIZE as u64,
            "since": self.since,
            "purge_in": self.purge_in,
            "purge_wanted": self.purge_wanted,
            "epoch": self.epoch,
        })
    }

    /// As text.
    pub(crate) fn to_text(&self) -> String {
        if self.recoverable == 0 {
            return format!("nothing that was deleted; {} purges so far", self.epoch);
        }
        let begun = if self.purge_wanted { "; a purge has begun and is not finished" } else { "" };
        let since =
            self.since.map_or_else(String::new, |since| format!(", the first for {}", duration_text(since)));
        let due = self.purge_in.map_or_else(
            || "; `lacuna purge` ends that".to_owned(),
            |due| format!("; the next purge is due in {}", duration_text(due)),
        );
        let bytes = |blocks: u64| human_size(blocks * BLOCK_SIZE as u64);
        let deleted = if self.known == self.recoverable {
            format!("{} that were deleted or overwritten", bytes(self.known))
        } else {
            format!(
                "at most {} that were deleted or overwritten, {} of them known",
                bytes(self.recoverable),
                bytes(self.known)
            )
        };
        format!("{deleted}{since}{begun}{due}")
    }
}

fn duration_text(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// Parses the counters; `None` unless they are those of a disk on flash.
fn parse(items: &[Value]) -> Option<RecoverableData> {
    let value = |name: &str| items.iter().find(|item| item["name"] == name)?["value"].as_u64();
    let recoverable = value("recoverable")?;
    let while_any = |name: &str| value(name).filter(|_| recoverable > 0);
    Some(RecoverableData {
        recoverable,
        known: value("recoverable_known").map_or(recoverable, |known| known.min(recoverable)),
        since: while_any("recoverable_for"),
        purge_in: while_any("purge_in"),
        purge_wanted: value("purge_wanted") == Some(1),
        epoch: value("epoch")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, value: u64) -> Value {
        json!({ "name": name, "value": value, "unit": "" })
    }

    #[test]
    fn counters_become_text_and_json() {
        assert_eq!(parse(&[item("journal_used", 7)]), None);
        let items =
            [item("recoverable", 512), item("recoverable_for", 65), item("purge_in", 840), item("epoch", 3)];
        let found = parse(&items).unwrap();
        assert_eq!(
            found.to_text(),
            "2 MiB that were deleted or overwritten, the first for 65 s; the next purge is due in 14 min"
        );
        assert_eq!(found.to_json()["recoverable"], 2 << 20);
        let cut = parse(&[item("recoverable", 1), item("purge_wanted", 1), item("epoch", 3)]).unwrap();
        assert_eq!(
            cut.to_text(),
            "4 KiB that were deleted or overwritten; a purge has begun and is not finished; `lacuna purge` ends that"
        );
        assert_eq!(
            (&found.to_json()["purge_wanted"], &cut.to_json()["purge_wanted"]),
            (&json!(false), &json!(true))
        );
        let crashed = [item("recoverable", 512), item("recoverable_known", 256), item("epoch", 3)];
        let crashed = parse(&crashed).unwrap();
        assert_eq!(
            crashed.to_text(),
            "at most 2 MiB that were deleted or overwritten, 1 MiB of them known; `lacuna purge` ends that"
        );
        assert_eq!(crashed.to_json()["recoverable_known"], 1 << 20);
        let clean = parse(&[item("recoverable", 0), item("purge_in", 5), item("epoch", 3)]).unwrap();
        assert_eq!(clean.to_text(), "nothing that was deleted; 3 purges so far");
        assert_eq!(clean.to_json()["purge_in"], Value::Null);
    }
}
