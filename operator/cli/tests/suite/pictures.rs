//! The pictures in `docs/pictures` are drawn by hand (`make pictures`). Their table headings must
//! match the code's output.

use std::path::Path;

use lockstep_cli::list::list;
use lockstep_cli::status::status;
use lockstep_cli::top::top;

use crate::queueing::{answer, waits};
use crate::screens::{objects, restarting};
use crate::support::{full_cluster, now, screen};

fn said(verb: &str) -> Option<String> {
    let all = full_cluster();
    Some(match verb {
        "list" => screen(&list(&all.workloads, None)),
        "queue" => screen(&answer(&[("new", 5, waits("Unschedulable", ""))])),
        "status" => screen(&status(&objects(&restarting()), now())),
        "top" => screen(&top(&all.workloads, &all.groups, None)),
        _ => return None,
    })
}

/// Headings of the first table in a text.
fn headings(text: &str) -> Vec<&str> {
    let is_heading = |line: &&str| {
        let letter = |c: char| c.is_ascii_uppercase() || c == ' ';
        line.contains("   ") && line.chars().all(letter)
    };
    let first = text.lines().map(str::trim).find(is_heading);
    let columns = first.unwrap_or_default().split("   ").map(str::trim);
    columns.filter(|c| !c.is_empty()).collect()
}

/// Text of a picture, one line per element.
fn text(picture: &str) -> String {
    let mut out = String::new();
    for part in picture.split('<') {
        // There is no text before the first tag.
        out += part.split_once('>').map_or("", |(_, text)| text);
    }
    out
}

/// Pictures, named after a command, whose first table has other headings than the code's output.
fn outdated(pictures: &[(String, String)]) -> Vec<String> {
    let mut out = Vec::new();
    for (verb, picture) in pictures {
        let said = said(verb).unwrap_or_default();
        let (drawn, now) = (text(picture), headings(&said));
        let drawn = headings(&drawn);
        if drawn != now || now.is_empty() {
            out.push(format!("{verb}.svg has {drawn:?}, the code {now:?}"));
        }
    }
    out
}

fn pictures() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|e| e.unwrap().path());
    let screens = paths.filter(|p| p.extension().is_some_and(|e| e == "svg"));
    let read = |path: std::path::PathBuf| {
        let verb = path.file_stem().unwrap().to_string_lossy().into_owned();
        (verb, std::fs::read_to_string(&path).unwrap())
    };
    screens.map(read).collect()
}

#[test]
fn screens_in_the_documentation_have_the_headings_of_the_code() {
    let pictures = pictures();
    assert_eq!(pictures.len(), 4, "{pictures:?}");
    assert_eq!(outdated(&pictures), [""; 0]);
}

#[test]
fn a_screen_with_another_heading_is_found() {
    for (verb, right, mistake) in [
        ("list", "ACCELERATORS", "HELD"),
        ("queue", "SHARE   ", ""),
        ("status", "SUCCEEDED", "DONE"),
        ("top", "RUNNING   ", "RUNNING   MORE   "),
    ] {
        let mut pictures = pictures();
        pictures.retain(|(of, _)| of == verb);
        for (_, picture) in &mut pictures {
            *picture = picture.replace(right, mistake);
        }
        let found = outdated(&pictures);
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("{verb}.svg has ")),
            "{verb}: {found:?}"
        );
    }
}
