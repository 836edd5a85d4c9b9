//! Verbs that run kubectl. A script stands for kubectl and prints its arguments.

use std::fs::{Permissions, set_permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::problems::{command, sentence, stderr};
use crate::screens::{member_pod, with_status};
use crate::server::{ApiServer, WORKLOADS};

const PODS: &str = "/api/v1/namespaces/ml/pods";

/// A folder with a kubectl that prints its arguments and its standard input, and exits with 7.
fn fake_kubectl() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubectl");
    std::fs::write(
        &path,
        "#!/bin/sh\nprintf '%s\\n' \"$@\"\n/bin/cat\nexit 7\n",
    )
    .unwrap();
    set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    folder
}

/// A workload of four members in namespace `ml`, with pods of the first three.
fn server(status: &Value, more: &[Value]) -> ApiServer {
    let pods = (0..3).map(|i| member_pod("llama", i, "n1", true));
    let pods = more.iter().cloned().chain(pods).collect();
    ApiServer::with(&[
        (WORKLOADS, vec![with_status("llama", 4, status)]),
        (PODS, pods),
    ])
}

fn running() -> ApiServer {
    server(&json!({"phase": "Running"}), &[])
}

/// Runs the program with the fake kubectl in PATH.
fn with_kubectl(server: &ApiServer, args: &[&str]) -> Output {
    let folder = fake_kubectl();
    let mut command = command(&[&["--server", &server.address], args].concat());
    command
        .env("PATH", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut program = command.spawn().unwrap();
    // A program that has failed does not read.
    let _ = program.stdin.take().unwrap().write_all(b"typed\n");
    program.wait_with_output().unwrap()
}

/// Arguments of kubectl between the flags for the connection and the standard input.
fn arguments(server: &ApiServer, args: &[&str]) -> String {
    let out = with_kubectl(server, args);
    assert_eq!(out.status.code(), Some(7), "{}", stderr(&out));
    let text = String::from_utf8(out.stdout).unwrap();
    let words: Vec<&str> = text.lines().collect();
    let (input, words) = words.split_last().unwrap();
    assert_eq!(*input, "typed");
    words
        .iter()
        .filter(|w| !w.starts_with("--server="))
        .copied()
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn exec_runs_kubectl_in_the_training_container_of_the_member() {
    let server = running();
    for (args, expected) in [
        (
            "exec llama -n ml -- nvidia-smi -L",
            "exec -n ml -c t llama-workers-0 -- nvidia-smi -L",
        ),
        (
            "exec llama -n ml --rank 2 -it -c sidecar -- bash",
            "exec -n ml -c sidecar -i -t llama-workers-2 -- bash",
        ),
        (
            "exec -n ml --member workers-0-1 llama -- env",
            "exec -n ml -c t llama-workers-1 -- env",
        ),
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        assert_eq!(arguments(&server, &args), expected);
    }
}

#[test]
fn kubectl_gets_the_flags_for_the_connection() {
    let server = running();
    let flags = "--token t --as jo --as-group a --as-group b --request-timeout 2m";
    let line = format!("exec llama -n ml {flags} -- true");
    let out = with_kubectl(&server, &line.split(' ').collect::<Vec<_>>());
    let text = String::from_utf8(out.stdout).unwrap();
    let expected = format!(
        "exec\n--as=jo\n--as-group=a\n--as-group=b\n--token=t\n--server={}\n--request-timeout=2m\n-n\nml\n",
        server.address
    );
    assert!(text.starts_with(&expected), "{text}");
}

#[test]
fn cp_takes_a_member_on_one_side() {
    let server = running();
    for (args, expected) in [
        (
            "cp llama:/tmp/trace trace -n ml",
            "cp -n ml -c t -- llama-workers-0:/tmp/trace trace",
        ),
        (
            "cp -n ml llama/2:/tmp/trace - --retries -1",
            "cp -n ml -c t --retries=-1 -- llama-workers-2:/tmp/trace -",
        ),
        (
            "cp -n ml -c s --no-preserve config llama/workers-0-1:/tmp/config",
            "cp -n ml -c s --no-preserve -- config llama-workers-1:/tmp/config",
        ),
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        assert_eq!(arguments(&server, &args), expected);
    }
    for paths in [["a", "b"], ["llama:/a", "llama/1:/b"]] {
        let out = with_kubectl(&server, &[&["cp", "-n", "ml"], &paths[..]].concat());
        assert_eq!(
            sentence(&out),
            "error: one of the two paths must be in a member, as NAME:PATH or NAME/MEMBER:PATH, and the other one local"
        );
    }
}

#[test]
fn ports_are_forwarded_to_the_pod_of_the_member() {
    let args = "port-forward llama -n ml --rank 1 8080:80 :6006 --address 127.0.0.1";
    let args: Vec<&str> = args.split(' ').collect();
    assert_eq!(
        arguments(&running(), &args),
        "port-forward -n ml --address=127.0.0.1 -- pod/llama-workers-1 8080:80 :6006"
    );
}

#[test]
fn get_passes_all_arguments_to_kubectl() {
    let server = running();
    for args in ["-A -o wide", "llama -n ml --sort-by=.status.phase"] {
        let words: Vec<&str> = [&["get"], &args.split(' ').collect::<Vec<_>>()[..]].concat();
        let expected = format!("get trainingworkloads.training.lockstep.dev {args}");
        assert_eq!(arguments(&server, &words), expected);
    }
    assert_eq!(server.requests(), []);
}

#[test]
fn the_pod_is_the_current_pod_that_the_workload_owns() {
    // Listed before the member's own pod: a terminating pod, and a pod of another owner.
    let mut terminating = member_pod("llama", 0, "n1", true);
    terminating["metadata"]["name"] = json!("terminating");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-11-21T10:00:00Z");
    let mut foreign = member_pod("llama", 0, "n1", true);
    foreign["metadata"]["name"] = json!("foreign");
    foreign["metadata"]["ownerReferences"][0]["uid"] = json!("another");
    let server = server(&json!({"phase": "Running"}), &[terminating, foreign]);
    assert_eq!(
        arguments(&server, &["exec", "llama", "-n", "ml", "--", "true"]),
        "exec -n ml -c t llama-workers-0 -- true"
    );
}

#[test]
fn a_member_that_cannot_be_entered_is_said_so_with_the_reason() {
    let said = |server: &ApiServer, flags: &[&str]| {
        let args = [&["exec", "llama", "-n", "ml"], flags, &["--", "true"]].concat();
        sentence(&with_kubectl(server, &args))
    };
    let waiting = json!({"phase": "Starting", "reason": "Starting", "message": "3 of 4 pods run"});
    let server_ = server(&waiting, &[]);
    assert_eq!(
        said(&server_, &["--rank", "3"]),
        "error: member workers-0-3 of \"llama\" has no pod: Starting: 3 of 4 pods run; `kubectl lockstep status llama -n ml` shows more"
    );
    assert_eq!(
        said(&server_, &["--rank", "4"]),
        "error: \"llama\" has no member of rank 4; its members: 4 in group \"workers\" (ranks 0 to 3)"
    );
    let name = said(&server_, &["--member", "workers-1-0"]);
    assert!(
        name.starts_with("error: \"llama\" has no member \"workers-1-0\"; its members: 4 in"),
        "{name}"
    );
    let mut two = with_status("llama", 2, &json!({"phase": "Running"}));
    two["spec"]["groups"][0]["replicas"] = json!(2);
    two["spec"]["network"] = json!({"world": "Replica"});
    let server = ApiServer::with(&[(WORKLOADS, vec![two]), (PODS, vec![])]);
    assert_eq!(
        said(&server, &["--rank", "1"]),
        "error: \"llama\" has several members of rank 1: --member selects one of workers-0-1, workers-1-1"
    );
}

#[test]
fn kubectl_is_found_in_path_or_named_by_a_variable() {
    let server = running();
    let args = ["exec", "llama", "-n", "ml", "--", "true"];
    let args = [&args[..], &["--server", &server.address]].concat();
    // The flags of kubectl end at `--`, so those of the connection come first.
    let args = [&args[6..], &args[..6]].concat();
    let said = sentence(&command(&args).env("PATH", "/nonexistent").output().unwrap());
    assert_eq!(
        said,
        "error: cannot run kubectl: no such file or directory; put kubectl in PATH, or set KUBECTL to its path"
    );
    let folder = fake_kubectl();
    let renamed = folder.path().join("kubectl-1.37");
    std::fs::rename(folder.path().join("kubectl"), &renamed).unwrap();
    let out = command(&args).env("KUBECTL", &renamed).output().unwrap();
    assert_eq!(out.status.code(), Some(7), "{}", stderr(&out));
}
