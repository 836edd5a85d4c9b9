//! Checkpoints on request, against an API server that answers as a manager does.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::problems::{ask, stderr, stdout};
use crate::screens::{objects, with_status};
use crate::server::ApiServer;
use crate::support::{ago, now, screen};
use lockstep_cli::status::status;

const KEY: &str = "training.lockstep.dev/request-checkpoint";

fn request(id: &str, reason: &str, result: &Value) -> Value {
    let mut request = json!({"id": id, "reason": reason, "attempt": 2, "requestedAt": ago(12), "deadline": ago(-108)});
    request
        .as_object_mut()
        .unwrap()
        .extend(result.as_object().unwrap().clone());
    request
}

fn saved(step: i64, millis: i64, lost: i64) -> Value {
    json!({"outcome": "Saved", "millis": millis, "savedStep": step, "stepsLost": lost})
}

fn domain(key: &str, request: &Value) -> Value {
    json!({"key": key, "attempt": 2, "healthySince": ago(90), "checkpointRequest": request})
}

/// A workload that accepts requests.
fn supporting() -> Value {
    let old = request("suspend-3", "Suspend", &saved(800, 900, 0));
    let mut workload = with_status(
        "llama",
        1,
        &json!({"phase": "Running", "domains": [domain("workload", &old)]}),
    );
    workload["spec"]["checkpoint"] = json!({"onRequest": {"signal": "SIGUSR1"}});
    workload["metadata"]["resourceVersion"] = json!("7");
    workload
}

/// A server whose manager writes one of these statuses for each read after the request; ID stands
/// for the id of the request.
fn managed(workload: Value, statuses: Vec<Value>) -> ApiServer {
    let state = Arc::new(Mutex::new((workload, statuses.into_iter())));
    ApiServer::start(move |request| {
        let mut state = state.lock().unwrap();
        if request.method == "PATCH" {
            state.0["metadata"]["annotations"] = request.body["metadata"]["annotations"].clone();
        } else if let Some(id) = state.0["metadata"]["annotations"][KEY].as_str() {
            let id = id.to_owned();
            if let Some(status) = state.1.next() {
                let status = status.to_string().replace("\"ID\"", &format!("{id:?}"));
                state.0["status"] = serde_json::from_str(&status).unwrap();
            }
        }
        (200, state.0.clone())
    })
}

fn checkpoint(server: &ApiServer, args: &[&str]) -> std::process::Output {
    ask(
        &server.address,
        &[&["checkpoint", "llama", "-n", "ml"][..], args].concat(),
    )
}

/// Standard output without the line about the write.
fn answers(out: &std::process::Output) -> String {
    let text = String::from_utf8(out.stdout.clone()).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    assert!(
        first.ends_with(": a checkpoint is requested from all processes; nothing is stopped"),
        "{first}"
    );
    rest.to_owned()
}

#[test]
fn a_checkpoint_is_requested_by_an_annotation_and_its_outcome_is_awaited() {
    let open = request("ID", "User", &json!({}));
    let answered = request("ID", "User", &saved(1200, 3100, 1));
    let running = |d: &Value| json!({"phase": "Running", "domains": [domain("workload", d)]});
    let mut after = running(&answered);
    after["userCheckpointRequest"] = json!("ID");
    let server = managed(supporting(), vec![running(&open), after]);
    let out = checkpoint(&server, &[]);
    stdout(&out);
    assert_eq!(
        answers(&out),
        "step 1200 was saved after 3.1 s, 1 step lost\n"
    );
    assert_eq!(stderr(&out), "waiting for 1 of 1 restart domain\n");
    let writes = server.requests();
    let write = writes.iter().find(|r| r.method == "PATCH").unwrap();
    assert_eq!(write.body["metadata"]["resourceVersion"], "7");
    assert!(write.body["metadata"]["annotations"][KEY].is_string());
}

#[test]
fn each_restart_domain_has_a_line_and_one_without_a_checkpoint_fails_the_command() {
    let late = json!({"outcome": "TimedOut", "millis": 120_000, "stepsLost": 40});
    let ended = json!({"outcome": "Ended", "millis": 2000});
    let domains = json!([
        domain("workers-0", &request("ID", "User", &saved(1200, 3100, 0))),
        domain("workers-1", &request("ID", "User", &late)),
        // A suspension has joined the request.
        domain("workers-2", &request("suspend-4", "Suspend", &ended)),
    ]);
    let after = json!({"phase": "Running", "userCheckpointRequest": "ID", "domains": domains});
    let server = managed(supporting(), vec![after]);
    let out = checkpoint(&server, &[]);
    assert_eq!(
        answers(&out),
        "\
workers-0: step 1200 was saved after 3.1 s, 0 steps lost
workers-1: no checkpoint in 2.0 min, 40 steps lost
workers-2: the processes ended after 2.0 s
"
    );
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(
        stderr(&out),
        "error: 1 of 3 restart domains saved no checkpoint\n"
    );
}

#[test]
fn a_request_without_an_answer_ends_with_the_timeout() {
    let server = managed(supporting(), Vec::new());
    let out = checkpoint(&server, &["--timeout", "1s"]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(
        stderr(&out),
        "waiting for the manager\nerror: no answer within 1s; `kubectl lockstep status llama` shows the request\n"
    );
}

#[test]
fn an_earlier_request_is_no_answer() {
    let mut after = supporting()["status"].clone();
    after["userCheckpointRequest"] = json!("ID");
    let out = checkpoint(&managed(supporting(), vec![after]), &[]);
    assert_eq!(answers(&out), "");
    assert_eq!(
        stderr(&out),
        "error: no process of \"llama\" received the request: none runs any more\n"
    );
}

#[test]
fn without_wait_or_with_a_dry_run_no_answer_is_awaited() {
    let server = managed(supporting(), Vec::new());
    for flag in ["--wait=false", "--dry-run"] {
        let text = stdout(&checkpoint(&server, &[flag]));
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let writes = server.requests().into_iter();
    assert_eq!(writes.filter(|r| r.method == "PATCH").count(), 1);
}

#[test]
fn a_request_by_sigterm_names_the_restart() {
    let mut workload = supporting();
    workload["spec"]["checkpoint"]["onRequest"]["signal"] = json!("SIGTERM");
    let server = managed(workload, Vec::new());
    let text = stdout(&checkpoint(&server, &["--dry-run"]));
    let effect = "which then end; the gang restarts (client dry run: nothing was sent)\n";
    assert!(text.ends_with(effect), "{text}");
}

#[test]
fn a_workload_that_accepts_no_request_is_refused_with_the_field() {
    type Edit = fn(&mut Value);
    let cases: [(Edit, &str); 6] = [
        (
            |w| w["spec"]["checkpoint"] = Value::Null,
            "\"llama\" has no spec.checkpoint.onRequest: its processes accept no request for a checkpoint; `--record` records a checkpoint that was saved",
        ),
        (
            |w| w["spec"]["checkpoint"]["onRequest"]["occasions"] = json!(["Suspend"]),
            "spec.checkpoint.onRequest.occasions of \"llama\" does not contain User: add it to request checkpoints",
        ),
        (
            |w| w["spec"]["suspend"] = json!(true),
            "\"llama\" is suspended: resume the workload with `kubectl lockstep resume`",
        ),
        (
            |w| w["status"] = json!({"phase": "Starting", "message": "1 of 2 pods run"}),
            "no member of \"llama\" runs: Starting: 1 of 2 pods run",
        ),
        (
            |w| w["status"]["phase"] = json!("Succeeded"),
            "\"llama\" has finished (Succeeded); to run it again, delete the workload and apply it again",
        ),
        (
            |w| w["spec"]["managedBy"] = json!("kueue"),
            "spec.managedBy of \"llama\" is \"kueue\": Lockstep does not manage this workload",
        ),
    ];
    for (edit, message) in cases {
        let mut workload = supporting();
        edit(&mut workload);
        let server = managed(workload, Vec::new());
        let out = checkpoint(&server, &[]);
        assert_eq!(stderr(&out), format!("error: {message}\n"));
        assert_eq!(out.status.code(), Some(1));
        assert!(server.requests().iter().all(|r| r.method == "GET"));
    }
}

#[test]
fn the_status_shows_the_last_request_and_counts_those_of_several_domains() {
    let line = |domains: &[Value]| {
        let text = screen(&status(&objects(&json!({"domains": domains})), now()));
        let lines = text
            .lines()
            .filter(|l| l.starts_with("Checkpoint requested"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let done = domain("workload", &request("u", "User", &saved(1200, 3100, 1)));
    assert_eq!(
        line(&[done]),
        "Checkpoint requested (User), 12s ago: step 1200 was saved after 3.1 s, 1 step lost"
    );
    let done = domain("workload", &request("u", "User", &saved(1200, 3100, 1)));
    let report = status(&objects(&json!({"domains": [done]})), now());
    let json = serde_json::to_value(report).unwrap();
    assert_eq!(json["checkpointRequests"][0]["domain"], "workload");
    assert_eq!(json["checkpointRequests"][0]["savedStep"], 1200);
    let mut newest = request("suspend-4", "Suspend", &json!({}));
    newest["requestedAt"] = json!(ago(3));
    let domains = [
        domain("workers-0", &request("u", "User", &saved(1200, 3100, 1))),
        domain("workers-1", &newest),
    ];
    assert_eq!(
        line(&domains),
        "Checkpoint requested (Suspend), 3s ago: workers-1: the answer is awaited until 2026-11-18T11:08:28Z; 2 restart domains: 1 Saved, 1 open"
    );
}
