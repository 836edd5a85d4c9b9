//! Selection of logs, accelerators in use, and agents of nodes.

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::NodeAgent;
use lockstep_cli::agents::agents;
use lockstep_cli::logs::{LogSelection, LogSource, NoLog, sources};
use lockstep_cli::nodes::nodes;
use lockstep_cli::top::top;
use lockstep_cli::view::{RenderOptions, View};
use lockstep_scheduler::config::NodeHealthConfig;
use serde_json::{Value, json};

use crate::problems::{ask, sentence, stderr, stdout};
use crate::screens::{member_pod, with_status};
use crate::server::{ApiServer, WORKLOADS, refusal};
use crate::support::{ago, full_cluster, gang, now, screen, workload};

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

/// Pods of four members, in reverse order.
fn pods() -> Vec<Pod> {
    (0..4)
        .rev()
        .map(|i| pod(member_pod("llama", i, "n1", true)))
        .collect()
}

fn wanted(change: impl FnOnce(&mut LogSelection)) -> LogSelection {
    let mut wanted = LogSelection::default();
    change(&mut wanted);
    wanted
}

fn chosen(status: &Value, pods: &[Pod], wanted: &LogSelection) -> Result<Vec<LogSource>, NoLog> {
    sources(&workload(with_status("llama", 4, status)), pods, wanted)
}

fn names(status: &Value, pods: &[Pod], wanted: &LogSelection) -> Vec<String> {
    let found = chosen(status, pods, wanted).unwrap();
    found.into_iter().map(|s| s.pod).collect()
}

#[test]
fn members_are_chosen_by_rank_by_group_or_all_in_the_order_of_ranks() {
    let running = json!({"phase": "Running"});
    let of = |w: &LogSelection| names(&running, &pods(), w);
    assert_eq!(of(&LogSelection::default()), ["llama-workers-0"]);
    assert_eq!(of(&wanted(|w| w.rank = Some(2))), ["llama-workers-2"]);
    let all = [
        "llama-workers-0",
        "llama-workers-1",
        "llama-workers-2",
        "llama-workers-3",
    ];
    assert_eq!(of(&wanted(|w| w.all = true)), all);
    let none = chosen(&running, &pods(), &wanted(|w| w.rank = Some(9))).unwrap_err();
    assert_eq!(
        none.to_string(),
        "\"llama\" has no member of rank 9; its members: 4 in group \"workers\" (ranks 0 to 3)"
    );
    let lost = chosen(
        &json!({"reason": "NodeLost"}),
        &pods()[..3],
        &wanted(|w| w.rank = Some(0)),
    );
    assert_eq!(
        lost.unwrap_err().to_string(),
        "member workers-0-0 of \"llama\" has no pod: NodeLost; `kubectl lockstep status llama -n ml` shows more"
    );
    // An elastic gang without its second member: ranks have no gap.
    let elastic = json!({"groups": [{"name": "workers", "worldIndexes": "0,2-3"}]});
    let second = wanted(|w| w.rank = Some(1));
    assert_eq!(names(&elastic, &pods(), &second), ["llama-workers-2"]);
}

#[test]
fn of_a_pod_and_its_replacement_the_replacement_is_chosen() {
    let mut both = pods();
    let mut old = member_pod("llama", 0, "n1", true);
    old["metadata"]["name"] = json!("old");
    both.push(pod(old));
    assert_eq!(
        names(&json!({}), &both, &LogSelection::default()),
        ["llama-workers-0"]
    );
}

fn failed_at(age: i64) -> Value {
    json!({"history": [
        {"domain": "workload", "attempt": 3, "action": "RestartGang", "time": ago(age - 50), "cause":
            {"kind": "Requested", "time": ago(age - 50)}},
        {"domain": "workload", "attempt": 2, "action": "RestartGang", "time": ago(age), "cause":
            {"kind": "ContainerExit", "pod": "llama-workers-2", "container": "sidecar", "exitCode": 3, "time": ago(age)}}]})
}

#[test]
fn failed_takes_the_container_that_failed_and_its_log_before_the_restart() {
    let failed = wanted(|w| w.failed = true);
    let source = |started: i64| {
        let mut pods = pods();
        let mut value = member_pod("llama", 2, "n1", true);
        value["status"]["containerStatuses"] = json!([{"name": "sidecar", "image": "", "imageID": "", "ready": true,
            "restartCount": 1, "state": {"running": {"startedAt": ago(started)}}}]);
        pods[1] = pod(value);
        chosen(&failed_at(100), &pods, &failed).unwrap().remove(0)
    };
    let after = source(90);
    assert_eq!(
        (after.pod.as_str(), after.container.as_str(), after.previous),
        ("llama-workers-2", "sidecar", true)
    );
    assert!(
        !source(150).previous,
        "the container that failed has not been restarted yet"
    );
}

#[test]
fn failed_takes_the_log_before_the_restart_of_a_container_that_has_ended() {
    let failed = wanted(|w| w.failed = true);
    let previous = |started: i64, finished: i64| {
        let mut pods = pods();
        let mut value = member_pod("llama", 2, "n1", true);
        value["status"]["containerStatuses"] = json!([{"name": "sidecar", "image": "", "imageID": "", "ready": false,
            "restartCount": 1, "state": {"terminated": {"exitCode": 143, "startedAt": ago(started), "finishedAt": ago(finished)}}}]);
        pods[1] = pod(value);
        chosen(&failed_at(100), &pods, &failed)
            .unwrap()
            .remove(0)
            .previous
    };
    assert!(previous(99, 90), "it was started after the failure");
    assert!(!previous(150, 90), "its process failed while it ran");
    assert!(!previous(100, 100), "it is the container that failed");
}

#[test]
fn a_failure_whose_pod_was_replaced_or_that_never_was_is_said_so() {
    let failed = wanted(|w| w.failed = true);
    let gone = chosen(&failed_at(100), &[], &failed)
        .unwrap_err()
        .to_string();
    assert!(
        gone.starts_with("the log of pod \"llama-workers-2\", which failed ")
            && gone.ends_with("was deleted with the pod: container sidecar exited with code 3"),
        "{gone}"
    );
    let never = chosen(&json!({}), &pods(), &failed)
        .unwrap_err()
        .to_string();
    assert_eq!(
        never,
        "no member of \"llama\" has failed; `kubectl lockstep logs llama -n ml` shows the present log"
    );
}

/// A workload whose member has failed, with its pods. `log`: the response to requests of logs.
fn failed_server(log: (u16, Value)) -> ApiServer {
    let workloads = "/apis/training.lockstep.dev/v1alpha1/namespaces/ml/trainingworkloads/llama";
    ApiServer::start(move |request| {
        let path = request.path.split('?').next().unwrap_or_default();
        let pods: Vec<Value> = (0..4).map(|i| member_pod("llama", i, "n1", true)).collect();
        match path {
            path if path == workloads => (200, with_status("llama", 4, &failed_at(100))),
            "/api/v1/namespaces/ml/pods" => (
                200,
                json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}),
            ),
            _ => log.clone(),
        }
    })
}

#[test]
fn failed_prints_the_exit_code_if_the_kubelet_has_removed_the_container() {
    let server = failed_server((
        400,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400,
            "reason": "BadRequest", "message":
            "previous terminated container \"sidecar\" in pod \"llama-workers-2\" not found"}),
    ));
    let out = ask(&server.address, &["logs", "llama", "-n", "ml", "--failed"]);
    assert_eq!(
        stderr(&out),
        "error: the log of pod \"llama-workers-2\" from before its restart was deleted with the container: container sidecar exited with code 3\n"
    );
    let out = ask(
        &server.address,
        &["logs", "llama", "-n", "ml", "--previous"],
    );
    assert!(stderr(&out).starts_with("error: the API server rejected the request: previous"));
}

#[test]
fn failed_shows_the_failed_attempt_of_a_container_that_lives_on() {
    const LOG: &str = "lockstep-run: attempt 1 starts: 2 members\nstep 1\nCUDA error\n\
        lockstep-run: attempt 1 ended with code 3\nlockstep-run: attempt 2 starts: 2 members\nstep 2\n";
    let server = failed_server((200, json!(LOG)));
    let args = ["logs", "llama", "-n", "ml", "--failed", "--tail", "2"];
    let text = stdout(&ask(&server.address, &args));
    assert_eq!(
        text,
        "CUDA error\nlockstep-run: attempt 1 ended with code 3\n"
    );
    let asked = server.requests().last().unwrap().path.clone();
    assert!(!asked.contains("tailLines"), "{asked}");
}

#[test]
fn the_logs_of_several_members_come_with_their_names() {
    let workloads = "/apis/training.lockstep.dev/v1alpha1/namespaces/ml/trainingworkloads/llama";
    let server = ApiServer::start(move |request| {
        let path = request.path.split('?').next().unwrap_or_default();
        let pods: Vec<Value> = (0..2).map(|i| member_pod("llama", i, "n1", true)).collect();
        match path {
            path if path == workloads => {
                (200, with_status("llama", 2, &json!({"phase": "Running"})))
            }
            "/api/v1/namespaces/ml/pods" => (
                200,
                json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}),
            ),
            path => (200, json!(format!("line of {path}\n"))),
        }
    });
    let args = [
        "logs", "llama", "-n", "ml", "--all", "--prefix", "--tail", "5", "--since", "10m",
    ];
    let text = stdout(&ask(&server.address, &args));
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let expected = [
        "[workers-0-0] line of /api/v1/namespaces/ml/pods/llama-workers-0/log",
        "[workers-0-1] line of /api/v1/namespaces/ml/pods/llama-workers-1/log",
    ];
    assert_eq!(lines, expected);
    let asked = server.requests().last().unwrap().path.clone();
    for part in ["container=t", "tailLines=5", "sinceSeconds=600"] {
        assert!(asked.contains(part), "{asked}");
    }
}

/// A server with workloads of two members each, whose pods have logs.
fn two_workloads(names: &'static [&'static str]) -> ApiServer {
    let list = |items: Vec<Value>| {
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
        (200, list)
    };
    ApiServer::start(move |request| {
        let (path, query) = request.path.split_once('?').unwrap_or_default();
        let workload = |n: &&str| with_status(n, 2, &json!({"phase": "Running"}));
        match path {
            WORKLOADS | "/apis/training.lockstep.dev/v1alpha1/trainingworkloads" => {
                list(names.iter().map(workload).collect())
            }
            "/api/v1/namespaces/ml/pods" => {
                let owner = names.iter().find(|n| query.contains(&format!("uid-{n}")));
                let pods = |name: &&str| (0..2).map(|i| member_pod(name, i, "n1", true)).collect();
                // The workload `waits` has no pods.
                let placed = owner.filter(|name| **name != "waits");
                list(placed.map(pods).unwrap_or_default())
            }
            "/api/v1/namespaces/ml/pods/starts-workers-0/log" => refusal(
                400,
                "BadRequest",
                "container \"t\" in pod \"starts-workers-0\" is waiting to start: ContainerCreating",
            ),
            path => (200, json!(format!("line of {path}\n"))),
        }
    })
}

/// Sorted lines: logs arrive in any order.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_logs_of_all_workloads_with_labels_come_with_the_names_of_the_workloads() {
    let server = two_workloads(&["llama", "lora"]);
    let asked = |args: &[&str]| {
        let text = stdout(&ask(
            &server.address,
            &[&["logs", "-l", "team=x"], args].concat(),
        ));
        text.replace("line of /api/v1/namespaces/ml/pods/", "")
    };
    assert_eq!(
        sorted(&asked(&["-n", "ml"])),
        [
            "[llama/workers-0-0] llama-workers-0/log",
            "[lora/workers-0-0] lora-workers-0/log"
        ]
    );
    let list = server.requests()[0].path.clone();
    assert!(list.contains("labelSelector=team%3Dx"), "{list}");
    assert_eq!(
        sorted(&asked(&["-A", "--rank", "1"])),
        [
            "[ml/llama/workers-0-1] llama-workers-1/log",
            "[ml/lora/workers-0-1] lora-workers-1/log"
        ]
    );
    let one = two_workloads(&["llama"]);
    let text = stdout(&ask(&one.address, &["logs", "-l", "team=x", "-n", "ml"]));
    assert_eq!(
        text,
        "line of /api/v1/namespaces/ml/pods/llama-workers-0/log\n"
    );
}

#[test]
fn a_workload_without_a_log_does_not_hide_other_logs() {
    let server = two_workloads(&["llama", "waits", "starts"]);
    let out = ask(&server.address, &["logs", "-l", "team=x", "-n", "ml"]);
    assert_eq!(
        stdout(&out),
        "[llama/workers-0-0] line of /api/v1/namespaces/ml/pods/llama-workers-0/log\n"
    );
    assert_eq!(
        stderr(&out),
        "\
warning: skipped: \"waits\" has no pod: the manager has not written a status yet; `kubectl lockstep status waits -n ml` shows more
warning: skipped: the API server rejected the request: container \"t\" in pod \"starts-workers-0\" is waiting to start: ContainerCreating
"
    );
    let nobody = two_workloads(&["waits"]);
    let out = ask(&nobody.address, &["logs", "-l", "team=x", "-n", "ml"]);
    assert_eq!(
        sentence(&out),
        "error: \"waits\" has no pod: the manager has not written a status yet; `kubectl lockstep status waits -n ml` shows more"
    );
    let none = two_workloads(&[]);
    let out = ask(&none.address, &["logs", "-l", "team=x", "-n", "ml"]);
    assert_eq!(
        sentence(&out),
        "error: no TrainingWorkload in namespace \"ml\" has the labels team=x; `kubectl get tw -A` lists all workloads"
    );
}

#[test]
fn a_name_and_labels_exclude_each_other_and_one_of_them_is_needed() {
    let said = |args: &[&str]| {
        let out = ask("http://127.0.0.1:1", &[&["logs"], args].concat());
        assert_eq!(out.status.code(), Some(1));
        stderr(&out)
    };
    let both = said(&["llama", "-l", "team=x"]);
    let refused = "error: the argument '[NAME]' cannot be used with '--selector <SELECTOR>'";
    assert!(both.starts_with(refused), "{both}");
    let all = said(&["llama", "-A"]);
    let refused = "error: the argument '[NAME]' cannot be used with '--all-namespaces'";
    assert!(all.starts_with(refused), "{all}");
    let neither = said(&[]);
    assert!(
        neither.contains("<NAME|--selector <SELECTOR>>"),
        "{neither}"
    );
}

#[test]
fn accelerators_are_counted_by_namespace_and_priority() {
    let mut objects = full_cluster();
    gang(&mut objects, "new", 2, 8, 100, &[], 60);
    gang(&mut objects, "stopped", 2, 8, 100, &[], 60);
    for workload in &mut objects.workloads {
        let name = workload.metadata.name.clone().unwrap();
        workload.spec.suspend = name == "stopped";
        if let Some(status) = workload.status.as_mut() {
            status.accounting.accelerators = if name == "old" || name == "young" {
                8
            } else {
                0
            };
        }
    }
    for group in &mut objects.groups {
        let owner = &group.metadata.owner_references.as_ref().unwrap()[0];
        assert!(
            objects
                .workloads
                .iter()
                .any(|w| w.metadata.uid.as_ref() == Some(&owner.uid))
        );
    }
    let answer = top(&objects.workloads, &objects.groups, Some(32));
    assert_eq!(
        screen(&answer),
        "\
NAMESPACE   PRIORITY   RUNNING   ACCELERATORS   WAITING   REQUESTED
ml          100        0         0              1         16
ml          10         2         16             0         0
(all)       -          2         16             1         16

Nodes have 32; 16 are free, held by other pods, or on unschedulable nodes.
RUNNING and WAITING count workloads. ACCELERATORS are held by placed members, REQUESTED by members without a node. Utilization is not measured.
"
    );
    let unknown = screen(&top(&[], &[], None));
    let expected = "no workload holds or requests accelerators\n\nThe capacity of nodes is unknown: no permission to read nodes.\n";
    assert!(unknown.starts_with(expected), "{unknown}");
}

fn agent(node: &str, arrived: usize, reported: Option<i64>) -> NodeAgent {
    let pods: Vec<Value> = (0..arrived)
        .map(|i| json!({"podUID": i.to_string()}))
        .collect();
    let reports: Vec<Value> = reported
        .iter()
        .map(|age| {
            json!({"podUID": "p", "container": "t", "containerID": "c", "attempt": 1, "exitCode": 0, "time": ago(*age)})
        })
        .collect();
    serde_json::from_value(json!({
        "apiVersion": "training.lockstep.dev/v1alpha1", "kind": "NodeAgent", "metadata": {"name": node}, "spec": {},
        "status": {"agentVersion": "0.1.0", "runtime": "containerd 2.1", "reports": reports,
            "arrivals": [{"workloadUID": "w", "domain": "workload", "attempt": 1, "pods": pods}]},
    }))
    .unwrap()
}

fn agent_pod(node: &str, ready: bool) -> Pod {
    let ready = if ready { "True" } else { "False" };
    pod(
        json!({"metadata": {"name": format!("agent-{node}"), "creationTimestamp": ago(7200)}, "spec": {"nodeName": node,
        "containers": []}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}),
    )
}

#[test]
fn agents_are_joined_with_their_pods() {
    let objects = [
        agent("n1", 8, Some(180)),
        agent("n2", 0, None),
        agent("n3", 2, None),
    ];
    let pods = [
        agent_pod("n1", true),
        agent_pod("n2", false),
        agent_pod("n4", true),
    ];
    let answer = agents(&objects, Some(&pods));
    assert_eq!(
        screen(&answer),
        "\
4 agents: 1 Ready, 1 NotReady, 1 Gone, 1 Silent

NODE   STATE      MEMBERS   VERSION   LAST REPORT   AGE
n1     Ready      8         0.1.0     3m ago        120m
n2     NotReady   0         0.1.0     -             120m
n3     Gone       2         0.1.0     -             -
n4     Silent     0         -         -             120m
"
    );
    let options = RenderOptions {
        wide: true,
        ..RenderOptions::plain(now())
    };
    assert!(
        answer
            .screen(&options)
            .contains("containerd 2.1   agent-n1")
    );
    let blind = screen(&agents(&objects, None));
    assert!(blind.contains("n1     Unknown"), "{blind}");
}

#[test]
fn many_agents_are_counted_and_only_agents_that_are_not_ready_are_listed() {
    let nodes: Vec<String> = (0..20).map(|n| format!("n{n:02}")).collect();
    let objects: Vec<NodeAgent> = nodes.iter().map(|node| agent(node, 1, None)).collect();
    let pods = nodes.iter().map(|node| agent_pod(node, node != "n07"));
    let pods: Vec<Pod> = pods.collect();
    let answer = agents(&objects, Some(&pods));
    assert_eq!(
        screen(&answer),
        "\
20 agents: 19 Ready, 1 NotReady

NODE   STATE      MEMBERS   VERSION   LAST REPORT   AGE
n07    NotReady   1         0.1.0     -             120m
19 more agents, all Ready (-o wide shows all)
"
    );
    let wide = RenderOptions {
        wide: true,
        ..RenderOptions::plain(now())
    };
    assert_eq!(answer.screen(&wide).lines().count(), 2 + 1 + 20);
}

#[test]
fn signals_of_nodes_are_listed_with_the_workloads_there() {
    let minutes = |minutes: i64| (now() - chrono::TimeDelta::minutes(minutes)).to_rfc3339();
    let deadline = (now() + chrono::TimeDelta::hours(3))
        .timestamp()
        .to_string();
    let condition =
        json!({"type": "GPUMissing", "status": "True", "lastTransitionTime": minutes(5)});
    let objects = [
        json!({"metadata": {"name": "n1"}, "status": {"conditions": [condition]}}),
        json!({"metadata": {"name": "n2",
            "labels": {"cloud.google.com/scheduled-maintenance-time": deadline}}}),
        json!({"metadata": {"name": "n3"}, "spec": {"unschedulable": true}}),
    ];
    let objects = objects.map(|node| serde_json::from_value(node).unwrap());
    let group = json!({"metadata": {"name": "llama-workload-1", "namespace": "ml"},
        "spec": {"workloadRef": {"workloadName": "llama", "templateName": "workload"},
            "gangKey": "workload", "schedulingPolicy": {"gang": {"minCount": 1}}},
        "status": {"placement": {"id": "p", "members": 1, "decidedAt": minutes(60),
            "nodes": [{"node": "n1", "members": ["workers/0/0"]}]}}});
    let groups = [serde_json::from_value(group).unwrap()];
    let config = NodeHealthConfig::default();
    assert_eq!(
        screen(&nodes(&objects, &groups, Some(&config), now())),
        "\
2 nodes with signals, mode Observe

NODE   SIGNAL                    LEVEL     SINCE   DEADLINE   WORKLOADS
n1     GPUMissing                Faulty    5m      -          ml/llama
n2     GKEScheduledMaintenance   Leaving   -       in 3h      -
"
    );
}
