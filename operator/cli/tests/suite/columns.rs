//! Golden help texts and screens at 80 and 120 columns. `UPDATE_GOLDEN=1` writes the files.

use std::fmt::Write as _;
use std::path::Path;

use clap::CommandFactory;
use lockstep_cli::args::{Args, Format};
use lockstep_cli::explain::{Story, explain};
use lockstep_cli::status::status;
use lockstep_cli::view::{RenderOptions, render};
use serde_json::{Value, json};

use crate::problems::{command, stdout};
use crate::screens::objects;
use crate::support::now;

/// Most columns of a help text.
const HELP: usize = 100;

/// The output of a command that needs no cluster, on a terminal of this width.
fn printed(args: &[&str], columns: usize) -> String {
    let mut command = command(args);
    stdout(
        &command
            .env("COLUMNS", columns.to_string())
            .output()
            .unwrap(),
    )
}

fn waiting() -> Value {
    let message = "0 of 1 gangs are placed: insufficient nvidia.com/gpu: 2 pods need 16 more; preemption cannot free enough";
    json!({"phase": "Pending", "reason": "Unschedulable", "message": message, "ready": "0/4", "attempt": 1,
        "conditions": [{"type": "Admitted", "status": "False", "reason": "Unschedulable", "message": message,
            "lastTransitionTime": "2026-11-18T10:06:40Z"}]})
}

/// Help texts of the verbs that run kubectl, and screens of a workload that waits.
fn outputs(columns: usize) -> String {
    let mut out = String::new();
    for args in [
        &["options"][..],
        &["exec", "--help"],
        &["cp", "--help"],
        &["port-forward", "--help"],
        &["get", "--help"],
        &["version", "--client"],
    ] {
        let command = args.join(" ");
        let text = printed(args, columns);
        let _ = writeln!(out, "$ kubectl lockstep {command}\n{text}");
    }
    let options = RenderOptions {
        width: Some(columns),
        ..RenderOptions::plain(now())
    };
    let mut objects = objects(&waiting());
    objects.pods = Some(Vec::new());
    objects.groups.clear();
    let story = Story {
        workload: objects.workload.clone(),
        groups: Vec::new(),
        events: Vec::new(),
    };
    let screen = render(&status(&objects, now()), Format::Table, &options).unwrap();
    let _ = writeln!(out, "$ kubectl lockstep status llama -n ml\n{screen}");
    let screen = render(&explain(&story), Format::Table, &options).unwrap();
    let _ = writeln!(out, "$ kubectl lockstep explain llama -n ml\n{screen}");
    out
}

#[test]
fn help_and_screens_are_what_the_golden_files_have() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for columns in [80, 120] {
        let path = folder.join(format!("columns-{columns}.txt"));
        let outputs = outputs(columns);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &outputs).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(outputs, kept, "{}: UPDATE_GOLDEN=1", path.display());
    }
}

#[test]
fn no_line_of_a_help_is_wider_than_the_terminal_or_a_hundred_columns() {
    let mut helps = vec![vec!["--help".to_owned()], vec!["options".to_owned()]];
    let command = Args::command();
    let verbs = command.get_subcommands().map(clap::Command::get_name);
    helps.extend(verbs.map(|verb| vec![verb.to_owned(), "--help".to_owned()]));
    for columns in [80, 120] {
        for args in &helps {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let text = printed(&args, columns);
            let long = text.lines().find(|l| l.chars().count() > columns.min(HELP));
            assert_eq!(long, None, "{args:?} at {columns} columns");
            // A broken example cannot be copied.
            let verb = command.find_subcommand(args[0]).filter(|_| args.len() > 1);
            let examples = verb.and_then(clap::Command::get_after_help);
            let examples = examples.map(ToString::to_string).unwrap_or_default();
            for line in examples.lines() {
                assert!(
                    text.contains(line),
                    "{line:?} is broken at {columns} columns"
                );
            }
        }
    }
}
