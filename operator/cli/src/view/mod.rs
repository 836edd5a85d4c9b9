//! Output formats: tables with ages for people, JSON and YAML for programs, names for scripts.

pub mod age;
mod look;
pub(crate) mod table;

use anyhow::Result;
use serde::Serialize;

pub use self::look::Look;
use crate::args::Format;

/// Indentation of a broken line.
const INDENT: &str = "    ";

/// Result of a command, ready for output.
pub trait View: Serialize {
    /// Text for people, with a final newline.
    fn screen(&self, look: &Look) -> String;

    /// Objects of the view, as `kubectl get -o name` prints them.
    fn names(&self) -> Vec<String>;
}

/// Name of a workload, as `kubectl get -o name` prints it.
pub fn workload_name(name: &str) -> String {
    format!("trainingworkload.training.lockstep.dev/{name}")
}

pub fn render(view: &impl View, format: Format, look: &Look) -> Result<String> {
    let wide = format == Format::Wide;
    Ok(match format {
        Format::Table | Format::Wide => {
            let screen = view.screen(&Look { wide, ..*look });
            match look.width {
                Some(width) => wrapped(&screen, width),
                None => screen,
            }
        }
        Format::Json => format!("{}\n", serde_json::to_string_pretty(view)?),
        Format::Yaml => serde_saphyr::to_string(view)?,
        Format::Name => match view.names().join("\n") {
            names if names.is_empty() => names,
            names => names + "\n",
        },
    })
}

/// Breaks lines that are longer than the terminal at spaces.
fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut end = 0;
        for word in line.split_inclusive(' ') {
            let length = visible(word);
            if end + visible(word.trim_end()) > width && end > INDENT.len() {
                out.truncate(out.trim_end().len());
                out.push('\n');
                out.push_str(INDENT);
                end = INDENT.len();
            }
            out.push_str(word);
            end += length;
        }
        out.push('\n');
    }
    out
}

/// Number of characters without colour sequences.
fn visible(text: &str) -> usize {
    let mut in_color = false;
    let shown = text.chars().filter(|&c| {
        let skipped = in_color || c == '\u{1b}';
        in_color = skipped && c != 'm';
        !skipped
    });
    shown.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_at_spaces_and_continue_indented() {
        let text = "short\nReady: pods of \u{1b}[31mgroup\u{1b}[0m a wait\n  indented words too\n";
        assert_eq!(
            wrapped(text, 16),
            "short\nReady: pods of\n    \u{1b}[31mgroup\u{1b}[0m a wait\n  indented words\n    too\n"
        );
        assert_eq!(wrapped("averylongword\n", 5), "averylongword\n");
    }
}
