//! What the README shows is what a user sees: its manifest is applied, its story is played, its
//! commands are run, and what they print is compared with what it prints.

use anyhow::{Context, Result, ensure};
use lockstep_cluster::cluster::repository;
use lockstep_cluster::manifests::{parse, pin_to_pool};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::{Scenario, uids};
use lockstep_e2e::cluster;
use serde_json::Value;

/// The workload of the README's story, and the file that it is applied from.
const NAME: &str = "llama";
const FILE: &str = "llama.yaml";
/// Stands for any number of lines that the README leaves out.
const OMITTED: &str = "...";

/// The fenced blocks of the README in a language.
fn blocks(language: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(repository().join("README.md"))?;
    let fence = format!("\n```{language}\n");
    let block = |b: &str| {
        b.split_once("\n```")
            .map(|(block, _)| block.to_owned())
            .context("an open block")
    };
    text.split(&fence).skip(1).map(block).collect()
}

/// The commands of a console block, each with the lines under it.
fn commands(block: &str) -> Result<Vec<(String, Vec<String>)>> {
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

/// The words of a line, without what differs between two runs: ages, lengths of time, and the ends of
/// generated names.
fn words(line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_length = |at: usize| {
        let (before, after) = (
            at.checked_sub(1).and_then(|b| words.get(b)),
            words.get(at + 1),
        );
        before.is_some_and(|b| *b == "Ms:")
            || after.is_some_and(|a| a.starts_with("ms") || *a == "s;")
    };
    let plain = |(at, word): (usize, &&str)| {
        if is_length(at) || is_age(word) {
            "TIME".to_owned()
        } else {
            without_hash(word)
        }
    };
    words.iter().enumerate().map(plain).collect()
}

/// `12s` or `3m4s`; a number alone is none.
fn is_age(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h'])
        && word
            .chars()
            .all(|c| c.is_ascii_digit() || "smh".contains(c))
}

/// Generated names end in a hash of eight digits.
fn without_hash(word: &str) -> String {
    match word.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 8 && hash.chars().all(|c| c.is_ascii_hexdigit()) => {
            format!("{name}-HASH")
        }
        _ => word.to_owned(),
    }
}

/// Whether the README's lines are these, but for what it leaves out.
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

/// The story: a member dies, and all of them go on in their pods.
async fn one_dies(t: &Scenario<'_>) -> Result<()> {
    let before = t.running(NAME).await?;
    t.exit(before.get(2).context("a third member")?, 1).await?;
    t.restarted(NAME, 1).await?;
    ensure!(
        uids(&before) == uids(&t.running(NAME).await?),
        "pods were replaced"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readme_prints_what_its_commands_print() -> Result<()> {
    // The nodes of the README are called after this scenario: node-0000 to node-0003.
    let shape = Shape {
        supervise: true,
        ..Shape::default()
    };
    scenario(cluster().await?, "node", &shape, async |t| {
        let manifest = blocks("yaml")?
            .into_iter()
            .next()
            .context("the README has a manifest")?;
        let mut manifest: Value = parse(&manifest)?;
        pin_to_pool(&mut manifest, &t.name);
        let path = t.cluster.folder().join(FILE).display().to_string();
        std::fs::write(&path, manifest.to_string())?;

        let mut wrong = Vec::new();
        for block in blocks("console")? {
            for (command, expected) in commands(&block)? {
                if command.starts_with("wait ") {
                    for pod in &t.running(NAME).await? {
                        t.exit(pod, 0).await?;
                    }
                }
                let args: Vec<String> = command
                    .split(' ')
                    .map(|a| if a == FILE { path.clone() } else { a.into() })
                    .collect();
                let printed = t
                    .kubectl(&args.iter().map(String::as_str).collect::<Vec<_>>())
                    .await?;
                let actual: Vec<&str> = printed.lines().filter(|l| !l.trim().is_empty()).collect();
                if !same(&expected, &actual) {
                    wrong.push(format!("$ kubectl {command}\n{printed}"));
                }
                if command.starts_with("apply ") {
                    one_dies(t).await?;
                }
            }
        }
        ensure!(
            wrong.is_empty(),
            "the README prints something else than\n{}",
            wrong.join("\n")
        );
        Ok(())
    })
    .await
}
