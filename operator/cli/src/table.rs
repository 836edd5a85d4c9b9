//! Columns as kubectl prints them.

use std::fmt;

/// Rows under a header, columns as wide as they have to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    /// A table without rows.
    pub fn new(header: &[&str]) -> Self {
        Self(vec![header.iter().map(|&h| h.to_owned()).collect()])
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// Whether there is nothing below the header.
    pub fn is_empty(&self) -> bool {
        self.0.len() < 2
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GAP: usize = 3;
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.0
                .iter()
                .filter_map(|r| r.get(column))
                .map(|c| c.chars().count())
                .max()
        };
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0) + GAP).collect();
        for row in &self.0 {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, &width)| format!("{cell:width$}"));
            writeln!(f, "{}", cells.collect::<String>().trim_end())?;
        }
        Ok(())
    }
}
