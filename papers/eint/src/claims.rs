//! The claims of EINT on its schemes relative to AES-Merkle, for low- and high-entropy files,
//! beside the measurements here.

use crate::files::FileClass;
use crate::measure::MeasuredScheme;
use crate::speed::{BLOCK, MetricFn, Speeds, bandwidth, both_times, read_time, storage, write_time};
use lacuna_bench::pages::requirement::{Bound, Requirement};
use lacuna_bench::pages::table::{Table, figure, head};

const LOW: &[FileClass] = &FileClass::LOW_ENTROPY;
const HIGH: &[FileClass] = &FileClass::HIGH_ENTROPY;
const RAND: MeasuredScheme = MeasuredScheme::ReferenceRand;
const COMP: MeasuredScheme = MeasuredScheme::ReferenceComp;
const FILE_MT: MeasuredScheme = MeasuredScheme::FILES[1];
const FILE_RAND: MeasuredScheme = MeasuredScheme::FILES[2];
const FILE_COMP: MeasuredScheme = MeasuredScheme::FILES[3];
const FILE_AUTO: MeasuredScheme = MeasuredScheme::FILES[4];

/// A claim: the metric, the files, the paper's figure, and two subjects: reference and vault.
struct PaperClaim {
    line: &'static str,
    metric: MetricFn,
    files: &'static [FileClass],
    /// The paper's ratio of the scheme to AES-Merkle.
    paper: f64,
    pair: [MeasuredScheme; 2],
}

/// The claims of section 7.1.
const CLAIMS: [PaperClaim; 12] = [
    PaperClaim {
        line: "RAND, low entropy: write",
        metric: write_time,
        files: LOW,
        paper: 0.6492,
        pair: [RAND, FILE_RAND],
    },
    PaperClaim {
        line: "RAND, low entropy: read",
        metric: read_time,
        files: LOW,
        paper: 0.6214,
        pair: [RAND, FILE_RAND],
    },
    PaperClaim {
        line: "RAND, high entropy: write",
        metric: write_time,
        files: HIGH,
        paper: 1.1164,
        pair: [RAND, FILE_RAND],
    },
    PaperClaim {
        line: "RAND, high entropy: read",
        metric: read_time,
        files: HIGH,
        paper: 1.1096,
        pair: [RAND, FILE_RAND],
    },
    PaperClaim {
        line: "COMP, low entropy: write",
        metric: write_time,
        files: LOW,
        paper: 1.02,
        pair: [COMP, FILE_COMP],
    },
    PaperClaim {
        line: "COMP, low entropy: read",
        metric: read_time,
        files: LOW,
        paper: 0.4937,
        pair: [COMP, FILE_COMP],
    },
    PaperClaim {
        line: "COMP, high entropy: write",
        metric: write_time,
        files: HIGH,
        paper: 1.6068,
        pair: [COMP, FILE_COMP],
    },
    PaperClaim {
        line: "COMP, high entropy: read",
        metric: read_time,
        files: HIGH,
        paper: 0.9468,
        pair: [COMP, FILE_COMP],
    },
    PaperClaim {
        line: "RAND, low entropy: bandwidth",
        metric: bandwidth,
        files: LOW,
        paper: 1.0 / 84.08,
        pair: [RAND, FILE_RAND],
    },
    PaperClaim {
        line: "COMP, low entropy: bandwidth",
        metric: bandwidth,
        files: LOW,
        paper: 1.0 / 26.49,
        pair: [COMP, FILE_COMP],
    },
    PaperClaim {
        line: "RAND, low entropy: storage",
        metric: storage,
        files: LOW,
        paper: 1.0 / 2.3,
        pair: [RAND, FILE_RAND],
    },
    PaperClaim {
        line: "COMP, low entropy: storage",
        metric: storage,
        files: LOW,
        paper: 1.0 / 1.17,
        pair: [COMP, FILE_COMP],
    },
];

fn ratio(speeds: &Speeds, of: MetricFn, pair: [MeasuredScheme; 2], classes: &[FileClass]) -> Option<f64> {
    speeds.ratio(of, pair, classes, BLOCK).filter(|ratio| ratio.is_finite())
}

/// All claims: the measured ratios beside the paper's.
pub(crate) fn table(speeds: &Speeds) -> Table {
    let heads = ["paper", "reference to reference MT", "vault to reference MT", "vault to vault mt"];
    let title = "The claims of paper 002, section 7.1, as ratios to MT-EINT; blocks of 4096 bytes";
    let mut table = Table::new(title, head("", heads.map(str::to_owned)));
    for PaperClaim { line, metric: of, files, paper, pair: [reference, file] } in CLAIMS {
        let cell = |pair| figure(ratio(speeds, of, pair, files), 3);
        table.row(
            line,
            [
                format!("{paper:.3}"),
                cell([reference, MeasuredScheme::ReferenceMt]),
                cell([file, MeasuredScheme::ReferenceMt]),
                cell([file, FILE_MT]),
            ],
        );
    }
    table
}

/// The factor between the bandwidth of reference MT and that of a subject, for low-entropy files.
fn times_lower(speeds: &Speeds, subject: MeasuredScheme) -> Option<f64> {
    ratio(speeds, bandwidth, [MeasuredScheme::ReferenceMt, subject], LOW)
}

/// The requirements.
pub(crate) fn requirements(speeds: &Speeds) -> Vec<Requirement> {
    let both = |line: &str, of: MetricFn, most: f64, files: &[FileClass], pair: [MeasuredScheme; 2]| {
        let mut requirement = Requirement::new(line, Bound::AtMost(most), "");
        for subject in pair {
            requirement.add(subject.name(), ratio(speeds, of, [subject, MeasuredScheme::ReferenceMt], files));
        }
        requirement
    };
    let lower = |line: &str, least: f64, subjects: [MeasuredScheme; 2]| {
        let mut requirement = Requirement::new(line, Bound::AtLeast(least), " times");
        for subject in subjects {
            requirement.add(subject.name(), times_lower(speeds, subject));
        }
        requirement
    };
    let rand = [RAND, FILE_RAND];
    vec![
        both("RAND to reference MT, low entropy: write time", write_time, 0.65, LOW, rand),
        both("RAND to reference MT, low entropy: read time", read_time, 0.62, LOW, rand),
        both("RAND to reference MT, high entropy: write time", write_time, 1.12, HIGH, rand),
        both("RAND to reference MT, high entropy: read time", read_time, 1.12, HIGH, rand),
        both("COMP to reference MT, low entropy: read time", read_time, 0.5, LOW, [COMP, FILE_COMP]),
        lower("RAND, low entropy: integrity bandwidth below reference MT", 80.0, rand),
        lower("COMP, low entropy: integrity bandwidth below reference MT", 26.0, [COMP, FILE_COMP]),
        auto(speeds),
    ]
}

/// `auto` compared with the best fixed scheme of each class.
fn auto(speeds: &Speeds) -> Requirement {
    let line = "vault auto: time of writing and reading, to the best scheme of each class";
    let mut requirement = Requirement::new(line, Bound::AtMost(1.05), "");
    for class in FileClass::ALL {
        let to = |subject| ratio(speeds, both_times, [FILE_AUTO, subject], &[class]);
        let worst = [FILE_MT, FILE_RAND, FILE_COMP].into_iter().filter_map(to).reduce(f64::max);
        requirement.add(class.name(), worst);
    }
    requirement
}

/// The figures for a line of the history.
pub(crate) fn history(speeds: &Speeds) -> [String; 3] {
    let pair = |subject| {
        let of = |of: MetricFn| figure(ratio(speeds, of, [subject, MeasuredScheme::ReferenceMt], LOW), 2);
        format!("{} / {}", of(write_time), of(read_time))
    };
    let lower = [RAND, COMP].map(|subject| figure(times_lower(speeds, subject), 0));
    [pair(RAND), pair(FILE_RAND), lower.join(" / ")]
}
