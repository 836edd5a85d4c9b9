//! Console blocks of the documentation, compared with the output of their commands.

use anyhow::{Context, Result};
use lockstep_cluster::cluster::repository;

/// Any number of lines that a page omits.
const OMITTED: &str = "...";

/// The fenced blocks of a page with this language.
pub fn blocks(page: &str, language: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(repository().join(page))?;
    let fence = format!("\n```{language}\n");
    let block = |b: &str| {
        b.split_once("\n```")
            .map(|(block, _)| block.to_owned())
            .context("an open block")
    };
    text.split(&fence).skip(1).map(block).collect()
}

/// The commands of a console block, each with its lines of output.
pub fn commands(block: &str) -> Result<Vec<(String, Vec<String>)>> {
    let mut out: Vec<(String, Vec<String>)> = Vec::new();
    for line in block.lines().filter(|l| !l.trim().is_empty()) {
        if let Some(command) = line.strip_prefix("$ kubectl ") {
            out.push((command.to_owned(), Vec::new()));
        } else {
            out.last_mut()
                .context("a console block begins with `$ kubectl `")?
                .1
                .push(line.to_owned());
        }
    }
    Ok(out)
}

/// True if the lines of a page are the printed lines, apart from omitted lines.
pub fn prints(expected: &[String], printed: &str) -> bool {
    let actual: Vec<&str> = printed.lines().filter(|l| !l.trim().is_empty()).collect();
    same(expected, &actual)
}

fn same(expected: &[String], actual: &[&str]) -> bool {
    let Some((first, rest)) = expected.split_first() else {
        return actual.is_empty();
    };
    if first == OMITTED {
        return (0..=actual.len()).any(|skipped| same(rest, &actual[skipped..]));
    }
    actual
        .split_first()
        .is_some_and(|(line, left)| words(line) == words(first) && same(rest, left))
}

/// Words of a line, without values that differ between two runs: ages, durations, work, and
/// suffixes of generated names.
fn words(line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_amount = |at: usize| {
        let (before, after) = (
            at.checked_sub(1).and_then(|b| words.get(b)),
            words.get(at + 1),
        );
        before.is_some_and(|b| *b == "Ms:")
            || after.is_some_and(|a| {
                let of_work = ["GPU-hours", "accelerator-seconds"];
                a.starts_with("ms")
                    || matches!(*a, "s" | "s;")
                    || of_work.iter().any(|w| a.starts_with(w))
            })
    };
    let plain = |(at, word): (usize, &&str)| {
        if is_amount(at) || is_age(word) {
            "AMOUNT".to_owned()
        } else {
            without_hash(word)
        }
    };
    words.iter().enumerate().map(plain).collect()
}

/// True for `12s` or `3m4s`, but not for a number alone.
fn is_age(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h'])
        && word
            .chars()
            .all(|c| c.is_ascii_digit() || "smh".contains(c))
}

/// Removes the hash of eight digits at the end of generated names and intents.
fn without_hash(word: &str) -> String {
    let plain = word.trim_end_matches([')', ':', ',', ';']);
    let (name, hash) = plain.rsplit_once('-').unwrap_or(("", plain));
    if hash.len() == 8 && hash.chars().all(|c| c.is_ascii_hexdigit()) {
        format!("{name}-HASH{}", &word[plain.len()..])
    } else {
        word.to_owned()
    }
}

#[test]
fn a_screen_that_says_something_else_is_not_the_one_of_the_page() {
    let page = "NAME READY QUEUED\nllama 4/4 12s\n...\npod llama-0a1b2c3d exit code 3\ndone";
    let page: Vec<String> = page.lines().map(str::to_owned).collect();
    let screen =
        "NAME  READY  QUEUED\nllama  4/4  3m4s\n\nx\ny\npod llama-99999999 exit code 3\ndone\n";
    assert!(prints(&page, screen));
    assert!(prints(&page, &screen.replace("x\ny\n", "")));
    for (is, instead) in [
        ("4/4", "3/4"),
        ("llama  4", "lama  4"),
        ("code 3", "code 4"),
        ("3m4s", "-"),
        ("done\n", "done\nmore\n"),
        ("done\n", ""),
        ("NAME  READY  QUEUED\n", ""),
        ("llama  4/4", "more\nllama  4/4"),
        // A line after omitted lines is required.
        ("pod llama-99999999 exit code 3\n", ""),
    ] {
        let spoilt = screen.replace(is, instead);
        assert!(spoilt != screen && !prints(&page, &spoilt), "{spoilt}");
    }
}
