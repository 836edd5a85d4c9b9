//! Golden outputs about workloads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::PodGroup;
use lockstep_api::names::annotations;
use lockstep_cli::status::{WorkloadObjects, status};
use lockstep_cli::view::{RenderOptions, View};
use serde_json::{Value, json};

use crate::support::{ago, manifest, now, screen, workload};

/// A workload with a status, created three hours ago.
pub fn with_status(name: &str, members: i32, status: &Value) -> Value {
    let mut value = manifest(name, members, 8, &json!({}));
    value["metadata"]["uid"] = json!(format!("uid-{name}"));
    value["metadata"]["creationTimestamp"] = json!(ago(10_800));
    value["status"] = status.clone();
    value
}

pub fn member_pod(workload: &str, index: i32, node: &str, ready: bool) -> Value {
    json!({"metadata": {"name": format!("{workload}-workers-{index}"), "namespace": "ml", "uid": format!("p{index}"),
            "ownerReferences": [{"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
                "name": workload, "uid": format!("uid-{workload}"), "controller": true}],
            "labels": {"training.lockstep.dev/group": "workers", "training.lockstep.dev/replica": "0",
                "training.lockstep.dev/index": index.to_string(),
                "training.lockstep.dev/workload-uid": format!("uid-{workload}")}},
        "spec": {"nodeName": node, "containers": [{"name": "t"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
}

/// The pod group of a workload of four members, placed on two nodes.
fn placed(name: &str) -> PodGroup {
    serde_json::from_value(json!({
        "apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": format!("{name}-workload-1"), "namespace": "ml", "uid": "g"},
        "spec": {"workloadRef": {"workloadName": name, "templateName": "workload"}, "gangKey": "workload",
            "schedulingPolicy": {"gang": {"minCount": 4}}, "priority": 100},
        "status": {"placement": {"id": "p", "members": 4, "nodes": [
            {"node": "n1", "members": ["workers/0/0-1"]}, {"node": "n2", "members": ["workers/0/2-3"]}]}},
    }))
    .unwrap()
}

fn cause(exit_code: i32, reason: &str, age: i64) -> Value {
    json!({"kind": "ContainerExit", "pod": "llama-workers-0-2-9c1e77aa", "node": "n2", "container": "t",
        "exitCode": exit_code, "reason": reason, "time": ago(age)})
}

fn incident(attempt: i64, kind: &str, cause: &Value, age: i64) -> Value {
    let mut cause = cause.clone();
    cause["kind"] = json!(kind);
    json!({"domain": "workload", "attempt": attempt, "cause": cause, "action": "RestartGang", "counted": kind == "ContainerExit",
        "time": ago(age), "recoveredAt": ago(age - 2), "lostAcceleratorSeconds": 9000})
}

/// A workload of four members on two nodes.
pub fn objects(status: &Value) -> WorkloadObjects {
    let pods = [("n1", true), ("n1", true), ("n2", false), ("n2", true)];
    let pods = (0..).zip(pods).map(|(index, (node, ready))| {
        serde_json::from_value::<Pod>(member_pod("llama", index, node, ready)).unwrap()
    });
    let mut value = with_status("llama", 4, status);
    value["spec"]["scheduling"] = json!({"topology": {"key": "topology.kubernetes.io/rack"}});
    WorkloadObjects {
        workload: workload(value),
        groups: vec![placed("llama")],
        pods: Some(pods.collect()),
        domains: BTreeMap::from([("n1".into(), "r1".into()), ("n2".into(), "r2".into())]),
    }
}

pub fn restarting() -> Value {
    json!({"phase": "Restarting", "reason": "RestartGang", "message": "restarting all 4 pods in place (attempt 4, 2 of 10 restarts used): container t exited",
        "ready": "3/4", "attempt": 4, "accounting": {"accelerators": 32},
        "progress": {"step": 1200, "stepTime": ago(8), "checkpointStep": 1100, "checkpointTime": ago(190),
            "total": 90_000, "summary": "1%, 22.2 h left", "metrics": [{"name": "loss", "value": "2.31"}]},
        "groups": [{"name": "workers", "desired": 4, "created": 4, "ready": 3, "active": 4}],
        "restarts": {"total": 3, "counted": 3, "countedAt": [ago(90_000), ago(600), ago(60)]},
        "domains": [{"key": "workload", "attempt": 4, "incident": {"attempt": 4, "cause": cause(137, "OOMKilled", 5),
            "action": "RestartGang", "counted": true, "stage": "Ordered", "detectedAt": ago(4), "decidedAt": ago(3)}}],
        "history": [incident(3, "ContainerExit", &cause(1, "Error", 600), 600),
            incident(2, "Requested", &json!({"time": ago(700), "reason": "Requested"}), 700),
            incident(1, "NodeLost", &json!({"time": ago(7200), "node": "n9"}), 7200)]})
}

#[test]
fn the_status_shows_where_members_are_what_happens_what_happened_and_what_to_do() {
    assert_eq!(
        screen(&status(&objects(&restarting()), now())),
        "\
ml/llama: Restarting, 3/4 ready, attempt 4, 32 accelerators, age 3h
RestartGang: restarting all 4 pods in place (attempt 4, 2 of 10 restarts used): container t exited
Step 1200 of 90000 (1%, 22.2 h left), 8s ago; checkpoint of step 1100, 3m10s ago; loss=2.31

GROUP     READY   SUCCEEDED   FAILED   DESIRED
workers   3       0           0        4

NODE   RACK   READY   MEMBERS
n1     r1     2/2     workers/0/0-1
n2     r2     1/2     workers/0/2-3

Restarting to attempt 4 (RestartGang), since 3s
  ordered: members stop and return to the barrier
  cause: container t exited with code 137 (OOMKilled) in pod llama-workers-0-2-9c1e77aa on node n2

FAILED     ATTEMPT   ACTION        COUNTED   BACK AFTER   LOST            CAUSE
10m ago    3         RestartGang   yes       2.0s         2.5 GPU-hours   container t exited with code 1 (Error) in pod llama-workers-0-2-9c1e77aa on node n2
120m ago   1         RestartGang   no        2.0s         2.5 GPU-hours   NodeLost on node n9

Restarts left: 8 of 10 within 24h
Next: no action needed: the workload is restarting; `kubectl lockstep logs llama --failed -n ml` shows the log of the failed member
"
    );
}

#[test]
fn the_status_names_members_for_which_the_others_wait_at_the_barrier() {
    let shown = |arrived: i32, late: &[&str]| {
        let mut value = restarting();
        let incident = &mut value["domains"][0]["incident"];
        incident["arrived"] = json!(arrived);
        incident["expected"] = json!(256);
        incident["late"] = json!(late);
        incident["arrivalsTime"] = json!(ago(1));
        let screen = screen(&status(&objects(&value), now()));
        let line = screen.lines().find(|line| line.contains("of 256 arrived"));
        line.unwrap().to_owned()
    };
    for (arrived, late, line) in [
        (0, &[][..], "  0 of 256 arrived"),
        (
            255,
            &["workers/0/57"],
            "  255 of 256 arrived, late: workers/0/57",
        ),
        (
            212,
            &["workers/0/57", "workers/0/58"],
            "  212 of 256 arrived, late: workers/0/57, workers/0/58",
        ),
    ] {
        assert_eq!(shown(arrived, late), line);
    }
}

#[test]
fn the_status_shows_a_replacement_beside_running_members() {
    let mut value = restarting();
    let domain = &mut value["domains"][0];
    domain["replacement"] = json!({"cause": domain["incident"]["cause"], "counted": true,
        "members": ["workers/0/2"], "oldPods": ["u1"], "detectedAt": ago(4)});
    domain["incident"].take();
    let screen = screen(&status(&objects(&value), now()));
    let shown = "Recreating pods at attempt 4 (RestartPod), since 4s
  the other members continue to run
  cause: container t exited with code 137 (OOMKilled)";
    assert!(screen.contains(shown), "{screen}");
}

#[test]
fn members_that_are_held_for_a_restart_are_not_ready_on_their_nodes() {
    let rows = |tier: &str, stage: &str, action: &str| {
        let mut value = restarting();
        value["domains"][0]["incident"]["stage"] = json!(stage);
        value["domains"][0]["incident"]["action"] = json!(action);
        let mut objects = objects(&value);
        for pod in objects.pods.iter_mut().flatten() {
            let own = [(annotations::TIER, tier), (annotations::ATTEMPT, "1")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()));
            pod.metadata.annotations = Some(own.into());
        }
        let shares = status(&objects, now()).nodes.into_iter();
        shares.map(|share| share.ready).collect::<Vec<_>>()
    };
    let (held, ready) = (vec![Some(0), Some(0)], vec![Some(2), Some(1)]);
    assert_eq!(rows("supervised", "Ordered", "RestartGang"), held);
    assert_eq!(rows("supervised", "Arrived", "RestartGang"), ready);
    assert_eq!(rows("restart-all", "Ordered", "RestartGang"), ready);
    assert_eq!(rows("plain", "Decided", "RecreateGang"), held);
}

#[test]
fn a_status_without_pods_or_nodes_shows_what_is_placed() {
    let mut objects = objects(&json!({"phase": "Starting", "reason": "Starting"}));
    objects.pods = None;
    objects.domains.clear();
    let text = screen(&status(&objects, now()));
    let nodes = "NODE   RACK   READY   MEMBERS\nn1     -      -       workers/0/0-1\n";
    assert!(text.contains(nodes), "{text}");
}

#[test]
fn an_ended_workload_has_no_nodes() {
    for (phase, nodes) in [("Running", 2), ("Failed", 0), ("Succeeded", 0)] {
        let status = status(&objects(&json!({"phase": phase})), now());
        assert_eq!(status.nodes.len(), nodes, "{phase}");
    }
}

#[test]
fn many_nodes_are_counted_and_only_nodes_that_are_not_ready_are_listed() {
    let mut objects = objects(&json!({"phase": "Running", "reason": "AllMembersReady"}));
    objects.groups.clear();
    objects.domains.clear();
    let pods = (0..32).map(|n| member_pod("llama", n, &format!("n{n:02}"), n != 7));
    let pods = pods.map(|pod| serde_json::from_value(pod).unwrap());
    objects.pods = Some(pods.collect());
    let report = status(&objects, now());
    let text = screen(&report);
    let rows = "NODE   RACK   READY   MEMBERS\nn07    -      0/1     workers/0/7\n31 more nodes, all ready (-o wide shows all)\n";
    assert!(text.contains(rows), "{text}");
    let wide = RenderOptions {
        wide: true,
        ..RenderOptions::plain(now())
    };
    assert!(
        report.screen(&wide).contains("n31"),
        "{}",
        report.screen(&wide)
    );
}

#[test]
fn a_workload_named_as_its_namespace_gets_working_command_suggestions() {
    for phase in ["Restarting", "Failed"] {
        let mut objects = objects(&json!({"phase": phase, "reason": "x"}));
        objects.workload.metadata.name = Some("ml".into());
        let next = status(&objects, now()).next.join("\n");
        let command = "`kubectl lockstep logs ml --failed -n ml`";
        assert!(next.contains(command), "{next}");
    }
}

#[test]
fn what_to_do_follows_the_phase_and_the_reason() {
    let next = |status_: Value| status(&objects(&status_), now()).next.join("\n");
    let cases = [
        (json!({}), "kubectl lockstep doctor"),
        (
            json!({"phase": "Pending", "reason": "Unschedulable"}),
            "`kubectl lockstep explain llama -n ml` shows the insufficient resources",
        ),
        (
            json!({"phase": "Pending", "reason": "NoNodeMatches"}),
            "waiting does not help: correct nodeSelector, affinity or tolerations",
        ),
        (
            json!({"phase": "Pending", "reason": "ExceedsLargestNode"}),
            "waiting does not help: request less for each pod",
        ),
        (
            json!({"phase": "Pending", "reason": "NoTopologyLabel"}),
            "waiting does not help: label the nodes",
        ),
        (
            json!({"phase": "Pending", "reason": "ExceedsCluster"}),
            "or add nodes\nto change the spec: `kubectl lockstep suspend llama -n ml`",
        ),
        (
            json!({"phase": "Pending", "reason": "ExceedsCluster",
                "message": "too small; nodes are requested since 2026-11-18T11:01:40Z (try 1)"}),
            "a node autoscaler is asked for nodes; `kubectl lockstep explain llama -n ml` shows",
        ),
        (
            json!({"phase": "Pending", "reason": "NodesNotProvided"}),
            "waiting does not help: check what the message names and the limits",
        ),
        (
            json!({"phase": "Pending", "reason": "RejectedByNode"}),
            "Lockstep tries other nodes at the time in the message",
        ),
        (
            json!({"phase": "Pending", "reason": "RestartsExhausted"}),
            "fix the cause that the message names; `kubectl lockstep logs llama --failed -n ml`",
        ),
        (
            json!({"phase": "Failed", "reason": "SchedulingTimeout"}),
            "free capacity, request less, or raise spec.scheduling.timeoutSeconds",
        ),
        (
            json!({"phase": "Failed", "reason": "DeadlineExceeded"}),
            "raise spec.activeDeadlineSeconds",
        ),
        (
            json!({"phase": "Pending", "reason": "QuotaExceeded"}),
            "kubectl describe quota -n ml",
        ),
        (
            json!({"phase": "Suspended"}),
            "`kubectl lockstep resume llama -n ml`",
        ),
        (
            json!({"phase": "Stalled", "reason": "InvalidTemplate"}),
            "fix what the message names; the workload is stalled until then\n\
             to change the spec: `kubectl lockstep suspend llama -n ml`, then `kubectl edit tw llama -n ml`, then",
        ),
        (
            json!({"phase": "Failed"}),
            "`kubectl lockstep logs llama --failed -n ml`",
        ),
        (
            json!({"phase": "Starting", "reason": "ImageUnavailable"}),
            "fix the image that the message names",
        ),
        (
            json!({"phase": "Pending", "reason": "StartError"}),
            "`kubectl lockstep suspend llama -n ml`, then `kubectl edit tw llama -n ml`",
        ),
        (
            json!({"phase": "Starting", "reason": "NotBound"}),
            "set schedulerName of the template to a running scheduler",
        ),
        (
            json!({"phase": "Failed", "reason": "ImageUnavailable"}),
            "fix the image that the message names",
        ),
        (
            json!({"phase": "Running", "restarts": {"countedAt": vec![ago(5); 10]}}),
            "raise spec.failurePolicy.limits.maxRestarts (10)",
        ),
    ];
    for (status, expected) in cases {
        let said = next(status.clone());
        assert!(said.contains(expected), "{status}: {said}");
    }
}

#[test]
fn repeated_failures_with_one_cause_get_advice_about_that_cause() {
    let after = |history: [Value; 3]| {
        let running = json!({"phase": "Running", "history": history});
        status(&objects(&running), now()).next.remove(0)
    };
    let exit = |code, reason, node: &str| {
        let mut cause = cause(code, reason, 5);
        cause["node"] = json!(node);
        incident(1, "ContainerExit", &cause, 5)
    };
    for (history, expected) in [
        (
            [
                exit(137, "OOMKilled", "n1"),
                exit(137, "OOMKilled", "n2"),
                exit(1, "Error", "n1"),
            ],
            "the last 2 restarts have one cause (exit code 137, OOMKilled): raise the memory limit of the training container, or use less memory",
        ),
        (
            [
                exit(1, "Error", "n1"),
                exit(1, "Error", "n1"),
                exit(1, "Error", "n1"),
            ],
            "the last 3 restarts have one cause (exit code 1, Error) on node n1: look for the cause in the program or on that node",
        ),
        (
            [
                exit(1, "Error", "n1"),
                exit(2, "Error", "n1"),
                exit(1, "Error", "n1"),
            ],
            "no action needed: the workload is running",
        ),
    ] {
        assert_eq!(after(history), expected);
    }
}

#[test]
fn what_to_do_names_the_field_that_explains_the_last_failure() {
    let last_of = |cause: Value, host_network: bool| {
        let mut last = incident(1, cause["kind"].as_str().unwrap(), &cause, 5);
        last["counted"] = json!(true);
        let mut objects = objects(&json!({"phase": "Running", "history": [last]}));
        let template = &mut objects.workload.spec.groups[0].template.0;
        template.spec.as_mut().unwrap().host_network = Some(host_network);
        status(&objects, now()).next.join("\n")
    };
    let said = last_of(cause(1, "Error", 5), true);
    assert!(
        said.contains("if MASTER_PORT is in use on a node, set another spec.network.port"),
        "{said}"
    );
    let ended = json!({"kind": "PodFailed", "reason": "DeadlineExceeded", "time": ago(5)});
    let said = last_of(ended, false);
    assert!(
        said.contains("after activeDeadlineSeconds of its template"),
        "{said}"
    );
    let ended = json!({"kind": "PodFailed", "reason": "Evicted", "time": ago(5)});
    let said = last_of(ended, false);
    assert!(said.contains("exceeded a limit of its template"), "{said}");
}

#[test]
fn a_workload_of_another_manager_needs_no_action() {
    let mut foreign = objects(&json!({}));
    foreign.workload.spec.managed_by = "kueue".into();
    let said = status(&foreign, now()).next;
    assert_eq!(
        said,
        [
            "no action needed: spec.managedBy is \"kueue\", so Lockstep does not manage this workload"
        ]
    );
}
