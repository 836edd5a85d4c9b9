//! `doctor --canary`: a workload of one member that is always removed.

use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Pod;
use lockstep_cli::doctor::{Canary, Check, CheckLevel, Diagnosis, canary_manifest};
use serde_json::{Value, json};

use crate::problems::{ask, command, stderr};
use crate::server::{ApiServer, WORKLOADS, refusal};
use crate::support::{matches_golden, now, workload};

const TIMEOUT: Duration = Duration::from_mins(1);

fn pod(node: &Value, phase: &str) -> Pod {
    serde_json::from_value(
        json!({"spec": {"nodeName": node, "containers": []}, "status": {"phase": phase}}),
    )
    .unwrap()
}

/// The canary after these states, each half a second after the last.
fn seen(states: &[(Value, &[Pod])]) -> Canary {
    let mut canary = Canary::new(now());
    for (at, (status, pods)) in (1..).zip(states) {
        let manifest = canary_manifest("ml", "pause:1", TIMEOUT).unwrap();
        let mut object = serde_json::to_value(manifest).unwrap();
        object["status"] = status.clone();
        canary.observe(
            &workload(object),
            Some(pods),
            now() + TimeDelta::milliseconds(500 * at),
        );
    }
    canary
}

fn status(phase: &str, placed: &str, reason: &str, message: &str) -> Value {
    json!({"phase": phase, "reason": reason, "message": message, "conditions": [
        {"type": "Admitted", "status": placed, "reason": reason, "message": "", "lastTransitionTime": now()}]})
}

fn queued() -> Value {
    status(
        "Pending",
        "False",
        "Unschedulable",
        "insufficient cpu: 1 pod needs 10m more",
    )
}

fn check(states: &[(Value, &[Pod])]) -> Check {
    seen(states).check(TIMEOUT)
}

#[test]
fn a_canary_that_started_has_the_time_of_each_stage() {
    let placed = || status("Starting", "True", "Starting", "");
    let check = check(&[
        (queued(), &[]),
        (placed(), &[pod(&Value::Null, "Pending")]),
        (placed(), &[pod(&json!("n1"), "Pending")]),
        (placed(), &[pod(&json!("n1"), "Running")]),
    ]);
    let expected = "accepted after 0.5 s; placed after 1.0 s; bound after 1.5 s; started after 2.0 s on node n1; removed";
    assert_eq!(
        (check.level, check.message.as_str()),
        (CheckLevel::Ok, expected)
    );
}

#[test]
fn a_canary_that_did_not_start_has_the_reason() {
    let unseen = Canary::new(now()).check(TIMEOUT);
    assert_eq!(
        (unseen.level, unseen.message.as_str()),
        (
            CheckLevel::Fail,
            "no manager has accepted it within 60s; removed"
        )
    );
    let waits = check(&[(queued(), &[])]);
    let expected = "accepted after 0.5 s; not placed within 60s: Unschedulable: insufficient cpu: 1 pod needs 10m more; removed";
    assert_eq!(
        (waits.level, waits.message.as_str()),
        (CheckLevel::Warn, expected)
    );
    let pulls = status(
        "Starting",
        "True",
        "ImageUnavailable",
        "container pause waits: ErrImagePull",
    );
    let pulls = check(&[(pulls, &[pod(&json!("n1"), "Pending")])]);
    let expected = "accepted after 0.5 s; placed after 0.5 s; bound after 0.5 s on node n1; not started within 60s: ImageUnavailable: container pause waits: ErrImagePull; removed";
    assert_eq!(
        (pulls.level, pulls.message.as_str()),
        (CheckLevel::Fail, expected)
    );
    let failed = status("Failed", "True", "DeadlineExceeded", "1 pod failed");
    let failed = check(&[(failed, &[pod(&json!("n1"), "Failed")])]);
    assert!(
        failed
            .message
            .contains("; not started: DeadlineExceeded: 1 pod failed;"),
        "{}",
        failed.message
    );
    let short = status("Succeeded", "True", "Succeeded", "");
    let short = check(&[(short, &[pod(&json!("n1"), "Succeeded")])]);
    assert_eq!(short.level, CheckLevel::Ok, "{}", short.message);
    let mut left = seen(&[(queued(), &[])]);
    left.left = Some("not removed: no response; run `kubectl delete tw c -n ml`".to_owned());
    assert_eq!(left.check(TIMEOUT).level, CheckLevel::Fail);
}

#[test]
fn a_canary_that_is_not_removed_ends_by_itself() {
    let spec = canary_manifest("ml", "pause:1", TIMEOUT).unwrap().spec;
    assert_eq!(
        (
            spec.active_deadline_seconds,
            spec.ttl_seconds_after_finished
        ),
        (Some(120), Some(0))
    );
    assert_eq!(spec.scheduling.timeout_seconds, 120);
    let pod = serde_json::to_value(&spec.groups[0].template).unwrap();
    let security = &pod["spec"]["containers"][0]["securityContext"];
    assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
}

#[test]
fn the_screen_has_a_line_for_the_canary() {
    let diagnosis = Diagnosis {
        checks: vec![check(&[(queued(), &[])])],
    };
    matches_golden("doctor-canary", &[&diagnosis]);
}

/// Standard output of a command that may fail.
fn printed(out: &Output) -> String {
    String::from_utf8(out.stdout.clone()).unwrap()
}

/// A server whose manager does nothing; `true` once the canary exists.
fn without_manager(rights: bool) -> (ApiServer, Arc<Mutex<bool>>) {
    let forbidden = "trainingworkloads is forbidden: User \"jo\" cannot create resource \"trainingworkloads\" in API group \"training.lockstep.dev\" in the namespace \"ml\"";
    refusing((!rights).then_some((403, forbidden)))
}

/// The same server, which refuses canaries with this code and message.
fn refusing(refused: Option<(u16, &'static str)>) -> (ApiServer, Arc<Mutex<bool>>) {
    let exists = Arc::new(Mutex::new(false));
    let state = Arc::clone(&exists);
    let canary = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload", "metadata":
        {"name": "lockstep-canary-x", "namespace": "ml", "uid": "u"}, "spec": {"groups": []}});
    let server = ApiServer::start(move |request| {
        let path = request.path.split('?').next().unwrap_or_default();
        let mut exists = state.lock().unwrap();
        match (request.method.as_str(), path) {
            ("POST", WORKLOADS) => {
                *exists = refused.is_none();
                refused.map_or((201, canary.clone()), |(code, message)| {
                    refusal(code, "Forbidden", message)
                })
            }
            ("DELETE", _) => {
                assert_eq!(request.body["preconditions"]["uid"], "u");
                *exists = false;
                (
                    200,
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}),
                )
            }
            ("POST", path) if path.ends_with("selfsubjectaccessreviews") => {
                let mut review = request.body.clone();
                review["status"] = json!({"allowed": true});
                (201, review)
            }
            (_, "/version") => (
                200,
                json!({"major": "1", "minor": "37", "gitVersion": "v1.37.0", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            ),
            (_, "/apis") => (
                200,
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
            ),
            ("GET", path) if path.ends_with("/lockstep-canary-x") && *exists => {
                (200, canary.clone())
            }
            ("GET", path)
                if !path.ends_with("/lockstep-canary-x") && !path.ends_with("/lockstep-leader") =>
            {
                (
                    200,
                    json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}),
                )
            }
            _ => refusal(
                404,
                "NotFound",
                "the server could not find the requested resource",
            ),
        }
    });
    (server, exists)
}

#[test]
fn a_canary_without_a_manager_is_reported_and_removed() {
    let (server, exists) = without_manager(true);
    let out = ask(
        &server.address,
        &["doctor", "-n", "ml", "--canary", "--timeout", "1s"],
    );
    assert_eq!(out.status.code(), Some(2), "{}", stderr(&out));
    let line = "no manager has accepted it within 1s; removed";
    assert!(printed(&out).contains(line), "{}", printed(&out));
    let created = server
        .requests()
        .iter()
        .any(|r| r.method == "POST" && r.path.starts_with(WORKLOADS));
    assert!(created && !*exists.lock().unwrap());
}

#[test]
fn a_canary_is_removed_after_an_interrupt() {
    let (server, exists) = without_manager(true);
    let args = ["doctor", "-n", "ml", "--canary", "-s", &server.address];
    let child = command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut polls = 0..3000;
    while !*exists.lock().unwrap() && polls.next().is_some() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(
        printed(&out).contains("interrupted; removed"),
        "{}",
        printed(&out)
    );
    assert!(!*exists.lock().unwrap());
}

#[test]
fn a_missing_right_to_create_a_canary_is_named() {
    let (server, _) = without_manager(false);
    let out = ask(
        &server.address,
        &["doctor", "-n", "ml", "--canary", "-o", "json"],
    );
    let checks: Value = serde_json::from_str(&printed(&out)).unwrap();
    let last = checks["checks"].as_array().unwrap().last().unwrap();
    let expected = "skipped: you may not create trainingworkloads; ask an administrator of the namespace to bind you ClusterRole lockstep-batch-user";
    assert_eq!(
        (&last["level"], &last["message"]),
        (&json!("Warn"), &json!(expected))
    );
}

#[test]
fn a_canary_that_a_webhook_or_the_server_refuses_is_a_failed_check() {
    let webhook = "admission webhook \"pods.corp\" denied the request: no owner";
    for (code, message) in [(403, webhook), (500, "failed calling webhook")] {
        let (server, _) = refusing(Some((code, message)));
        let out = ask(
            &server.address,
            &["doctor", "-n", "ml", "--canary", "-o", "json"],
        );
        let checks: Value = serde_json::from_str(&printed(&out)).unwrap();
        let last = checks["checks"].as_array().unwrap().last().unwrap();
        let expected = format!("not created: {message}");
        assert_eq!(
            (&last["level"], &last["message"]),
            (&json!("Fail"), &json!(expected))
        );
    }
}
