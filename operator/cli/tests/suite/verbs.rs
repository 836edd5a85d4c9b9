//! Commands of the program against an API server with prepared answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::problems::{ask, stderr, stdout};
use crate::screens::{member_pod, with_status};
use crate::server::{ApiServer, WORKLOADS, find_entry, refusal};
use crate::support::manifest;

const ALL_WORKLOADS: &str = "/apis/training.lockstep.dev/v1alpha1/trainingworkloads";
const ALL_GROUPS: &str = "/apis/scheduling.lockstep.dev/v1alpha1/podgroups";
const GROUPS: &str = "/apis/scheduling.lockstep.dev/v1alpha1/namespaces/ml/podgroups";
const PODS: &str = "/api/v1/namespaces/ml/pods";
const AGENTS: &str = "/apis/training.lockstep.dev/v1alpha1/nodeagents";

fn running(name: &str) -> Value {
    with_status(
        name,
        1,
        &json!({"phase": "Running", "ready": "1/1", "reason": "AllMembersReady"}),
    )
}

#[test]
fn the_same_answer_comes_as_a_table_names_json_and_yaml() {
    let server = ApiServer::with(&[
        (WORKLOADS, vec![running("a")]),
        (GROUPS, Vec::new()),
        (PODS, Vec::new()),
    ]);
    let status = |format: &str| {
        let args = ["status", "a", "-n", "ml", "-o", format];
        stdout(&ask(&server.address, &args))
    };
    assert!(status("table").starts_with("ml/a: Running"));
    assert_eq!(status("name"), "trainingworkload.training.lockstep.dev/a\n");
    let answer: Value = serde_json::from_str(&status("json")).unwrap();
    assert_eq!(answer["phase"], "Running");
    let yaml: Value = serde_saphyr::from_str(&status("yaml")).unwrap();
    assert_eq!(yaml, answer);
}

#[test]
fn workloads_that_cannot_be_read_are_named_and_left_out() {
    let mut broken = running("broken");
    broken["spec"] = json!({"groups": 3});
    let server = ApiServer::with(&[
        (ALL_WORKLOADS, vec![running("a"), broken]),
        ("/api/v1/nodes", Vec::new()),
        (ALL_GROUPS, Vec::new()),
    ]);
    let out = ask(&server.address, &["top"]);
    let row = "ml          -          0         0              1         8\n";
    assert!(stdout(&out).contains(row), "{}", stdout(&out));
    let said = stderr(&out);
    assert!(
        said.starts_with("warning: skipped: trainingworkload ml/broken: "),
        "{said}"
    );
}

#[test]
fn the_status_does_without_what_may_not_be_read() {
    let server =
        ApiServer::start(
            |request| match request.path.split('?').next().unwrap_or_default() {
                path if path == format!("{WORKLOADS}/llama") => (200, running("llama")),
                GROUPS => (
                    200,
                    json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}),
                ),
                _ => refusal(403, "Forbidden", "pods is forbidden"),
            },
        );
    let text = stdout(&ask(&server.address, &["status", "llama", "-n", "ml"]));
    assert!(text.starts_with("ml/llama: Running, 1/1 ready"), "{text}");
}

#[test]
fn versions_that_differ_are_said() {
    let manager = json!({"metadata": {"name": "m", "namespace": "lockstep-system"},
        "spec": {"containers": [{"name": "manager", "image": "ghcr.io/lockstep-dev/lockstep-manager:v9.9.9"}]}});
    let agent = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "NodeAgent", "metadata": {"name": "n1"},
        "spec": {}, "status": {"agentVersion": env!("CARGO_PKG_VERSION")}});
    let lists = json!({"/api/v1/pods": [manager], AGENTS: [agent]});
    let server = ApiServer::start(move |request| {
        let path = request.path.split('?').next().unwrap_or_default();
        match path {
            "/version" => (
                200,
                json!({"major": "1", "minor": "36", "gitVersion": "v1.36.2", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            ),
            "/apis" => (
                200,
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "training.lockstep.dev",
                "versions": [{"groupVersion": "training.lockstep.dev/v1alpha1", "version": "v1alpha1"}]}]}),
            ),
            _ => (
                200,
                json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": lists[path]}),
            ),
        }
    });
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        stdout(&ask(&server.address, &["version"])),
        format!(
            "\
COMPONENT          VERSION
kubectl-lockstep   {version}
Kubernetes         v1.36.2
API                v1alpha1
manager            9.9.9
agents             {version}

manager 9.9.9 and kubectl-lockstep {version} differ
"
        )
    );
}

/// Pods of a workload of two members.
pub fn two_pods() -> Vec<Value> {
    vec![
        member_pod("llama", 0, "n1", true),
        member_pod("llama", 1, "n2", true),
    ]
}

#[test]
fn a_screen_that_goes_into_a_pipe_has_no_colours() {
    let server = ApiServer::with(&[
        (WORKLOADS, vec![running("llama")]),
        (GROUPS, Vec::new()),
        (PODS, two_pods()),
    ]);
    let text = stdout(&ask(&server.address, &["status", "llama", "-n", "ml"]));
    assert!(!text.contains('\u{1b}') && text.contains("n2"), "{text}");
}

/// A server with one workload and this answer to writes.
fn writable(answer: (u16, Value)) -> ApiServer {
    ApiServer::start(move |request| {
        if request.method == "PATCH" {
            return answer.clone();
        }
        let mut workload = running("llama");
        workload["metadata"]["resourceVersion"] = json!("7");
        (200, workload)
    })
}

fn patches(server: &ApiServer) -> Vec<(String, Value)> {
    let all = server.requests().into_iter();
    let writes = all.filter(|r| r.method != "GET");
    writes.map(|r| (r.path, r.body)).collect()
}

#[test]
fn a_verb_that_writes_sends_one_field_with_the_version_that_was_read_and_says_so() {
    let written = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "llama"}});
    let server = writable((200, written));
    let said = |args: &[&str]| {
        let fixed = ["llama", "-n", "ml"];
        stdout(&ask(
            &server.address,
            &[&args[..1], &fixed[..], &args[1..]].concat(),
        ))
    };
    let restart = "trainingworkload ml/llama: spec.restartNonce 0 -> 1: all members restart once, without using the restart budget";
    assert_eq!(
        said(&["restart", "--dry-run"]),
        format!("{restart} (client dry run: nothing was sent)\n")
    );
    assert_eq!(
        said(&["resume"]),
        "trainingworkload ml/llama: no change, not suspended\n"
    );
    assert_eq!(patches(&server), []);
    assert_eq!(
        said(&["restart", "--dry-run=server"]),
        format!("{restart} (server dry run: the API server would accept it)\n")
    );
    assert_eq!(said(&["restart"]), format!("{restart}\n"));
    let body = json!({"metadata": {"resourceVersion": "7"}, "spec": {"restartNonce": 1}});
    let path = format!("{WORKLOADS}/llama");
    let expected = [
        (
            format!("{path}?&dryRun=All&fieldManager=kubectl-lockstep"),
            body.clone(),
        ),
        (format!("{path}?&fieldManager=kubectl-lockstep"), body),
    ];
    assert_eq!(patches(&server), expected);
}

#[test]
fn a_wrong_checkpoint_time_gets_the_format_or_the_limit() {
    let server = writable((200, json!({})));
    let said = |at: &str| {
        let args = ["checkpoint", "llama", "-n", "ml", "--record", "--at", at];
        stderr(&ask(&server.address, &args))
    };
    let format = said("yesterday");
    let example = "not a time such as 2026-11-21T10:00:00Z (RFC 3339)";
    assert!(format.contains(example), "{format}");
    assert_eq!(
        said("2020-01-01T00:00:00Z"),
        "error: checkpoint time 2020-01-01T00:00:00Z is before the creation of the workload at 2026-11-18T08:06:40Z\n"
    );
    assert!(said("2999-01-01T00:00:00Z").contains("is in the future"));
    assert_eq!(patches(&server), []);
}

#[test]
fn a_tenant_sees_the_queue_of_a_namespace_without_places() {
    let group = |name: &str| {
        let short = "insufficient nvidia.com/gpu: 1 pod needs 8 more";
        let owner = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
            "name": name, "uid": format!("uid-{name}"), "controller": true});
        json!({"metadata": {"name": format!("{name}-workload-1"), "namespace": "ml", "uid": name,
                "ownerReferences": [owner]},
            "spec": {"workloadRef": {"workloadName": name, "templateName": "workload"}, "gangKey": "workload",
                "schedulingPolicy": {"gang": {"minCount": 1}}, "priority": 7},
            "status": {"queue": {"ahead": 3, "evaluatedAt": "2026-11-21T10:00:00Z"},
                "conditions": [{"type": "PodGroupInitiallyScheduled", "status": "False",
                "reason": "Unschedulable", "message": short, "lastTransitionTime": "2026-11-21T10:00:00Z"}]}})
    };
    let workload = |name: &str, phase: &str| with_status(name, 1, &json!({"phase": phase}));
    let workloads = vec![workload("new", "Pending"), workload("over", "Failed")];
    let lists: BTreeMap<&str, Vec<Value>> = BTreeMap::from([
        (WORKLOADS, workloads),
        (GROUPS, vec![group("new"), group("over")]),
        (PODS, Vec::new()),
    ]);
    let server =
        ApiServer::start(
            move |request| match request.path.split('?').next().unwrap_or_default() {
                "/api/v1/nodes" => {
                    refusal(403, "Forbidden", "nodes is forbidden at the cluster scope")
                }
                path => find_entry(&lists, path, |_| true),
            },
        );
    let out = ask(&server.address, &["queue", "-n", "ml"]);
    let warned = stderr(&out);
    assert!(
        warned.contains(
            "warning: places are read from the gangs and can be a minute old: not allowed: nodes"
        ),
        "{warned}"
    );
    let shown = stdout(&out);
    let rows: Vec<Vec<&str>> = shown
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 2, "{shown}");
    assert_eq!(rows[1][..6], ["4", "ml", "new", "7", "-", "waits"]);
}

/// A workload that the manager writes after each of the first reads; all of them have these
/// restart nonces, in this order.
fn busy(nonces: &'static [i64]) -> ApiServer {
    let reads = AtomicUsize::new(0);
    ApiServer::start(move |request| {
        if request.method == "PATCH" {
            let last = json!(nonces.len().to_string());
            return if request.body["metadata"]["resourceVersion"] == last {
                (200, running("llama"))
            } else {
                refusal(409, "Conflict", "the object has been modified")
            };
        }
        let read = reads.fetch_add(1, Ordering::Relaxed);
        let mut workload = running("llama");
        workload["metadata"]["resourceVersion"] = json!((read + 1).to_string());
        workload["spec"]["restartNonce"] = json!(nonces[read]);
        (200, workload)
    })
}

#[test]
fn a_write_is_repeated_if_the_manager_wrote_the_status_meanwhile() {
    let server = busy(&[4, 4, 4]);
    let out = ask(&server.address, &["restart", "llama", "-n", "ml"]);
    assert_eq!(
        stdout(&out),
        "trainingworkload ml/llama: spec.restartNonce 4 -> 5: all members restart once, without using the restart budget\n"
    );
    assert_eq!(patches(&server).len(), 3);
}

#[test]
fn a_field_that_was_changed_meanwhile_is_not_written() {
    let refused = "error: \"llama\" was modified before the write: nothing was written; check the workload and retry\n";
    let server = busy(&[4, 5, 5]);
    let out = ask(&server.address, &["restart", "llama", "-n", "ml"]);
    assert_eq!(stderr(&out), refused);
    assert_eq!(patches(&server).len(), 1);

    let server = writable(refusal(409, "Conflict", "the object has been modified"));
    let out = ask(&server.address, &["suspend", "llama", "-n", "ml"]);
    assert_eq!(stderr(&out), refused);
    assert_eq!(patches(&server).len(), 5);
}

/// Answers dry runs with these functions, everything else from lists.
fn answers_dry_runs(
    lists: &[(&str, Vec<Value>)],
    workload: impl Fn(&Value) -> (u16, Value) + Send + 'static,
    pod: impl Fn(&Value) -> (u16, Value) + Send + 'static,
) -> ApiServer {
    let lists: BTreeMap<String, Vec<Value>> = lists
        .iter()
        .map(|(path, items)| ((*path).to_owned(), items.clone()))
        .collect();
    ApiServer::start(move |request| match request.method.as_str() {
        "PATCH" => workload(&request.body),
        "POST" => pod(&request.body),
        _ => {
            let path = request.path.split('?').next().unwrap_or_default();
            find_entry(&lists, path, |_| true)
        }
    })
}

fn accepted(object: &Value) -> (u16, Value) {
    (200, object.clone())
}

#[test]
fn whatif_validates_the_manifest_by_dry_runs_and_says_what_it_could_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gang.json").display().to_string();
    std::fs::write(&file, manifest("new", 1, 8, &json!({})).to_string()).unwrap();
    let said = |server: &ApiServer| {
        let out = ask(&server.address, &["whatif", "-f", &file]);
        (out.status.code(), stderr(&out))
    };
    let unknown = "strict decoding error: unknown field \"spec.groups[0].replica\"";
    let server = answers_dry_runs(&[], move |_| refusal(400, "BadRequest", unknown), accepted);
    let refused = format!("error: manifest {file}: the API server rejected the request: ");
    assert_eq!(said(&server), (Some(1), format!("{refused}{unknown}\n")));
    let sent = server.requests();
    assert!(
        sent[0].path.contains("dryRun=All") && sent[0].path.contains("fieldValidation=Strict"),
        "{}",
        sent[0].path
    );
    let image = "Pod \"workers-x\" is invalid: spec.containers[0].image: Required value";
    let server = answers_dry_runs(&[], accepted, move |_| refusal(422, "Invalid", image));
    let of_group = format!("{refused}pods of group workers: {image}\n");
    assert_eq!(said(&server), (Some(1), of_group));
    let pods = server.requests().into_iter().filter(|r| r.method == "POST");
    assert!(pods.into_iter().all(|r| r.path.contains("dryRun=All")));
    let forbidden = |_: &Value| refusal(403, "Forbidden", "pods is forbidden");
    let server = answers_dry_runs(&[], forbidden, forbidden);
    let (_, warned) = said(&server);
    for warning in [
        "warning: the API server did not validate the manifest: pods is forbidden\n",
        "warning: pods of group workers: pods is forbidden\n",
    ] {
        assert!(warned.contains(warning), "{warned}");
    }
}

#[test]
fn whatif_decides_by_the_managers_configuration_and_says_where_flags_differ() {
    let config = |text: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x-config-9f2", "namespace": "ops"},
            "data": {"config.yaml": text}})
    };
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x-m", "namespace": "ops",
            "labels": {"app.kubernetes.io/name": "lockstep", "app.kubernetes.io/component": "manager"}},
        "spec": {"selector": {}, "template": {"spec": {"containers": [], "volumes": [
            {"name": "config", "configMap": {"name": "x-config-9f2"}}]}}}});
    let server = |configured: Vec<Value>| {
        let lists = [
            ("/apis/apps/v1/deployments", vec![deployment.clone()]),
            ("/api/v1/namespaces/ops/configmaps", configured),
            ("/api/v1/namespaces", Vec::new()),
            ("/api/v1/nodes", Vec::new()),
            ("/api/v1/pods", Vec::new()),
            ("/apis/policy/v1/poddisruptionbudgets", Vec::new()),
            (
                "/apis/scheduling.k8s.io/v1/priorityclasses",
                vec![class.clone()],
            ),
            (
                "/apis/scheduling.lockstep.dev/v1alpha1/podgroups",
                Vec::new(),
            ),
            (ALL_WORKLOADS, Vec::new()),
        ];
        answers_dry_runs(&lists, accepted, accepted)
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gang.json").display().to_string();
    std::fs::write(&file, manifest("new", 1, 8, &json!({})).to_string()).unwrap();
    let said = |configured: Vec<Value>, flags: &[&str]| {
        let server = server(configured);
        let out = ask(&server.address, &[&["whatif", "-f", &file], flags].concat());
        assert_eq!(out.status.code(), Some(2), "{}", stderr(&out));
        stderr(&out)
    };
    let least_work = || vec![config("scheduler: {preemption: {order: LeastWork}}")];
    assert_eq!(said(least_work(), &["--order", "least-work"]), "");
    assert_eq!(
        said(least_work(), &["--order", "strict-priority"]),
        "warning: --order differs from the manager's configuration: the manager may decide differently\n"
    );
    assert_eq!(
        said(
            vec![config("scheduler: {preemption: {enabled: false}}")],
            &[]
        ),
        "warning: preemption is disabled (scheduler.preemption.enabled is false): a gang that needs victims stays queued\n"
    );
    assert_eq!(
        said(Vec::new(), &[]),
        "warning: cannot read the manager's configuration: forbidden or not found; using the defaults and the flags\n"
    );
}

#[test]
fn logs_of_a_deleted_pod_are_not_reported_as_a_cluster_without_lockstep() {
    let server = ApiServer::with(&[(WORKLOADS, vec![running("llama")]), (PODS, two_pods())]);
    let out = ask(&server.address, &["logs", "llama", "-n", "ml"]);
    assert_eq!(
        stderr(&out),
        "error: \"llama-workers-0\" was deleted while the command ran; check the workload and retry\n"
    );
}

#[test]
fn accelerators_of_workloads_with_labels_are_not_taken_from_those_of_the_nodes() {
    let mut holds = running("a");
    holds["status"]["accounting"] = json!({"accelerators": 8});
    let server = ApiServer::with(&[
        (ALL_WORKLOADS, vec![holds]),
        (ALL_GROUPS, Vec::new()),
        ("/api/v1/nodes", Vec::new()),
    ]);
    let top = |format: &str| {
        let args = ["top", "-l", "team=x", "-o", format];
        stdout(&ask(&server.address, &args))
    };
    let text = top("table");
    assert!(
        text.contains("ml          -          1         8"),
        "{text}"
    );
    assert!(!text.contains("Nodes have"), "{text}");
    let asked = server.requests()[0].path.clone();
    assert!(asked.contains("labelSelector=team%3Dx"), "{asked}");
    let answer: Value = serde_json::from_str(&top("json")).unwrap();
    assert_eq!(answer["onlyLabels"], "team=x");
}
