//! Tables 2 to 4 of PD-DM as printed, beside the modelled figures of lacuna; and modelled figures
//! for the cases without a table in the paper.

use crate::modelled::Modelled;
use lacuna_bench::modelled::ModelledDisk;
use lacuna_bench::modelled::simulated_disk::{MediumModel, Operation};
use lacuna_bench::pages::table::Table;

/// A row of the paper: the operation, and MB/s of dm-crypt, PD-DM and HIVE as printed; `n/a` if the
/// paper has no number.
type PaperRow = (Operation, [&'static str; 3]);

/// A table: its title, the model, whether requests are random, and the rows of the paper.
struct PrintedTable {
    title: &'static str,
    model: MediumModel,
    random: bool,
    rows: [PaperRow; 4],
}

use Operation::{HiddenRead, HiddenWrite, PublicRead, PublicWrite};

/// Rows for cases that the paper did not measure.
const UNMEASURED: [PaperRow; 4] =
    [(PublicRead, ["-"; 3]), (PublicWrite, ["-"; 3]), (HiddenRead, ["-"; 3]), (HiddenWrite, ["-"; 3])];

const PRINTED: [PrintedTable; 6] = [
    PrintedTable {
        title: "Sequential, hard disk (paper 000, Table 2)",
        model: MediumModel::HardDisk,
        random: false,
        rows: [
            (PublicRead, ["97.3", "17.452 ± 0.367", "0.095"]),
            (PublicWrite, ["88.0", "1.347 ± 0.093", "0.013"]),
            (HiddenRead, ["n/a", "12.030 ± 0.088", "0.113"]),
            (HiddenWrite, ["n/a", "1.456 ± 0.086", "0.016"]),
        ],
    },
    PrintedTable {
        title: "Random, hard disk (paper 000, Table 3)",
        model: MediumModel::HardDisk,
        random: true,
        rows: [
            (PublicRead, ["0.526", "0.309 ± 0.005", "0.012"]),
            // The paper prints "Hidden Write" here, as in the last row; it must be the public one.
            (PublicWrite, ["1.094", "0.276 ± 0.017", "0.010"]),
            (HiddenRead, ["n/a", "0.309 ± 0.011", "0.097"]),
            (HiddenWrite, ["n/a", "0.282 ± 0.024", "0.014"]),
        ],
    },
    PrintedTable {
        title: "Sequential, SSD (paper 000, Table 4)",
        model: MediumModel::Ssd,
        random: false,
        rows: [
            (PublicRead, ["225.56", "99.866 ± 0.015", "0.771"]),
            (PublicWrite, ["210.10", "2.705 ± 0.023", "0.546"]),
            (HiddenRead, ["n/a", "97.373 ± 0.009", "4.534"]),
            (HiddenWrite, ["n/a", "3.176 ± 0.017", "0.609"]),
        ],
    },
    PrintedTable {
        title: "Sequential, hard disk behind a write-back cache",
        model: MediumModel::CachedHardDisk,
        random: false,
        rows: UNMEASURED,
    },
    PrintedTable {
        title: "Random, hard disk behind a write-back cache",
        model: MediumModel::CachedHardDisk,
        random: true,
        rows: UNMEASURED,
    },
    PrintedTable { title: "Random, SSD", model: MediumModel::Ssd, random: true, rows: UNMEASURED },
];

pub(crate) fn name(operation: Operation) -> &'static str {
    match operation {
        PublicRead => "public read",
        PublicWrite => "public write",
        HiddenRead => "hidden read",
        HiddenWrite => "hidden write",
    }
}

/// The operation of the baseline that an operation is compared with: a baseline has one level.
fn baseline(operation: Operation) -> Operation {
    match operation {
        PublicRead | HiddenRead => PublicRead,
        PublicWrite | HiddenWrite => PublicWrite,
    }
}

/// The number at the start of a printed figure.
fn number(printed: &str) -> Option<f64> {
    printed.split(' ').next()?.parse().ok()
}

/// A figure with its ratio to the baseline in parentheses; the baseline has no ratio.
fn with_ratio(figure: String, value: Option<f64>, base: Option<f64>) -> String {
    match (value, base) {
        (Some(value), Some(base)) => format!("{figure} ({:.3})", value / base),
        _ => figure,
    }
}

/// All tables: MB/s, and in parentheses the ratio to `xts` here, or to the paper's dm-crypt.
pub(crate) fn tables(found: &Modelled) -> Vec<Table> {
    PRINTED.iter().map(|printed| table(found, printed)).collect()
}

fn table(found: &Modelled, printed: &PrintedTable) -> Table {
    let of_paper: &[&str] = if printed.rows == UNMEASURED { &[] } else { &["dm-crypt", "PD-DM", "HIVE"] };
    let columns = ModelledDisk::ALL.map(ModelledDisk::name);
    let mut table = Table::new(printed.title, [&["MB/s"], &columns[..], of_paper].concat());
    let rate = |case, operation| found.rate(printed.model, printed.random, case, operation);
    let paper = |operation| &printed.rows.iter().find(|(o, _)| *o == operation).expect("all are there").1;
    for (operation, figures) in &printed.rows {
        let mut cells = vec![];
        for case in ModelledDisk::ALL {
            let base =
                (case != ModelledDisk::Xts).then(|| rate(ModelledDisk::Xts, baseline(*operation))).flatten();
            let rate = rate(case, *operation);
            let figure = rate.map_or_else(|| "n/a".into(), |rate| megabytes(rate / 1e6));
            cells.push(with_ratio(figure, rate, base));
        }
        for (i, figure) in figures.iter().take(of_paper.len()).enumerate() {
            let base = (i > 0).then(|| number(paper(baseline(*operation))[0])).flatten();
            cells.push(with_ratio((*figure).to_owned(), number(figure), base));
        }
        table.row(name(*operation), cells);
    }
    table
}

/// Formats MB/s with up to three significant digits below 1000.
pub(crate) fn megabytes(speed: f64) -> String {
    let decimals = if speed < 1.0 { 3 } else { usize::from(speed < 100.0) };
    format!("{speed:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_every_operation_and_every_figure_is_a_number() {
        for printed in &PRINTED[..3] {
            assert_eq!(printed.rows.map(|row| row.0), [PublicRead, PublicWrite, HiddenRead, HiddenWrite]);
            for (operation, figures) in printed.rows {
                let expected = [baseline(operation) == operation, true, true];
                assert_eq!(figures.map(|figure| number(figure).is_some()), expected, "{figures:?}");
            }
        }
        assert_eq!(
            with_ratio("17.452 ± 0.367".into(), number("17.452 ± 0.367"), Some(97.3)),
            "17.452 ± 0.367 (0.179)"
        );
    }
}
