//! Output formats: tables with ages for people, JSON and YAML for programs, names for scripts.

pub mod age;
pub(crate) mod brief;
mod render_options;
pub(crate) mod table;

use anyhow::Result;
use serde::Serialize;

pub use self::render_options::RenderOptions;
use crate::args::Format;

/// Indentation of a broken line.
const INDENT: &str = "    ";

pub trait View: Serialize {
    /// Text for people, with a final newline.
    fn screen(&self, options: &RenderOptions) -> String;

    /// Objects of the view, as `kubectl get -o name` prints them.
    fn names(&self) -> Vec<String>;
}

pub fn workload_name(name: &str) -> String {
    format!("trainingworkload.training.lockstep.dev/{name}")
}

pub fn render(view: &impl View, format: Format, options: &RenderOptions) -> Result<String> {
    let wide = format == Format::Wide;
    Ok(match format {
        Format::Table | Format::Wide => {
            let screen = printable(&view.screen(&RenderOptions { wide, ..*options }), options);
            match options.width {
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

/// Replaces control characters, except those of lines and colors. Otherwise, messages of training
/// processes could control the reader's terminal.
fn printable(screen: &str, options: &RenderOptions) -> String {
    let mut out = String::with_capacity(screen.len());
    for (at, c) in screen.char_indices() {
        let kept = c == '\n' || !c.is_control() || (options.color && starts_color(&screen[at..]));
        out.push(if kept { c } else { ' ' });
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

/// True for `ESC [ digits m`, the form of all color sequences.
fn starts_color(text: &str) -> bool {
    let digits = text.strip_prefix("\x1b[");
    let rest = digits.map(|d| d.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';'));
    rest.is_some_and(|rest| rest.starts_with('m'))
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn control_characters_other_than_colors_become_spaces() {
        let plain = RenderOptions::plain(DateTime::UNIX_EPOCH);
        let color = RenderOptions {
            color: true,
            ..plain
        };
        let text = "a\x1b[1;31mred\x1b[0m\n\x1b[2J\x1b]0;title\x07\u{9b}H\r";
        assert_eq!(
            printable(text, &color),
            "a\x1b[1;31mred\x1b[0m\n [2J ]0;title  H "
        );
        assert!(!printable(text, &plain).contains('\x1b'));
    }

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
