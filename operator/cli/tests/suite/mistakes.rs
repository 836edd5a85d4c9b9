//! A fault in the cluster changes each line of `doctor`. The program reads it through the API.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::problems::ask;
use crate::server::{ApiServer, Request, find_entry, refusal};

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
const AGENTS: &str = "/apis/training.lockstep.dev/v1alpha1/nodeagents";
pub const WORKLOADS: &str = "/apis/training.lockstep.dev/v1alpha1/trainingworkloads";
const GROUPS: &str = "/apis/scheduling.lockstep.dev/v1alpha1/podgroups";
const ORDERS: &str = "/apis/training.lockstep.dev/v1alpha1/restartorders";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/lockstep-system/leases";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const BUDGETS: &str = "/apis/policy/v1/poddisruptionbudgets";
pub const CONFIGS: &str = "/api/v1/namespaces/lockstep-system/configmaps";
pub const KUEUE: &str = "/api/v1/namespaces/kueue-system/configmaps";

#[derive(Clone)]
pub struct Cluster {
    kubernetes: &'static str,
    /// Groups beyond the built-in ones, each with a version and the kinds it serves.
    pub groups: BTreeMap<&'static str, (&'static str, Vec<&'static str>)>,
    pub objects: BTreeMap<&'static str, Vec<Value>>,
    pub forbidden: Vec<&'static str>,
    /// True if the manager's account has the rights that the policies require.
    manager_may_write: bool,
    /// A resource on which the manager's account has no right.
    pub manager_may_not: &'static str,
    /// A resource without any rights for the user.
    user_may_not: &'static str,
    log: &'static str,
}

#[allow(
    clippy::disallowed_methods,
    reason = "the program looks at a lease with the machine's clock"
)]
fn this_moment() -> DateTime<Utc> {
    Utc::now()
}

fn labelled(name: &str, namespace: &str, labels: &Value) -> Value {
    json!({"name": name, "namespace": namespace, "labels": labels})
}

fn manager(name: &str) -> Value {
    let labels =
        json!({"app.kubernetes.io/name": "lockstep", "app.kubernetes.io/component": "manager"});
    let image = format!("ghcr.io/x/lockstep-manager:v{}", env!("CARGO_PKG_VERSION"));
    json!({"metadata": labelled(name, "lockstep-system", &labels),
        "spec": {"nodeName": "n1", "containers": [{"name": "manager", "image": image}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

fn agent_pod(node: &str) -> Value {
    let labels = json!({"app.kubernetes.io/name": "lockstep-agent"});
    json!({"metadata": labelled(&format!("agent-{node}"), "lockstep-agent", &labels),
        "spec": {"nodeName": node, "containers": [{"name": "agent"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

fn agent(node: &str) -> Value {
    json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "NodeAgent", "metadata": {"name": node},
        "spec": {}, "status": {"agentVersion": env!("CARGO_PKG_VERSION")}})
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name},
        "status": {"declaredFeatures": ["RestartAllContainersOnContainerExits"]}})
}

fn policy(name: &str) -> Value {
    let labels = json!({"app.kubernetes.io/name": "lockstep"});
    json!({"metadata": {"name": name, "labels": labels}, "spec": {"validations": []}})
}

/// The manager's configuration.
pub fn configured(text: &str) -> Value {
    json!({"metadata": {"name": "config-1"}, "data": {"config.yaml": text}})
}

fn binding(policy: &str) -> Value {
    json!({"metadata": {"name": policy}, "spec": {"policyName": policy, "validationActions": ["Deny"]}})
}

pub fn healthy() -> Cluster {
    let account = json!({"metadata": {"name": "lockstep-manager", "namespace": "lockstep-system",
            "labels": {"app.kubernetes.io/name": "lockstep", "app.kubernetes.io/component": "manager"}},
        "spec": {"selector": {}, "template": {"spec": {"serviceAccountName": "lockstep-manager", "containers": [],
            "volumes": [{"name": "config", "configMap": {"name": "config-1"}}]}}}});
    let renewed = this_moment().to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
    let lease = json!({"metadata": {"name": "lockstep-leader", "namespace": "lockstep-system"},
        "spec": {"holderIdentity": "a", "renewTime": renewed, "leaseDurationSeconds": 600}});
    let policies = [
        "lockstep-members",
        "lockstep-node-agents",
        "lockstep-operator-objects",
    ];
    Cluster {
        kubernetes: "v1.36.2",
        groups: BTreeMap::from([
            (
                "training.lockstep.dev",
                (
                    "v1alpha1",
                    vec!["nodeagents", "restartorders", "trainingworkloads"],
                ),
            ),
            (
                "scheduling.lockstep.dev",
                ("v1alpha1", vec!["podgroups", "workloads"]),
            ),
            ("scheduling.k8s.io", ("v1", vec!["priorityclasses"])),
        ]),
        objects: BTreeMap::from([
            (NODES, vec![node("n1"), node("n2")]),
            (
                PODS,
                vec![manager("a"), manager("b"), agent_pod("n1"), agent_pod("n2")],
            ),
            (DEPLOYMENTS, vec![account]),
            (AGENTS, vec![agent("n1"), agent("n2")]),
            (WORKLOADS, vec![]),
            (BUDGETS, vec![]),
            (LEASES, vec![lease]),
            (CONFIGS, vec![configured("")]),
            (POLICIES, policies.map(policy).into()),
            (BINDINGS, policies.map(binding).into()),
        ]),
        forbidden: vec![],
        manager_may_write: true,
        manager_may_not: "",
        user_may_not: "",
        log: "",
    }
}

impl Cluster {
    fn answer(&self, request: &Request) -> (u16, Value) {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        if self.forbidden.contains(&path) {
            return refusal(403, "Forbidden", "it is forbidden");
        }
        if path == "/version" {
            return (200, self.version());
        }
        if path == "/apis" {
            let groups = self.groups.iter().map(|(name, (version, _))| {
                let version =
                    json!({"groupVersion": format!("{name}/{version}"), "version": version});
                json!({"name": name, "versions": [version], "preferredVersion": version})
            });
            return (
                200,
                json!({"kind": "APIGroupList", "groups": groups.collect::<Vec<_>>()}),
            );
        }
        if let Some(review) = self.review(path, &request.body) {
            return (201, review);
        }
        let of_group = |(name, (version, _)): &(&&str, &(&str, Vec<&str>))| {
            path == format!("/apis/{name}/{version}")
        };
        if let Some((name, (version, kinds))) = self.groups.iter().find(of_group) {
            let kinds = kinds.iter().map(|k| {
                json!({"name": k, "singularName": "", "kind": k, "namespaced": true, "verbs": []})
            });
            return (
                200,
                json!({"kind": "APIResourceList", "groupVersion": format!("{name}/{version}"),
                    "resources": kinds.collect::<Vec<_>>()}),
            );
        }
        if path.ends_with("/log") {
            return (200, json!(self.log));
        }
        find_entry(&self.objects, path, |object| selected(object, query))
    }

    fn version(&self) -> Value {
        json!({"major": "1", "minor": "36", "gitVersion": self.kubernetes, "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""})
    }

    fn review(&self, path: &str, body: &Value) -> Option<Value> {
        let asked = &body["spec"]["resourceAttributes"];
        let allowed = match path.rsplit('/').next()? {
            "subjectaccessreviews" => {
                self.manager_may_write && asked["resource"] != self.manager_may_not
            }
            "selfsubjectaccessreviews" => asked["resource"] != self.user_may_not,
            _ => return None,
        };
        let mut review = body.clone();
        review["status"] = json!({"allowed": allowed});
        Some(review)
    }

    fn list(&mut self, path: &'static str) -> &mut Vec<Value> {
        self.objects.get_mut(path).unwrap()
    }
}

/// True if an object matches the label selector of the query.
fn selected(object: &Value, query: &str) -> bool {
    let selector = query
        .split('&')
        .find_map(|p| p.strip_prefix("labelSelector="))
        .unwrap_or_default()
        .replace("%2F", "/")
        .replace("%3D", "=")
        .replace("%2C", ",");
    let mut wanted = selector.split(',').filter_map(|l| l.split_once('='));
    wanted.all(|(key, value)| object["metadata"]["labels"][key] == value)
}

/// Levels and messages by check, and the exit code.
pub fn doctor(cluster: Cluster) -> (BTreeMap<String, (String, String)>, Option<i32>) {
    let server = ApiServer::start(move |request| cluster.answer(request));
    let out = ask(&server.address, &["doctor", "-o", "json"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let answer: Value = serde_json::from_slice(&out.stdout).expect(&said);
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let checks = answer["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (text(&c["check"]), (text(&c["level"]), text(&c["message"]))));
    (checks.collect(), out.status.code())
}

/// A check, a fault in the cluster, level and message of the check.
type Mistake = (&'static str, fn(&mut Cluster), &'static str, &'static str);

/// Log lines in the manager's format.
const LOG_OF_FAILED_WATCHES: &str = r#"{"timestamp":"2026-11-26T21:00:00Z","level":"WARN","message":"watch failed","kind":"Node","error":"timeout"}
{"timestamp":"2026-11-26T21:00:01Z","level":"WARN","message":"watch failed","kind":"Pod","error":"forbidden by policy"}
{"timestamp":"2026-11-26T21:00:02Z","level":"INFO","message":"the streamed list failed: listing in pages","kind":"Pod"}
"#;

fn budget_over_a_member(cluster: &mut Cluster, status: &Value) {
    let labels = json!({"training.lockstep.dev/workload-uid": "u", "app": "a"});
    let member = json!({"metadata": labelled("a-w-0-0", "ml", &labels)});
    cluster.list(PODS).push(member);
    let counts = json!({"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1});
    let mut budget = json!({"metadata": {"name": "half", "namespace": "ml"},
        "spec": {"maxUnavailable": "50%", "selector": {"matchLabels": {"app": "a"}}}, "status": counts});
    for (key, value) in status.as_object().unwrap() {
        budget["status"][key] = value.clone();
    }
    cluster.list(BUDGETS).push(budget);
}

const MISTAKES: &[Mistake] = &[
    (
        "kubernetes",
        |c| c.kubernetes = "v1.29.4",
        "Fail",
        "has no admission policies",
    ),
    (
        "kubernetes",
        |c| c.kubernetes = "v1.33.0+k3s1",
        "Warn",
        "cannot restart containers in place",
    ),
    (
        "definitions",
        |c| {
            c.groups
                .get_mut("training.lockstep.dev")
                .unwrap()
                .1
                .retain(|k| *k != "restartorders");
        },
        "Fail",
        "not served as v1alpha1: restartorders.training.lockstep.dev",
    ),
    (
        "managers",
        |c| {
            for pod in &mut c.list(PODS)[..2] {
                pod["status"]["conditions"][0]["status"] = json!("False");
            }
        },
        "Fail",
        "0 of 2 manager pods are ready: see `kubectl logs -n lockstep-system a`",
    ),
    (
        "managers",
        |c| {
            c.list(PODS)[0]["status"]["conditions"][0]["status"] = json!("False");
            c.log = LOG_OF_FAILED_WATCHES;
        },
        "Warn",
        "1 of 2 manager pods is ready; not ready: a; last warning: watch failed: Pod: forbidden by policy",
    ),
    (
        "managers",
        |c| drop(c.list(PODS).remove(0)),
        "Warn",
        "1 manager pod is ready",
    ),
    (
        "managers",
        |c| c.forbidden.push(PODS),
        "Warn",
        "no permission to read pods of the manager",
    ),
    (
        "lease",
        |c| c.list(LEASES).clear(),
        "Fail",
        "no manager has become the leader",
    ),
    (
        "lease",
        |c| c.list(LEASES)[0]["spec"]["renewTime"] = json!("2026-01-01T00:00:00.000000Z"),
        "Fail",
        "no manager is the leader",
    ),
    (
        "versions",
        |c| c.list(PODS)[0]["spec"]["containers"][0]["image"] = json!("x/lockstep-manager:v9.9.9"),
        "Warn",
        "manager 9.9.9 and",
    ),
    (
        "policies",
        |c| drop(c.list(BINDINGS).remove(0)),
        "Fail",
        "not in force: lockstep-members;",
    ),
    (
        "policies",
        |c| c.list(BINDINGS)[1]["spec"]["validationActions"] = json!(["Audit"]),
        "Fail",
        "not in force: lockstep-node-agents;",
    ),
    (
        "policies",
        |c| c.list(POLICIES)[2]["metadata"]["labels"] = json!({}),
        "Fail",
        "not in force: lockstep-operator-objects;",
    ),
    (
        "policies",
        |c| c.manager_may_write = false,
        "Fail",
        "the policies deny the writes of system:serviceaccount:lockstep-system:lockstep-manager",
    ),
    (
        "agents",
        |c| c.list(AGENTS).clear(),
        "Warn",
        "0 agents are ready; no ready agent on n1, n2",
    ),
    (
        "agents",
        |c| c.list(PODS)[3]["status"]["conditions"][0]["status"] = json!("False"),
        "Warn",
        "no ready agent on n2",
    ),
    (
        "agents",
        |c| drop(c.list(PODS).pop()),
        "Warn",
        "no ready agent on n2",
    ),
    (
        "nodes",
        |c| c.list(NODES)[1]["status"] = json!({}),
        "Warn",
        "1 of 2 nodes declares",
    ),
    (
        "nodes",
        |c| c.list(NODES).clear(),
        "Warn",
        "the cluster has no nodes",
    ),
    (
        "your rights",
        |c| c.user_may_not = "pods",
        "Warn",
        "not allowed in namespace default: logs (get pods/log)",
    ),
    (
        "names",
        |c| {
            c.groups
                .insert("scheduling.volcano.sh", ("v1beta1", vec!["podgroups"]));
        },
        "Warn",
        "scheduling.volcano.sh has kinds of the same name",
    ),
    (
        "names",
        |c| {
            c.groups.insert(
                "scheduling.k8s.io",
                ("v1alpha2", vec!["podgroups", "workloads"]),
            );
        },
        "Warn",
        "scheduling.k8s.io has kinds of the same name",
    ),
    (
        "budgets",
        |c| {
            budget_over_a_member(
                c,
                &json!({"expectedPods": 0, "conditions": [
            {"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "",
            "lastTransitionTime": "2026-11-26T21:00:00Z"}]}),
            );
        },
        "Warn",
        "ml/half allows no eviction; write minAvailable with a number of pods",
    ),
    (
        "budgets",
        |c| budget_over_a_member(c, &json!({"expectedPods": 0})),
        "Warn",
        "ml/half counts 0 of 1 members",
    ),
    (
        "objects",
        |c| {
            let broken = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
                "metadata": {"name": "a", "namespace": "ml"}, "spec": {"groups": 3}});
            c.list(WORKLOADS).push(broken);
        },
        "Fail",
        "1 object cannot be read and is ignored: trainingworkload ml/a",
    ),
    (
        "objects",
        |c| {
            let broken = json!({"apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
                "metadata": {"name": "g", "namespace": "ml"}, "spec": 3});
            c.objects.insert(GROUPS, vec![broken]);
        },
        "Fail",
        "1 object cannot be read and is ignored: podgroup ml/g",
    ),
    (
        "objects",
        |c| {
            let broken = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "RestartOrder",
                "metadata": {"name": "a", "namespace": "ml"}, "spec": 3});
            c.objects.insert(ORDERS, vec![broken]);
        },
        "Fail",
        "1 object cannot be read and is ignored: restartorder ml/a",
    ),
    (
        "objects",
        |c| {
            let broken = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "NodeAgent",
                "metadata": {"name": "n3"}, "spec": {}, "status": 3});
            c.list(AGENTS).push(broken);
        },
        "Fail",
        "1 object cannot be read and is ignored: nodeagent n3",
    ),
];

#[test]
fn each_line_of_the_doctor_is_turned_by_a_mistake_in_the_cluster() {
    let (all, code) = doctor(healthy());
    let ill: Vec<_> = all.iter().filter(|(_, (level, _))| level != "Ok").collect();
    assert!(ill.is_empty() && code == Some(0), "{ill:#?}");
    for (check, spoil, level, words) in MISTAKES {
        let mut cluster = healthy();
        spoil(&mut cluster);
        let (found, code) = doctor(cluster);
        let (is, message) = &found[*check];
        assert_eq!(is, level, "{check}: {message}");
        assert!(message.contains(words), "{check}: {message}");
        assert_eq!(code, Some(if *level == "Fail" { 2 } else { 0 }), "{check}");
    }
}

#[test]
fn every_line_of_the_doctor_has_a_mistake() {
    let (all, _) = doctor(healthy());
    // Upstream's pod groups are no fault; integrations have separate tests.
    let without = ["autoscaler", "kueue", "native"];
    let checks = all.keys().filter(|c| !without.contains(&c.as_str()));
    for check in checks {
        assert!(MISTAKES.iter().any(|m| m.0 == check), "{check}");
    }
}

#[test]
fn what_kueue_does_with_jobs_that_name_no_queue_is_read_from_its_configuration() {
    let kueue = |config: Option<&str>| {
        let mut cluster = healthy();
        cluster
            .groups
            .insert("kueue.x-k8s.io", ("v1beta1", vec!["clusterqueues"]));
        let map = |text| json!({"metadata": {"name": "kueue-manager-config"}, "data": {"controller_manager_config.yaml": text}});
        cluster
            .objects
            .insert(KUEUE, config.map(map).into_iter().collect());
        doctor(cluster).0["kueue"].clone()
    };
    let (level, message) = kueue(Some("a: 1\nmanageJobsWithoutQueueName: true\n"));
    assert!(
        level == "Warn" && message.contains("gates the pods"),
        "{message}"
    );
    let (level, message) = kueue(Some("manageJobsWithoutQueueName: false\n"));
    assert_eq!(
        (level.as_str(), message.as_str()),
        ("Ok", "Kueue does not manage jobs without a queue")
    );
    let (level, message) = kueue(None);
    assert!(
        level == "Warn" && message.contains("no permission to read"),
        "{message}"
    );
}

#[test]
fn the_doctor_checks_the_rights_in_the_chosen_namespace() {
    let server = ApiServer::start(move |request| healthy().answer(request));
    let out = ask(&server.address, &["doctor", "-n", "ml"]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        said.contains("all commands are allowed in namespace ml"),
        "{said}"
    );
    let reviews = server
        .requests()
        .into_iter()
        .map(|r| r.body["spec"]["resourceAttributes"].clone());
    let of_logs = reviews.filter(|r| r["subresource"] == "log");
    let namespaces: Vec<Value> = of_logs.map(|r| r["namespace"].clone()).collect();
    assert_eq!(namespaces, ["ml"]);
}
