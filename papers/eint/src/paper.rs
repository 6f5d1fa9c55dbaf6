//! The figures that EINT prints in its section 7.1, for the paper columns.

use crate::files::FileClass;
use crate::measure::MeasuredScheme;

/// Table 2: MB in total, files, KB on average.
pub(crate) const TABLE_2: [(f64, u32, f64); 5] = [
    (245.0, 808, 307.11),
    (217.0, 28, 7710.0),
    (341.0, 3029, 112.84),
    (189.0, 641, 198.4),
    (249.0, 2, 124_050.0),
];

/// The block sizes of Table 3 and of Figures 12 and 13.
pub(crate) const SIZES: [usize; 6] = [128, 256, 512, 1024, 2048, 4096];

/// Table 3: the share of random-looking blocks, by class and block size.
pub(crate) const TABLE_3: [[f64; 6]; 5] = [
    [0.1075, 0.087, 0.0652, 0.0524, 0.0409, 0.0351],
    [0.0003, 0.0002, 0.0002, 0.0002, 0.0002, 0.0001],
    [0.003, 0.0019, 0.0015, 0.0013, 0.0011, 0.0009],
    [0.9421, 0.9277, 0.8794, 0.788, 0.6176, 0.502],
    [0.936, 0.8936, 0.8481, 0.8292, 0.7915, 0.7812],
];

/// Table 4: seconds to write the files of a class, by subject as in `Subject::PAPER` and class.
const TABLE_4_WRITE: [[f64; 5]; 5] = [
    [20.18, 13.75, 54.85, 8.81, 18.57],
    [26.94, 20.13, 65.6, 14.97, 23.31],
    [53.67, 43.08, 99.43, 35.86, 50.46],
    [31.78, 22.33, 73.25, 37.56, 58.81],
    [51.32, 43.54, 105.83, 59.88, 78.82],
];

/// Table 4: seconds to read the files of a class.
const TABLE_4_READ: [[f64; 5]; 5] = [
    [9.07, 7.93, 26.26, 7.52, 8.63],
    [17.92, 15.79, 34.1, 13.84, 18.14],
    [40.55, 45.76, 66.96, 27.88, 55.82],
    [24.71, 21.19, 49.34, 30.44, 62.44],
    [18.49, 15.44, 41.73, 27.31, 51.93],
];

/// Table 5: bytes of integrity bandwidth per block, for AES-Merkle, CMC-Entropy, AES-Compression.
const TABLE_5_BANDWIDTH: [[f64; 5]; 3] = [
    [132.86, 204.38, 111.22, 106.42, 227.09],
    [4.71, 0.16, 0.52, 60.74, 211.08],
    [9.93, 3.01, 3.66, 113.26, 229.44],
];

/// Table 5: MB of untrusted storage for integrity.
const TABLE_5_STORAGE: [[f64; 5]; 3] =
    [[8.1, 2.34, 26.26, 6.1, 2.49], [3.55, 0.13, 12.24, 5.38, 2.06], [6.55, 0.22, 24.38, 6.04, 2.22]];

/// A printed metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    WriteTime,
    ReadTime,
    Bandwidth,
    Storage,
}

/// A printed figure, as a ratio to AES-Merkle; `None` if the paper has none.
pub(crate) fn to_merkle(metric: Metric, subject: MeasuredScheme, class: FileClass) -> Option<f64> {
    let row = MeasuredScheme::PAPER.iter().position(|of| *of == subject)?;
    let (merkle, class) = (2, class as usize);
    let ratio =
        |table: &[[f64; 5]], row: usize, base: usize| Some(table.get(row)?[class] / table[base][class]);
    match metric {
        Metric::WriteTime => ratio(&TABLE_4_WRITE, row, merkle),
        Metric::ReadTime => ratio(&TABLE_4_READ, row, merkle),
        Metric::Bandwidth => ratio(&TABLE_5_BANDWIDTH, row.checked_sub(merkle)?, 0),
        Metric::Storage => ratio(&TABLE_5_STORAGE, row.checked_sub(merkle)?, 0),
    }
}

/// A printed figure of Table 4 in seconds, or of Table 5 in bytes and MB.
pub(crate) fn printed(metric: Metric, subject: MeasuredScheme, class: FileClass) -> Option<f64> {
    let row = MeasuredScheme::PAPER.iter().position(|of| *of == subject)?;
    let class = class as usize;
    match metric {
        Metric::WriteTime => Some(TABLE_4_WRITE[row][class]),
        Metric::ReadTime => Some(TABLE_4_READ[row][class]),
        Metric::Bandwidth => Some(TABLE_5_BANDWIDTH.get(row.checked_sub(2)?)?[class]),
        Metric::Storage => Some(TABLE_5_STORAGE.get(row.checked_sub(2)?)?[class]),
    }
}
