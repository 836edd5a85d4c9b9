//! Every message literal in the product's source has a line in the golden file.
//!
//! A site is a string literal with a space, in the files below. Its line has the words of the
//! literal around its placeholders, in order. Single words do not count. [`UNSAID`] lists the
//! literals that no story produces, with the reason.

use std::path::{Path, PathBuf};

use super::said;

/// Files and folders, from the root of the repository.
const SOURCES: [&str; 10] = [
    "api/src/workload/checkpoint.rs",
    "operator/lifecycle/src",
    "operator/scheduler/src/messages.rs",
    "operator/scheduler/src/cycle/status.rs",
    "operator/engine/src/infeasible.rs",
    "operator/model/src/demand/misfit.rs",
    "operator/model/src/cluster/neighbours.rs",
    "operator/model/src/quota.rs",
    "operator/model/src/pods/slots.rs",
    "operator/model/src/volumes.rs",
];

/// Parts of these folders without messages for users: decisions of agents, and tests.
const LEFT_OUT: [&str; 4] = ["src/node/", "tests.rs", "sizes.rs", "settings.rs"];

/// Beginnings of literals outside all stories, with the reason.
const UNSAID: [(&str, &str); 8] = [
    (
        "no command specified",
        "words of containerd that are recognized in its messages",
    ),
    (
        "init container {name} runs",
        "init containers of the simulation succeed at once",
    ),
    (
        "the supervisor did not arrive",
        "supervisors of the simulation arrive as soon as their container runs",
    ),
    (
        "a container",
        "of a cause that a hand has damaged: every exit is that of a container with a name",
    ),
    (
        "{}, and the gang may not preempt",
        "for programs without the names of resources: benchmarks and tests of the engine",
    ),
    ("{} pods of shape {} do not fit", "the same"),
    (" in domain {domain} of key {key}", "the same"),
    (
        "no placement of all shapes found",
        "the same: the scheduler says that it is not known",
    ),
];

/// The string literals of a source file before its tests. In attributes, only those of `#[error]`
/// are messages.
fn literals(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = source.lines().map(str::trim_start);
    let code: Vec<&str> = lines
        .filter(|l| {
            !l.starts_with("//") && !l.starts_with("#[must_use") && !l.starts_with("reason =")
        })
        .collect();
    let code = code.join("\n");
    let mut out = Vec::new();
    let mut chars = code.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            // A character, or a lifetime, which has no second quotation mark.
            '\'' if chars.next_if_eq(&'\\').is_some() || chars.peek() == Some(&'"') => {
                chars.next();
            }
            '"' => {
                let mut text = String::new();
                while let Some(c) = chars.next().filter(|c| *c != '"') {
                    match c {
                        '\\' => match chars.next() {
                            // The next line continues without its indentation.
                            Some('\n') => while chars.next_if_eq(&' ').is_some() {},
                            Some(escaped) => text.push(escaped),
                            None => {}
                        },
                        c => text.push(c),
                    }
                }
                out.push(text);
            }
            _ => {}
        }
    }
    out
}

/// True if a line has the words of a literal, with any text for its placeholders.
fn says(line: &str, literal: &str) -> bool {
    let mut rest = line;
    let parts = literal.split('{').enumerate();
    let mut words = parts.map(|(at, part)| match (at, part.split_once('}')) {
        (0, _) | (_, None) => part,
        (_, Some((_, words))) => words,
    });
    words.all(|words| match rest.split_once(words) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

fn files(path: &Path, out: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            files(&entry.unwrap().path(), out);
        }
    } else if !LEFT_OUT
        .iter()
        .any(|part| path.to_str().unwrap().contains(part))
    {
        out.push(path.to_owned());
    }
}

#[test]
fn every_place_that_makes_a_message_has_its_line_in_the_golden_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = Vec::new();
    for path in SOURCES {
        files(&root.join(path), &mut sources);
    }
    let lines: Vec<&String> = said().0.values().collect();
    let mut silent = Vec::new();
    let mut unsaid: Vec<&str> = UNSAID.iter().map(|(text, _)| *text).collect();
    for path in sources {
        let source = std::fs::read_to_string(&path).unwrap();
        for text in literals(&source) {
            let is_message = text.trim().contains(' ');
            if !is_message || lines.iter().any(|line| says(line, &text)) {
                continue;
            }
            let known = unsaid.len();
            unsaid.retain(|begin| !text.starts_with(begin));
            if unsaid.len() == known {
                silent.push(format!("{}: {text}", path.display()));
            }
        }
    }
    assert_eq!(
        silent,
        Vec::<String>::new(),
        "no story brings the product to say this"
    );
    assert_eq!(unsaid, Vec::<&str>::new(), "said in a story, or gone");
}

#[test]
fn a_literal_is_found_by_its_words_whatever_stands_for_its_placeholders() {
    let source = "/// \"no\"\nlet a = '\"'; let b: &'static str = \"one {} of {n} \\\n      pods\"; f(\"\\\"x\\\"\");\n#[cfg(test)] \"t\"";
    assert_eq!(literals(source), ["one {} of {n} pods", "\"x\""]);
    assert!(says("gang g: one 3 of 4 pods", "one {} of {n} pods"));
    assert!(!says("one 3 pods of 4", "one {} of {n} pods"));
}
