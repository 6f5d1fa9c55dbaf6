//! Formats bad blocks for the user: one line for each run of adjacent blocks with the same verdict.

use lacuna_storage::{BadBlock, Error, Kind};

/// Collects the current run. Blocks come in ascending order.
#[derive(Default)]
pub(crate) struct BadRuns(Option<BadRun>);

struct BadRun {
    first: u64,
    last: u64,
    kind: Kind,
    /// The object that holds the run, on media with objects.
    object: Option<String>,
    verdict: String,
}

impl BadRuns {
    /// Adds the next bad block. Returns the line of the previous run if that run ends here.
    pub(crate) fn push(
        &mut self,
        BadBlock { block, error }: BadBlock,
        object: Option<String>,
    ) -> Option<String> {
        let (block, kind, verdict) = (block.0, error.kind(), verdict(block.0, &error));
        match &mut self.0 {
            Some(run)
                if run.last + 1 == block
                    && run.kind == kind
                    && run.object == object
                    && run.is_like(&verdict) =>
            {
                run.last = block;
                None
            }
            _ => {
                self.0.replace(BadRun { first: block, last: block, kind, object, verdict }).map(BadRun::line)
            }
        }
    }

    /// The line of the last run.
    pub(crate) fn finish(self) -> Option<String> {
        self.0.map(BadRun::line)
    }
}

impl BadRun {
    /// The system's message of a failed read names its position, which differs from block to block:
    /// the first message is used for the run.
    fn is_like(&self, verdict: &str) -> bool {
        self.kind != Kind::Corrupt || self.verdict == verdict
    }

    fn line(self) -> String {
        let BadRun { first, last, object, verdict, .. } = self;
        let within = object.map_or_else(String::new, |object| format!(" in {object}"));
        if first == last {
            format!("block {first}{within}: {verdict}")
        } else {
            format!("blocks {first}-{last}{within}: {verdict}")
        }
    }
}

/// The text of an error without the number of the block, which begins the line.
fn verdict(block: u64, error: &Error) -> String {
    let text = error.summary();
    let rest = text.strip_prefix(&format!("block {block}"));
    let rest = rest.and_then(|rest| rest.strip_prefix(' ').or_else(|| rest.strip_prefix(": ")));
    rest.map_or(text.clone(), str::to_owned)
}

/// A number of blocks as text.
pub(crate) fn blocks(count: u64) -> String {
    format!("{count} block{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_storage::BlockAddr;

    fn lines(bad: impl IntoIterator<Item = (u64, Error)>) -> Vec<String> {
        let mut runs = BadRuns::default();
        let bad = bad.into_iter().map(|(block, error)| BadBlock { block: BlockAddr(block), error });
        let mut lines: Vec<String> = bad.filter_map(|bad| runs.push(bad, None)).collect();
        lines.extend(runs.finish());
        lines
    }

    #[test]
    fn adjacent_blocks_with_one_verdict_are_one_line() {
        let altered =
            |b: u64| (b, Error::new(Kind::Corrupt, format!("block {b} does not verify")).found("noise"));
        let unmapped =
            |b: u64| (b, Error::new(Kind::Corrupt, "segment 0 has no sound home").hint("restore it"));
        let unread = |b: u64| (b, Error::new(Kind::Io, format!("read of 4096 bytes at byte {}", b * 4096)));
        let of_stripe =
            |b: u64| (b, Error::new(Kind::Corrupt, "cannot read stripe 7").context(format!("block {b}")));
        let bad = [3, 12, 13, 14]
            .map(altered)
            .into_iter()
            .chain([15, 16].map(unmapped))
            .chain([17, 18].map(unread))
            .chain([19, 20].map(of_stripe));
        assert_eq!(
            lines(bad),
            [
                "block 3: does not verify; found: noise",
                "blocks 12-14: does not verify; found: noise",
                "blocks 15-16: segment 0 has no sound home",
                "blocks 17-18: read of 4096 bytes at byte 69632",
                "blocks 19-20: cannot read stripe 7",
            ]
        );
        assert!(lines([]).is_empty());
        let mut runs = BadRuns::default();
        let stale = |b: u64| BadBlock { block: BlockAddr(b), error: Error::new(Kind::Corrupt, "stale") };
        assert!(runs.push(stale(1023), Some("a".into())).is_none());
        assert_eq!(runs.push(stale(1024), Some("b".into())).unwrap(), "block 1023 in a: stale");
    }
}
