//! Tables, for the terminal and for Markdown.

use std::fmt::Write;

/// A title, a head, and rows of the same width.
pub struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<S: Into<String>>(title: impl Into<String>, head: impl IntoIterator<Item = S>) -> Self {
        Table { title: title.into(), head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row: its first cell, and the remaining ones.
    pub fn row(&mut self, first: impl Into<String>, others: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = std::iter::once(first.into()).chain(others).collect();
        debug_assert_eq!(cells.len(), self.head.len(), "a row is as wide as the head");
        self.rows.push(cells);
    }

    /// The table as text with aligned columns.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            let cells = std::iter::once(&self.head).chain(&self.rows);
            cells.filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut text = format!("{}\n", self.title);
        for row in std::iter::once(&self.head).chain(&self.rows) {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(text, "  {}", cells.join("  ").trim_end()).expect("a string takes everything");
        }
        text
    }

    /// A Markdown table below a heading.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = vec!["---".to_owned(); self.head.len()];
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("### {}\n\n{}{}{rows}", self.title, line(&self.head), line(&rule))
    }
}

/// A figure with `decimals` decimals; `-` for `None`.
pub fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.decimals$}"))
}

/// The head of a table: the first column, and the remaining ones.
pub fn head(first: &str, others: impl IntoIterator<Item = String>) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_are_aligned_and_markdown_is_ruled() {
        let mut table = Table::new("Speeds", ["job", "rate"]);
        table.row("long name", ["1".into()]);
        assert_eq!(table.text(), "Speeds\n  job        rate\n  long name  1\n");
        assert_eq!(table.markdown(), "### Speeds\n\n| job | rate |\n| --- | --- |\n| long name | 1 |\n");
    }
}
