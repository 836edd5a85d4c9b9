//! Tables and views of the index.

mod rebuild;
mod scheduler;
mod signals;
mod watches;

use kube::runtime::watcher::Event;
use lockstep_api::names::labels;
use lockstep_lifecycle::LifecycleSettings;
use lockstep_lifecycle::view::Priority;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::kinds::{
    Agents, Nodes, Orders, PodGroups, Pods, PriorityClasses, Services, Watched, Workloads,
};
use super::*;
use crate::clock::SystemClock;
use crate::queue::{QueueMetrics, RetryBackoff};
use crate::resync::resync;

const TIME: &str = "2026-11-21T10:00:00Z";

struct Fixture {
    index: Arc<Index>,
    queue: Queue<Key>,
}

impl Fixture {
    fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let backoff = RetryBackoff {
            first: std::time::Duration::from_secs(1),
            max: std::time::Duration::from_secs(1),
        };
        let metrics = QueueMetrics::default();
        let queue = Queue::new(backoff, Random::seeded(1), clock.clone(), metrics);
        let agents = AgentSelector {
            namespace: "agents".into(),
            label: ("app".into(), "lockstep-agent".into()),
        };
        Self {
            index: Index::new(agents, queue.clone(), clock),
            queue,
        }
    }

    fn see<W: Watched>(&self, object: &Value) {
        Feed::<W>::default().handle(&self.index, Event::Apply(received(object)));
    }

    fn gone<W: Watched>(&self, object: &Value) {
        Feed::<W>::default().handle(&self.index, Event::Delete(received(object)));
    }

    /// Workloads that need a pass since the last call.
    async fn dirty(&self) -> Vec<String> {
        let mut names = Vec::new();
        while let Ok(key) = tokio::time::timeout(std::time::Duration::ZERO, self.queue.next()).await
        {
            self.queue.done(&key, Ok(()), Duration::ZERO);
            names.push(key.name.to_string());
        }
        names.sort();
        names
    }

    /// Whether the scheduler was woken since the last call.
    async fn scheduler_woken(&self) -> bool {
        tokio::time::timeout(std::time::Duration::ZERO, self.index.scheduler_dirty())
            .await
            .is_ok()
    }
}

fn received<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

fn workload(name: &str) -> Value {
    json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": "ml", "uid": format!("uid-{name}"), "resourceVersion": "5"},
        "spec": {"groups": [{"name": "workers", "template": {"spec": {"containers": [{"name": "t", "image": "i"}]}}}]}})
}

fn owned_by(name: &str) -> Value {
    json!([{"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload", "name": name,
            "uid": format!("uid-{name}"), "controller": true}])
}

fn member(name: &str, workload: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ml", "uid": format!("uid-{name}"), "resourceVersion": "9",
            "creationTimestamp": TIME, "labels": {labels::WORKLOAD_UID: format!("uid-{workload}")},
            "ownerReferences": owned_by(workload)},
        "spec": {"nodeName": node, "containers": [{"name": "t"}]}, "status": {"phase": "Running"}})
}

fn node(name: &str, ready: &str) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": "3"}, "status": {"allocatable": {"cpu": "8"},
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": TIME}]}})
}

fn pod_group(workload: &str, node: &str) -> Value {
    json!({"apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": format!("{workload}-workload-1"), "namespace": "ml", "uid": format!("uid-{workload}-1"),
            "resourceVersion": "7", "ownerReferences": owned_by(workload)},
        "spec": {"workloadRef": {"workloadName": workload, "templateName": "workload"}, "gangKey": "workload",
            "schedulingPolicy": {"gang": {"minCount": 1}}},
        "status": {"placement": {"id": "p", "members": 1, "decidedAt": TIME,
            "nodes": [{"node": node, "members": ["workers/0/0"]}]}}})
}

fn service(name: &str, workload: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ml", "uid": format!("uid-{name}"), "resourceVersion": "4",
            "labels": {labels::WORKLOAD: workload}, "ownerReferences": owned_by(workload)},
        "spec": {"clusterIP": "None"}})
}

fn inputs() -> ViewInputs {
    ViewInputs {
        dry_run: None,
        rejections: Vec::new(),
        failed: None,
        settings: Arc::new(LifecycleSettings::default()),
    }
}

#[tokio::test(start_paused = true)]
async fn the_table_of_pods_and_the_model_hold_the_names_of_a_pod_once() {
    let f = Fixture::new();
    for ready in ["False", "False", "True"] {
        for name in ["a", "b"] {
            let mut pod = member(name, "llama", "n1");
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": ready}]);
            f.see::<Pods>(&pod);
        }
    }
    let state = f.index.read();
    let snapshot = state.model.snapshot();
    let node = snapshot.ordinal("n1").expect("the node of the pods");
    let pods: Vec<_> = snapshot.pods_on(node).collect();
    assert_eq!(pods.len(), 2);
    for pod in &pods {
        let key = Key::new("ml", &*pod.name);
        let (key, _) = state.pods.get_key_value(&key).expect("the pod");
        assert!(Arc::ptr_eq(&key.name, &pod.name));
        assert!(Arc::ptr_eq(&key.namespace, &pods[0].namespace));
        let names = [pod.bound.as_ref(), snapshot.node_name(node)];
        let [Some(bound), Some(held)] = names else {
            panic!("it is bound to a node with a name");
        };
        assert!(std::ptr::eq(bound.as_str(), held.as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_another_namespace_is_no_member_whatever_it_says() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("llama"));
    f.dirty().await;
    let mut forged = member("forged", "llama", "n1");
    forged["metadata"]["namespace"] = json!("tenant");
    f.see::<Pods>(&forged);
    assert!(
        f.index
            .read()
            .view(&Key::new("ml", "llama"), inputs())
            .unwrap()
            .pods
            .is_empty()
    );
    assert_eq!(
        f.dirty().await,
        Vec::<String>::new(),
        "nor does it wake the workload"
    );
    Feed::<Pods>::default().handle(&f.index, Event::Delete(received(&forged)));
    assert_eq!(f.dirty().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn the_last_disrupted_pod_of_a_member_is_kept_until_the_member_has_another() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("llama"));
    let of_member = |name: &str, namespace: &str, disrupted: &str| {
        let mut pod = member(name, "llama", "n1");
        pod["metadata"]["namespace"] = json!(namespace);
        let identity = [
            (labels::GROUP, "workers"),
            (labels::REPLICA, "0"),
            (labels::INDEX, "0"),
        ];
        for (label, value) in identity {
            pod["metadata"]["labels"][label] = json!(value);
        }
        let condition = json!({"type": "DisruptionTarget", "status": disrupted});
        pod["status"]["conditions"] = json!([condition]);
        pod
    };
    let kept = || {
        let view = f.index.read().view(&Key::new("ml", "llama"), inputs());
        let pods = view.unwrap().disrupted.into_values();
        pods.map(|pod| pod.name.clone()).collect::<Vec<_>>()
    };
    let gone = |pod: &Value| Feed::<Pods>::default().handle(&f.index, Event::Delete(received(pod)));
    for (name, namespace, disrupted, expected) in [
        ("a", "ml", "True", &["a"][..]),
        ("b", "ml", "False", &[]),
        ("forged", "tenant", "True", &[]),
        ("c", "ml", "True", &["c"]),
    ] {
        let pod = of_member(name, namespace, disrupted);
        f.see::<Pods>(&pod);
        assert!(kept().is_empty(), "{name} is there");
        gone(&pod);
        assert_eq!(kept(), expected);
    }
    let replaced = of_member("replaced", "ml", "True");
    f.see::<Pods>(&replaced);
    let newer = of_member("newer", "ml", "True");
    f.see::<Pods>(&newer);
    gone(&replaced);
    assert!(kept().is_empty(), "the member has another pod");
    gone(&newer);
    assert_eq!(kept(), ["newer"]);
    f.see::<Pods>(&replaced);
    let newer = of_member("newer", "ml", "False");
    f.see::<Pods>(&newer);
    gone(&replaced);
    gone(&newer);
    assert!(kept().is_empty(), "the last pod was not disrupted");
    Feed::<Workloads>::default().handle(&f.index, Event::Delete(received(&workload("llama"))));
    f.see::<Workloads>(&workload("llama"));
    assert!(kept().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_workload_of_another_manager_is_not_ours() {
    let f = Fixture::new();
    let mut foreign = workload("foreign");
    foreign["spec"]["managedBy"] = json!("somebody.else/operator");
    f.see::<Workloads>(&foreign);
    assert!(f.index.read().workloads.is_empty());
    assert_eq!(f.dirty().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_agent_is_ready_while_its_pod_is() {
    let f = Fixture::new();
    let agent_pod = |ready: &str| {
        json!({"metadata": {"name": "agent-x", "namespace": "agents", "uid": "agent", "labels": {"app": "lockstep-agent"}},
            "spec": {"nodeName": "n1", "containers": []}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    };
    let ready = |f: &Fixture| f.index.read().agents["n1"].ready;
    f.see::<Workloads>(&workload("llama"));
    f.see::<Pods>(&member("a", "llama", "n1"));
    f.see::<Pods>(&agent_pod("True"));
    f.see::<Agents>(
        &json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "NodeAgent",
        "metadata": {"name": "n1"}, "spec": {}}),
    );
    assert!(ready(&f));
    f.dirty().await;
    f.see::<Pods>(&agent_pod("False"));
    assert!(!ready(&f));
    assert_eq!(f.dirty().await, ["llama"]);
    let mut outside = agent_pod("True");
    outside["metadata"]["namespace"] = json!("tenant");
    f.see::<Pods>(&outside);
    assert!(!ready(&f), "a tenant's pod with the label is no agent");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_the_agent_of_a_deleted_node() {
    for agent_first in [true, false] {
        let f = Fixture::new();
        let inputs = |f: &Fixture| f.index.read().agents_of.len();
        let agent = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "NodeAgent",
            "metadata": {"name": "n1"}, "spec": {}});
        let pod = json!({"metadata": {"name": "agent-x", "namespace": "agents", "uid": "agent",
            "labels": {"app": "lockstep-agent"}}, "spec": {"nodeName": "n1", "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        f.see::<Agents>(&agent);
        f.see::<Pods>(&pod);
        f.gone::<Pods>(&pod);
        assert_eq!(inputs(&f), 1, "the agent's pod is being replaced");
        f.see::<Pods>(&pod);
        if agent_first {
            f.gone::<Agents>(&agent);
            assert_eq!(inputs(&f), 1, "the agent recreates its object");
            f.gone::<Pods>(&pod);
        } else {
            f.gone::<Pods>(&pod);
            f.gone::<Agents>(&agent);
        }
        assert_eq!(inputs(&f), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_view_holds_what_carries_the_uid_and_says_what_is_owned() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("llama"));
    f.see::<Pods>(&member("a", "llama", "n1"));
    f.see::<Pods>(&member("b", "llama-2", "n2"));
    f.see::<Nodes>(&node("n1", "True"));
    f.see::<Nodes>(&node("n3", "True"));
    f.see::<PodGroups>(&pod_group("llama", "n3"));
    f.see::<Orders>(
        &json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "RestartOrder",
        "metadata": {"name": "llama", "namespace": "ml", "uid": "o", "resourceVersion": "8"},
        "spec": {"workloadUID": "x"}}),
    );
    let view = f
        .index
        .read()
        .view(&Key::new("ml", "llama"), inputs())
        .unwrap();
    assert_eq!(
        view.pods
            .iter()
            .map(|p| p.name.as_str())
            .collect::<Vec<_>>(),
        ["a"]
    );
    assert_eq!(view.nodes.keys().collect::<Vec<_>>(), ["n1", "n3"]);
    assert_eq!(view.pod_groups.keys().collect::<Vec<_>>(), ["workload"]);
    assert!(!view.order.unwrap().owned, "a foreign order under our name");
    assert!(
        f.index
            .read()
            .view(&Key::new("ml", "none"), inputs())
            .is_none()
    );
}

#[test]
fn of_several_classes_that_are_the_default_the_lowest_counts() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("plain"));
    for (name, value) in [("a-high", 1000), ("b-low", 7), ("c-middle", 100)] {
        let class = json!({"metadata": {"name": name}, "value": value, "globalDefault": true});
        f.see::<PriorityClasses>(&class);
    }
    let view = f.index.read().view(&Key::new("ml", "plain"), inputs());
    let priority = view.unwrap().priority;
    assert!(
        matches!(priority, Priority::Resolved { value: 7, .. }),
        "{priority:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn priorities_come_from_the_named_class_or_the_default() {
    let f = Fixture::new();
    let class = |name: &str, value: i32, default: bool| json!({"metadata": {"name": name}, "value": value, "globalDefault": default});
    let priority = |f: &Fixture, name: &str| {
        f.index
            .read()
            .view(&Key::new("ml", name), inputs())
            .unwrap()
            .priority
    };
    let mut high = workload("high");
    high["spec"]["priorityClassName"] = json!("high");
    f.see::<Workloads>(&high);
    f.see::<Workloads>(&workload("plain"));
    assert_eq!(priority(&f, "high"), Priority::ClassMissing);
    f.dirty().await;
    f.see::<PriorityClasses>(&class("high", 100, false));
    assert_eq!(f.dirty().await, ["high"]);
    f.see::<PriorityClasses>(&class("usual", 7, true));
    assert_eq!(f.dirty().await, ["plain"]);
    assert!(matches!(
        priority(&f, "high"),
        Priority::Resolved { value: 100, .. }
    ));
    assert!(matches!(
        priority(&f, "plain"),
        Priority::Resolved { value: 7, .. }
    ));
    f.see::<PriorityClasses>(&class("usual", 7, false));
    assert_eq!(f.dirty().await, ["plain"], "it is not the default any more");
}

#[tokio::test(start_paused = true)]
async fn a_workload_made_again_under_its_name_has_none_of_the_old_pods() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("llama"));
    f.see::<Pods>(&member("a", "llama", "n1"));
    let mut again = workload("llama");
    again["metadata"]["uid"] = json!("uid-second");
    f.see::<Workloads>(&again);
    let view = f
        .index
        .read()
        .view(&Key::new("ml", "llama"), inputs())
        .unwrap();
    assert!(view.pods.is_empty());
    f.dirty().await;
    f.see::<Pods>(&member("a", "llama", "n2"));
    assert_eq!(
        f.dirty().await,
        Vec::<String>::new(),
        "pods of the old one concern nobody"
    );
}

#[test]
fn the_pod_group_of_a_workload_with_a_long_name_is_found() {
    let f = Fixture::new();
    let long = "a".repeat(50);
    f.see::<Workloads>(&workload(&long));
    let mut group = pod_group(&long, "n1");
    let uid = format!("uid-{long}");
    group["metadata"]["name"] = json!(lockstep_api::names::pod_group_name(&long, &uid, "workload"));
    f.see::<PodGroups>(&group);
    let view = f
        .index
        .read()
        .view(&Key::new("ml", &long), inputs())
        .unwrap();
    assert_eq!(view.pod_groups.len(), 1);
}
