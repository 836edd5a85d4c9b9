//! Completion in kubectl's protocol.

use serde_json::{Value, json};

use crate::problems::{ask, run, stdout};
use crate::screens::with_status;
use crate::server::{ApiServer, WORKLOADS, refusal};

/// Candidates without descriptions, and the directive.
fn complete(words: &[&str]) -> Vec<String> {
    let text = stdout(&run(&[&["__complete"], words].concat()));
    let word = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
    text.lines().map(word).collect()
}

fn server() -> ApiServer {
    let of = |names: &[&str]| -> Vec<Value> {
        names
            .iter()
            .map(|n| with_status(n, 3, &json!({})))
            .collect()
    };
    let namespace = |name: &str| json!({"metadata": {"name": name}});
    ApiServer::with(&[
        (WORKLOADS, of(&["llama", "lora", "mixtral"])),
        (
            "/api/v1/namespaces",
            vec![namespace("ml"), namespace("research")],
        ),
    ])
}

#[test]
fn a_server_that_never_answers_leaves_the_line_as_it_is_after_a_second() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    // The program ends by its own deadline.
    assert_eq!(
        complete(&["--server", &address, "status", "-n", "ml", "l"]),
        [":4"]
    );
}

#[test]
fn verbs_and_flags_are_completed_without_a_cluster() {
    assert_eq!(complete(&["sta"]), ["status", ":4"]);
    assert_eq!(complete(&["queue", "--all-n"]), ["--all-namespaces", ":4"]);
    assert_eq!(complete(&["queue", "-o", "j"]), ["json", ":4"]);
    let verbs = complete(&[""]);
    assert!(
        verbs.contains(&"whatif".to_owned()) && !verbs.iter().any(|v| v.starts_with('-')),
        "{verbs:?}"
    );
}

#[test]
fn names_are_completed_from_the_cluster() {
    let server = server();
    let with = |words: &[&str]| complete(&[&["--server", server.address.as_str()], words].concat());
    assert_eq!(with(&["status", "-n", "ml", "l"]), ["llama", "lora", ":4"]);
    assert_eq!(
        with(&["status", "llama", "-n", ""]),
        ["ml", "research", ":4"]
    );
    assert_eq!(
        with(&["logs", "llama", "-n", "ml", "--group", ""]),
        ["workers", ":4"]
    );
    assert_eq!(with(&["logs", "-n", "ml", "m"]), ["mixtral", ":4"]);
    assert_eq!(
        with(&["logs", "llama", "-n", "ml", "--rank", ""]),
        ["0", "1", "2", ":4"]
    );
}

#[test]
fn contexts_are_completed_from_the_kubeconfig() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config").display().to_string();
    let config = json!({"apiVersion": "v1", "kind": "Config", "contexts": [{"name": "prod"}, {"name": "preview"}]});
    std::fs::write(&file, config.to_string()).unwrap();
    let words = ["queue", "--kubeconfig", &file, "--context", "p"];
    assert_eq!(complete(&words), ["prod", "preview", ":4"]);
}

#[test]
fn a_cluster_that_refuses_or_is_away_completes_nothing_and_says_nothing() {
    let server = ApiServer::start(|_| refusal(403, "Forbidden", "no"));
    for address in [server.address.as_str(), "http://127.0.0.1:1"] {
        let out = run(&["__complete", "--server", address, "status", ""]);
        assert!(out.stderr.is_empty() && stdout(&out) == ":4\n", "{out:?}");
    }
}

#[test]
fn the_completion_program_for_kubectl_is_written_to_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().display().to_string();
    stdout(&run(&["completion", "--kubectl", &folder]));
    let path = dir.path().join("kubectl_complete-lockstep");
    let program = env!("CARGO_BIN_EXE_kubectl-lockstep");
    let out = std::process::Command::new(&path)
        .env("PATH", std::path::Path::new(program).parent().unwrap())
        .args(["vers"])
        .output()
        .unwrap();
    assert!(stdout(&out).starts_with("version"), "{out:?}");
    assert_eq!(
        ask("http://127.0.0.1:1", &["completion"]).status.code(),
        Some(1),
        "a shell or a folder"
    );
}
