//! Tables 2 to 5 and Figures 12 and 13 of EINT as tables, with the paper's figures.

use crate::files::{ClassSample, FileClass};
use crate::measure::MeasuredScheme;
use crate::paper::{Metric, SIZES, TABLE_2, TABLE_3, printed, to_merkle};
use crate::speed::{BLOCK, MetricFn, Speeds, bandwidth, read_time, storage, subjects, write_time};
use lacuna_bench::pages::table::{Table, figure, head};
use lacuna_integrity::{PACKED_HEADER, compress, is_random_looking};

/// Table 2: the files.
pub(crate) fn files(samples: &[ClassSample]) -> Table {
    let heads = ["files", "MB", "KB a file", "found on the system", "paper: files, MB, KB a file", "types"];
    let mut table =
        Table::new("The classes of files (paper 002, Table 2)", head("", heads.map(str::to_owned)));
    for (sample, (mb, count, average)) in samples.iter().zip(TABLE_2) {
        let (bytes, files) = (sample.bytes() as f64, sample.sizes.len());
        table.row(
            sample.class.name(),
            [
                files.to_string(),
                format!("{:.1}", bytes / 1e6),
                format!("{:.0}", bytes / 1e3 / files as f64),
                format!("{} files, {:.0} MB", sample.found.0, sample.found.1 as f64 / 1e6),
                format!("{count}, {mb:.0}, {average:.0}"),
                sample.class.rule().to_owned(),
            ],
        );
    }
    table
}

/// The share of blocks that satisfy `is`.
fn share(sample: &ClassSample, size: usize, is: impl Fn(&[u8]) -> bool) -> f64 {
    let (mut all, mut some) = (0_u64, 0_u64);
    for block in sample.blocks(size) {
        all += 1;
        some += u64::from(is(block));
    }
    some as f64 / all.max(1) as f64
}

/// The shares of Table 3 for each class: random-looking blocks by block size, and incompressible
/// ones at 4096 bytes.
pub(crate) struct BlockShares(Vec<(FileClass, [f64; SIZES.len()], f64)>);

impl BlockShares {
    pub(crate) fn of(samples: &[ClassSample]) -> BlockShares {
        let mut room = vec![0; BLOCK];
        let mut packs =
            |block: &[u8]| compress(block, &mut room[..block.len() - 16], 16 + PACKED_HEADER).is_none();
        let mut of = |sample: &ClassSample| {
            let random = SIZES.map(|size| share(sample, size, is_random_looking));
            let blocks = sample.blocks(BLOCK).count().max(1);
            let hard = sample.blocks(BLOCK).filter(|block| packs(block)).count();
            (sample.class, random, hard as f64 / blocks as f64)
        };
        BlockShares(samples.iter().map(&mut of).collect())
    }

    /// The shares of random-looking and of incompressible blocks of 4096 bytes.
    pub(crate) fn of_class(&self, class: FileClass) -> (f64, f64) {
        let found = self.0.iter().find(|(of, ..)| *of == class);
        found.map_or((0.0, 0.0), |(_, random, hard)| (random[SIZES.len() - 1], *hard))
    }

    pub(crate) fn table(&self) -> Table {
        let heads = SIZES.map(|size| format!("{size} bytes"));
        let heads = heads.into_iter().chain(["incompressible at 4096".into()]);
        let title = "Share of random-looking blocks, with the paper's in parentheses (paper 002, Table 3)";
        let mut table = Table::new(title, head("", heads));
        for ((class, random, hard), paper) in self.0.iter().zip(TABLE_3) {
            let cells = random.iter().zip(paper).map(|(here, paper)| format!("{here:.4} ({paper})"));
            table.row(class.name(), cells.chain([format!("{hard:.4}")]));
        }
        table
    }
}

/// A metric, its function, and the title of its table.
const METRICS: [(Metric, MetricFn, &str); 4] = [
    (Metric::WriteTime, write_time, "ns to write a block (paper 002, Table 4)"),
    (Metric::ReadTime, read_time, "ns to read a block (paper 002, Table 4)"),
    (Metric::Bandwidth, bandwidth, "bytes of US accessed for a block (paper 002, Table 5)"),
    (Metric::Storage, storage, "bytes of US held for a block (paper 002, Table 5)"),
];

/// Tables 4 and 5: a figure, and in parentheses its ratio to reference MT here and in the paper.
pub(crate) fn tables_4_and_5(speeds: &Speeds) -> Vec<Table> {
    let of = |(metric, of, title): (Metric, MetricFn, &str)| {
        let heads = FileClass::ALL.map(|class| class.name().to_owned());
        let title = format!("{title}; ratio to reference MT, here / paper");
        let mut table = Table::new(title, head("blocks of 4096 bytes", heads));
        for subject in subjects() {
            let no_us = MeasuredScheme::PAPER[..2].contains(&subject) || subject == MeasuredScheme::FILES[0];
            if no_us && matches!(metric, Metric::Bandwidth | Metric::Storage) {
                continue;
            }
            let cell = |class: FileClass| {
                let value = speeds.mean(of, subject, &[class], BLOCK);
                let ratio = speeds.ratio(of, [subject, MeasuredScheme::ReferenceMt], &[class], BLOCK);
                let paper = to_merkle(metric, subject, class);
                let decimals = if value.is_some_and(|value| value < 10.0) { 2 } else { 0 };
                format!("{} ({} / {})", figure(value, decimals), figure(ratio, 2), figure(paper, 2))
            };
            table.row(subject.name(), FileClass::ALL.map(cell));
        }
        table
    };
    METRICS.map(of).into()
}

/// Tables 4 and 5 of the paper, for comparison.
pub(crate) fn papers_tables() -> Table {
    let heads = FileClass::ALL.map(|class| class.name().to_owned());
    let title = "The paper's Tables 4 and 5: seconds to write / read, bytes of bandwidth / MB of storage";
    let mut table = Table::new(title, head("", heads));
    for subject in MeasuredScheme::PAPER {
        let of = |metric, class, decimals| figure(printed(metric, subject, class), decimals);
        let cell = |class: FileClass| {
            format!(
                "{} / {}, {} / {}",
                of(Metric::WriteTime, class, 1),
                of(Metric::ReadTime, class, 1),
                of(Metric::Bandwidth, class, 2),
                of(Metric::Storage, class, 2)
            )
        };
        table.row(subject.name(), FileClass::ALL.map(cell));
    }
    table
}

/// Figures 12 and 13: write time, read time, bandwidth and storage by block size, as ratios to
/// reference MT.
pub(crate) fn sweep(speeds: &Speeds, title: &str, classes: &[FileClass]) -> Table {
    let shown = [
        MeasuredScheme::ReferenceRand,
        MeasuredScheme::ReferenceComp,
        MeasuredScheme::FILES[1],
        MeasuredScheme::FILES[2],
        MeasuredScheme::FILES[3],
        MeasuredScheme::FILES[4],
    ];
    let heads =
        ["reference MT itself".to_owned()].into_iter().chain(shown.map(|subject| subject.name().to_owned()));
    let title = format!("{title}: write / read / bandwidth / storage, to reference MT");
    let mut table = Table::new(title, head("block", heads));
    for size in SIZES {
        let base = |of: MetricFn| speeds.mean(of, MeasuredScheme::ReferenceMt, classes, size);
        let own = format!(
            "{} ns / {} ns / {} B / {} B",
            figure(base(write_time), 0),
            figure(base(read_time), 0),
            figure(base(bandwidth), 0),
            figure(base(storage), 0)
        );
        let cell = |subject: MeasuredScheme| {
            let of = |of: MetricFn| {
                figure(speeds.ratio(of, [subject, MeasuredScheme::ReferenceMt], classes, size), 2)
            };
            [write_time as MetricFn, read_time, bandwidth, storage].map(of).join(" / ")
        };
        table.row(format!("{size} bytes"), [own].into_iter().chain(shown.map(cell)));
    }
    table
}
