//! Wraps text that is too wide for a picture.

/// Long lines are wrapped at a space and continue under their last table cell. Colour sequences
/// have no width.
pub fn wrapped(text: &str, most: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut column = 0;
        // Start of the cell, after more than one space.
        let mut cell = 0;
        let mut spaces = 0;
        for word in line.split_inclusive(' ') {
            let columns = shown(word);
            let blank = word == " ";
            if !blank && spaces > 1 {
                cell = column;
            }
            if column > cell && column + columns > most {
                out.push('\n');
                out.push_str(&" ".repeat(cell));
                column = cell;
            }
            out.push_str(word);
            column += columns;
            spaces = match (blank, word.ends_with(' ')) {
                (true, _) => spaces + 1,
                (false, ends) => usize::from(ends),
            };
        }
        out.push('\n');
    }
    out
}

/// Width of a word in columns.
fn shown(word: &str) -> usize {
    let mut escape = false;
    let mut columns = 0;
    for c in word.chars() {
        escape |= c == '\u{1b}';
        columns += usize::from(!escape);
        // Colour sequences end with this character.
        escape &= c != 'm';
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cell_wraps_within_its_column() {
        let message = "insufficient nvidia.com/gpu: 2 pods need 16 more ".repeat(4);
        let row = format!("1       \u{1b}[33mwaits\u{1b}[0m   {message}");
        let text = format!("PLACE   STATE   MESSAGE\n{row}\n");
        let out = wrapped(&text, 100);
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines.len() > 2, "{out}");
        let indent = "PLACE   STATE   ".len();
        let rest = lines[2].strip_prefix(&" ".repeat(indent));
        assert!(rest.is_some_and(|r| !r.starts_with(' ')), "{out}");
        assert!(lines.iter().all(|l| shown(l) <= 100), "{out}");
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&out), words(&text));
    }

    #[test]
    fn a_long_line_outside_a_table_wraps_to_the_first_column() {
        let text = "word ".repeat(40);
        let out = wrapped(&text, 100);
        assert_eq!(out.lines().count(), 2);
        assert!(out.lines().all(|l| l.starts_with("word ")), "{out}");
    }
}
