//! Columns as kubectl prints them.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use lockstep_api::workload::Phase;

use super::render_options::RenderOptions;

const GAP: usize = 3;
/// Text of an empty cell.
const EMPTY: &str = "-";

/// Meaning of a cell, shown as a color on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    /// Healthy.
    Good,
    /// Temporary, or worth attention.
    Busy,
    /// Needs action by a user.
    Bad,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Busy => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default(),
        }
    }

    /// Colors a text if the presentation has colors.
    pub fn paint(self, text: &str, options: &RenderOptions) -> String {
        if options.color && self != Self::Plain {
            let style = self.style();
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }
}

pub(crate) fn phase_tone(phase: Option<Phase>) -> Tone {
    match phase {
        Some(Phase::Running | Phase::Succeeded) => Tone::Good,
        Some(Phase::Pending | Phase::Starting | Phase::Restarting | Phase::Preempting) => {
            Tone::Busy
        }
        Some(Phase::Failed | Phase::Stalled) => Tone::Bad,
        Some(Phase::Suspended) | None => Tone::Plain,
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: text.into(),
            tone,
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// Rows below a header, with fitting column widths. In cells, newlines become spaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// Prefix of headers that only `-o wide` shows.
const WIDE: char = '+';

impl Table {
    /// Columns with prefix `+` appear only with `-o wide`.
    pub fn new(header: &[&str]) -> Self {
        Self {
            header: header.iter().map(|&h| h.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// An empty cell is shown as `-`.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells = cells.into_iter().map(Into::into).map(|mut cell| {
            cell.text = cell.text.replace('\n', " ");
            if cell.text.is_empty() {
                EMPTY.clone_into(&mut cell.text);
            }
            cell
        });
        self.rows.push(cells.collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The last columns that are too wide for the terminal follow their row, one line each.
    pub fn render(&self, options: &RenderOptions) -> String {
        let columns: Vec<usize> = (0..self.header.len())
            .filter(|&c| options.wide || !self.header[c].starts_with(WIDE))
            .collect();
        let header: Vec<Cell> = self
            .header
            .iter()
            .map(|h| Cell::from(h.trim_start_matches(WIDE)))
            .collect();
        let lines: Vec<&Vec<Cell>> = std::iter::once(&header).chain(&self.rows).collect();
        let widths: Vec<usize> = columns
            .iter()
            .map(|&c| {
                let texts = lines.iter().filter_map(|line| line.get(c));
                texts.map(|cell| cell.text.chars().count()).max()
            })
            .map(Option::unwrap_or_default)
            .collect();
        let (beside, below) = columns.split_at(fitting(&widths, options.width));
        let mut out = String::new();
        for (number, line) in lines.into_iter().enumerate() {
            let mut gap = 0;
            for (&column, width) in beside.iter().zip(&widths) {
                let Some(cell) = line.get(column) else {
                    continue;
                };
                out.extend(std::iter::repeat_n(' ', gap));
                out.push_str(&cell.tone.paint(&cell.text, options));
                gap = width + GAP - cell.text.chars().count();
            }
            out.push('\n');
            for &column in below.iter().filter(|_| number > 0) {
                let Some(cell) = line.get(column).filter(|cell| cell.text != EMPTY) else {
                    continue;
                };
                let name = header[column].text.to_lowercase();
                let text = cell.tone.paint(&cell.text, options);
                let _ = writeln!(out, "  {name}: {text}");
            }
        }
        out
    }
}

/// Number of columns that fit a terminal of this width, at least one.
fn fitting(widths: &[usize], terminal: Option<usize>) -> usize {
    let Some(terminal) = terminal else {
        return widths.len();
    };
    let mut end = 0;
    let fits = widths.iter().take_while(|width| {
        end += **width + GAP;
        end - GAP <= terminal
    });
    fits.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;

    #[test]
    fn wide_columns_are_left_out_and_colours_do_not_shift_columns() {
        let mut table = Table::new(&["NAME", "+NODE", "STATUS", "AGE"]);
        table.row([
            Cell::from("llama"),
            "n1".into(),
            Cell::new("Failed", Tone::Bad),
            "3s".into(),
        ]);
        table.row(["a", "", "Running", ""]);
        let options = RenderOptions::plain(DateTime::default());
        let plain = "NAME    STATUS    AGE\nllama   Failed    3s\na       Running   -\n";
        assert_eq!(table.render(&options), plain);
        let wide = RenderOptions {
            wide: true,
            ..options
        };
        assert!(
            table
                .render(&wide)
                .starts_with("NAME    NODE   STATUS    AGE\n")
        );
        let colored = table.render(&RenderOptions {
            color: true,
            ..options
        });
        assert!(
            colored.contains("\u{1b}[31mFailed\u{1b}[0m    3s"),
            "{colored:?}"
        );
    }
}
