//! The program: configuration errors end it at once with one clear line.

use std::io::Write;
use std::process::{Command, Output};

fn manager(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockstep-manager"))
        .args(args)
        .env("KUBECONFIG", "/nonexistent")
        .output()
        .unwrap()
}

fn config(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn an_unknown_key_ends_the_process_with_one_line_that_names_it() {
    let file = config("workloads:\n  concurency: 3\n");
    let out = manager(&["--config", &file.path().display().to_string()]);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(
        (out.status.code(), text.lines().count()),
        (Some(2), 1),
        "{text}"
    );
    assert!(
        text.contains("concurency") && text.contains(&file.path().display().to_string()),
        "{text}"
    );
}

#[test]
fn the_effective_configuration_is_printed_and_can_be_fed_back() {
    let file = config("workloads: {concurrency: 3}");
    let out = manager(&[
        "--config",
        &file.path().display().to_string(),
        "--print-config",
    ]);
    assert!(out.status.success());
    let printed = config(&String::from_utf8(out.stdout.clone()).unwrap());
    let again = manager(&[
        "--config",
        &printed.path().display().to_string(),
        "--print-config",
    ]);
    assert!(String::from_utf8_lossy(&out.stdout).contains("concurrency: 3"));
    assert_eq!(out.stdout, again.stdout);
}

#[test]
fn without_a_cluster_it_says_so_and_fails() {
    let out = manager(&["--kubeconfig", "/nonexistent"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("/nonexistent"));
}
