//! Stories of one workload with several kinds of failures.

use k8s_openapi::api::core::v1::{Node, Pod};
use lockstep_sim::pods::node_of;
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, ReportedProgress, SimNode, Solo, WatchedKind};
use serde_json::{Value, json};

use super::solo::{Story, after, fails_once, rule, settled};

pub(super) const STORIES: &[Story] = &[
    ("hangs", || hangs("RestartGang")),
    ("hangs as it starts again", hangs_at_its_start),
    ("fails because it hangs", || hangs("FailWorkload")),
    ("reports its total", reports_total),
    ("is of one pod that restarts in place", || {
        fails_alone(&json!({}))
    }),
    ("is of one pod that is recreated", || {
        fails_alone(&rule("RecreateGang"))
    }),
    ("is of one pod that is replaced", || {
        fails_alone(&rule("RestartPod"))
    }),
    ("restarts gang by gang", || {
        several(&json!({"scheduling": {"gang": {"scope": "Replica"}}}))
    }),
    ("restarts replica by replica", || {
        several(&json!({"failurePolicy": {"restartScope": "Replica"}}))
    }),
    ("has a pod that its node evicts", || evicted(SimNode::evict)),
    ("has a pod that exceeds its own limit", || {
        evicted(SimNode::evict_for_own_limit)
    }),
    ("has a pod that vanishes", vanishes),
    ("has a node that rejects the replacement", || {
        let mut w = settled(Solo::new(gang_with(
            8,
            &json!({"failurePolicy": {"replacementTimeoutSeconds": 60}}),
        )));
        let node = w.node_of("g", 0);
        w.cluster.fault(&node, |f| f.rejects = true);
        w.delete_pod("g", 0);
        w.wait(120);
        w
    }),
    ("loses a node that is deleted", || {
        loses(|w, node| w.remove(WatchedKind::Node, &Key::new("", node)))
    }),
    ("loses a node that is taken out of service", || {
        loses(|w, node| {
            let taint =
                json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
            w.cluster.edit::<Node>(&Key::new("", node), |n| {
                n.spec.get_or_insert_default().taints = serde_json::from_value(taint).unwrap();
            });
        })
    }),
    ("has fewer replicas", || {
        let mut w = after(gang(4), 30);
        w.edit(|spec| spec.groups[0].replicas = Some(2));
        w.settle();
        w
    }),
    ("succeeds with any group", succeeds_with_any),
    ("is not placed in time, and waits on", || {
        after(
            gang_with(20, &json!({"scheduling": {"timeoutSeconds": 30}})),
            90,
        )
    }),
    ("is never whole", || never_whole("Gang")),
    ("is never whole, replica by replica", || {
        never_whole("Replica")
    }),
    ("loses a node before it starts", || {
        let mut w = Solo::new(gang(2));
        w.faults(|f| f.starts_nothing = true);
        w.wait(20);
        let node = w.node_of("g", 0);
        w.lose(&node);
        w.wait(400);
        w
    }),
    ("does not come to the barrier", || {
        let more = json!({"failurePolicy": {"startDeadlineSeconds": 60}});
        let mut w = Solo::supervised(gang_with(2, &more));
        w.faults(|f| f.starts_nothing = true);
        w.wait(200);
        w
    }),
    ("waits for an image", || {
        let mut w = Solo::supervised(gang(2));
        w.until("a sandbox", |w| {
            let pods = w
                .pods()
                .into_iter()
                .filter_map(|pod| pod.status?.conditions);
            let mut conditions = pods.flatten();
            conditions.any(|c| c.type_ == "PodReadyToStartContainers" && c.status == "True")
        });
        w.faults(|f| f.starts_nothing = true);
        w.wait(60);
        w
    }),
    ("is not heard of at the barrier", || unheard(2)),
    ("is not heard of at the barrier on any of two nodes", || {
        unheard(4)
    }),
    ("does not start again", || {
        let mut more = rule("RestartPod");
        more["failurePolicy"]["startDeadlineSeconds"] = json!(60);
        let mut w = fails_once(&more);
        w.faults(|f| f.starts_nothing = true);
        w.delete_pod("g", 0);
        w.control();
        w.wait(400);
        w
    }),
];

/// A supervised gang of this size, two members on a node, whose agents fall silent.
fn unheard(members: i32) -> Solo {
    let more = json!({"failurePolicy": {"startDeadlineSeconds": 60}});
    let mut w = Solo::supervised(gang_with(members, &more));
    // Agents publish their capabilities first.
    let nodes = w.node_names();
    for node in &nodes {
        w.capacity(node, 0);
    }
    w.settle();
    w.faults(|f| f.silent_agent = true);
    for node in &nodes {
        w.capacity(node, 2);
    }
    w.rounds(330);
    w
}

/// A supervised gang of three, of which one member hangs after its second step.
fn hangs(action: &str) -> Solo {
    let rules = json!([{"name": "hung", "match": {"reasons": ["Hang"]}, "action": action}]);
    let more = json!({"failurePolicy": {
        "inPlace": {"withoutSupervisor": "Deny"},
        "progress": {"timeoutSeconds": 60, "startupSeconds": 60}, "rules": rules}});
    let mut w = Solo::supervised(gang_with(3, &more));
    w.settle();
    for step in 1..3 {
        let pod = w.pod("g", 1);
        w.progress(&pod, step, None);
        w.rounds(3);
    }
    passes(&mut w, 60);
    w
}

fn reports_total() -> Solo {
    let mut w = settled(Solo::supervised(gang(2)));
    for step in 1..4 {
        let pod = w.pod("g", 0);
        let report = ReportedProgress {
            step,
            checkpoint: None,
            words: "total=90000",
        };
        w.progress_with(&pod, report);
        passes(&mut w, 60);
    }
    w
}

fn hangs_at_its_start() -> Solo {
    let mut w = hangs("RestartGang");
    for _ in 0..4 {
        passes(&mut w, 30);
    }
    w
}

/// Runs this number of seconds, and the events after them.
fn passes(w: &mut Solo, seconds: i64) {
    w.later(seconds);
    w.rounds(10);
}

fn fails_alone(more: &Value) -> Solo {
    let mut w = Solo::new(gang_with(1, more));
    w.settle();
    w.exit("g", 0, 3);
    w.settle();
    w
}

/// Two replicas of two members, of which one fails.
fn several(more: &Value) -> Solo {
    let mut spec = gang_with(2, more);
    spec["groups"][0]["size"] = json!(2);
    let mut w = Solo::new(spec);
    w.settle();
    w.exit("g", 0, 3);
    w.settle();
    w
}

/// The agent reports the exit of training long before the second container ends.
fn evicted(how: impl FnOnce(&mut SimNode, &str)) -> Solo {
    let mut spec = gang(2);
    let pod = &mut spec["groups"][0]["template"]["spec"];
    let containers = pod["containers"].as_array_mut().unwrap();
    containers.push(json!({"name": "log", "image": "i",
        "env": [{"name": "HOLLOW_TERM_MILLIS", "value": "10000"}]}));
    let mut w = Solo::new(spec);
    w.settle();
    let pod = w.pod("g", 1);
    let node = node_of(&pod).unwrap().to_owned();
    how(w.node(&node), pod.metadata.uid.as_deref().unwrap());
    w.settle();
    w
}

fn vanishes() -> Solo {
    let mut w = Solo::new(gang(2));
    w.settle();
    let name = w.pod("g", 1).metadata.name.unwrap();
    w.remove(WatchedKind::Pod, &Key::new("ns", name));
    w.settle();
    w
}

fn loses(how: impl FnOnce(&mut Solo, &str)) -> Solo {
    let more = json!({"failurePolicy": {"nodeLostSeconds": 30}});
    let mut w = Solo::new(gang_with(2, &more));
    w.settle();
    let node = w.node_of("g", 0);
    how(&mut w, &node);
    w.wait(120);
    w
}

fn succeeds_with_any() -> Solo {
    let mut spec = gang_with(1, &json!({"successPolicy": {"operator": "Any"}}));
    let mut second = spec["groups"][0].clone();
    second["name"] = json!("other");
    spec["groups"].as_array_mut().unwrap().push(second);
    let mut w = Solo::new(spec);
    w.settle();
    w.exit("g", 0, 0);
    w.settle();
    w
}

/// The node of one of eight pods is taken.
fn never_whole(scope: &str) -> Solo {
    let policy = json!({"restartScope": scope, "replacementTimeoutSeconds": 100});
    let more = json!({ "failurePolicy": policy });
    let mut w = Solo::new(gang_with(8, &more));
    while w.groups().is_empty() {
        w.pass();
    }
    w.schedule();
    w.control();
    let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": "elsewhere", "uid": "other"},
        "spec": {"nodeName": "n3", "priority": 2_000_000_000, "containers": [{"name": "c", "image": "i",
            "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}});
    let other: Pod = serde_json::from_value(other).unwrap();
    w.cluster.create(&other);
    for _ in 0..120 {
        w.round();
        w.later(1);
    }
    w
}
