//! The program: files in, exit codes out.

use std::path::Path;
use std::process::{Command, Output};

use lockstep_cli::file::write_snapshot;
use serde_json::{Value, json};

use crate::support::{full_cluster, manifest, snapshot};

fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-lockstep"))
        .current_dir(dir)
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_exit_code_is_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    write_snapshot(&dir.path().join("c.zst"), &snapshot(full_cluster())).unwrap();
    for (name, members, code) in [("one", 1, 0), ("many", 9, 2)] {
        let file = format!("{name}.json");
        std::fs::write(
            dir.path().join(&file),
            manifest(name, members, 8, &json!({})).to_string(),
        )
        .unwrap();
        let out = run(
            dir.path(),
            &["whatif", "-f", &file, "--snapshot", "c.zst", "-o", "json"],
        );
        let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(
            (out.status.code(), &answer["fits"]),
            (Some(code), &json!(code == 0)),
            "{}",
            text(&out.stderr)
        );
    }
}

#[test]
fn whatif_with_a_snapshot_says_what_it_does_not_validate() {
    let dir = tempfile::tempdir().unwrap();
    write_snapshot(&dir.path().join("c.zst"), &snapshot(full_cluster())).unwrap();
    let said = |manifest: &Value| {
        std::fs::write(dir.path().join("m.json"), manifest.to_string()).unwrap();
        let options = ["whatif", "-f", "m.json", "--snapshot", "c.zst"];
        let out = run(dir.path(), &options);
        (out.status.code(), text(&out.stderr))
    };
    let mut object = manifest("one", 1, 8, &json!({}));
    let unchecked = "warning: no API server validated the manifest: with --snapshot, unknown fields, \
        pod templates and admission policies are not checked\n";
    assert_eq!(said(&object), (Some(0), unchecked.to_owned()));
    object["spec"]["scheduling"]["gang"]["minCount"] = json!(9);
    let (code, error) = said(&object);
    assert_eq!(code, Some(1));
    let refused = "error: manifest m.json: the workload would be refused: ";
    assert!(error.starts_with(refused), "{error}");
}

#[test]
fn errors_name_the_file_and_end_with_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("job.yaml"),
        "apiVersion: batch/v1\nkind: Job\n",
    )
    .unwrap();
    let out = run(
        dir.path(),
        &["whatif", "-f", "job.yaml", "--snapshot", "none.zst"],
    );
    let expected = "error: manifest job.yaml: apiVersion: \"batch/v1\" is not training.lockstep.dev/v1alpha1\n";
    assert_eq!(
        (out.status.code(), text(&out.stderr).as_str()),
        (Some(1), expected)
    );
    let out = run(dir.path(), &["whatif"]);
    assert_eq!(out.status.code(), Some(1), "wrong usage is no verdict");
}

#[test]
fn completion_scripts_are_written_for_the_plugin() {
    let out = run(Path::new("/"), &["completion", "bash"]);
    assert!(out.status.success() && text(&out.stdout).contains("kubectl-lockstep"));
}
