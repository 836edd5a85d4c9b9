//! Objects of a workload, and its events.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::member::Member;
use lockstep_api::names::{annotations, labels};
use lockstep_lifecycle::EventType::{Normal, Warning};
use lockstep_lifecycle::{Action, Plan, transitions};
use lockstep_sim::api::{Refused, Rule, Verb};
use lockstep_sim::pods::{env, leaving, member_of, published};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Solo, WatchedKind};
use serde_json::{Value, json};

/// The pods that the manager would create.
fn created(w: &mut Solo) -> Vec<Pod> {
    loop {
        if let Plan::Act(actions) = w.plan() {
            let pods: Vec<_> = actions
                .into_iter()
                .filter_map(|a| match a {
                    Action::CreatePod { pod, .. } => Some(*pod),
                    _ => None,
                })
                .collect();
            if !pods.is_empty() {
                return pods;
            }
        }
        w.pass();
        w.schedule();
    }
}

#[test]
fn a_pod_knows_its_owner_its_member_its_node_and_its_place_in_the_world() {
    let mut w = Solo::new(gang_with(3, &json!({"priorityClassName": "research"})));
    w.create_class("research", 7, "Never");
    let pods = created(&mut w);
    let pod = &pods[1];
    let meta = &pod.metadata;
    assert!(meta.name.as_ref().unwrap().starts_with("w-g-1-0-"));
    let owner = &meta.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (
            owner.uid.as_str(),
            owner.controller,
            owner.block_owner_deletion
        ),
        ("w-uid", Some(true), None)
    );
    let label = |key: &str| meta.labels.as_ref().unwrap()[key].as_str();
    assert_eq!(
        (
            label(labels::GROUP),
            label(labels::REPLICA),
            label(labels::INDEX)
        ),
        ("g", "1", "0")
    );
    assert_eq!(
        (label(labels::DOMAIN), label(labels::PUBLISHED)),
        ("workload", "w-uid")
    );
    let note = |key: &str| meta.annotations.as_ref().unwrap()[key].as_str();
    assert_eq!(
        (note(annotations::ATTEMPT), note(annotations::TIER)),
        ("1", "restart-all")
    );
    assert_eq!(note("kubectl.kubernetes.io/default-container"), "t");
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(
        (spec.hostname.as_deref(), spec.subdomain.as_deref()),
        (Some("w-g-1-0"), Some("w"))
    );
    assert_eq!(spec.priority_class_name.as_deref(), Some("research"));
    assert_eq!(spec.tolerations.as_ref().unwrap().len(), 2);
    let env = |name: &str| env(pod, name).unwrap();
    assert_eq!(
        (env("PET_NODE_RANK"), env("PET_NNODES"), env("MASTER_ADDR")),
        ("1".into(), "3".into(), "w-g-0-0.w".into())
    );
    assert_eq!(
        (
            env("LOCKSTEP_REPLICA"),
            env("PET_RDZV_ID"),
            env("MASTER_PORT")
        ),
        ("1".into(), "w-uid".into(), "29500".into())
    );
}

const PAGE: &str = include_str!("../../../../docs/environment.md");

/// Differences between the variables of members and the table of a page.
fn differ(page: &str, names: &BTreeSet<String>) -> Vec<String> {
    let rows = page.lines().filter_map(|l| l.strip_prefix("| `"));
    let documented: BTreeSet<String> = rows
        .map(|row| row.split('`').next().unwrap().to_owned())
        .collect();
    documented.symmetric_difference(names).cloned().collect()
}

#[test]
fn members_have_the_environment_that_the_docs_list() {
    let of_process = ["LOCAL_RANK", "RANK", "WORLD_SIZE"];
    for (gpus, on_page_alone) in [(8, &of_process[..]), (1, &[]), (0, &["PET_NPROC_PER_NODE"])] {
        let mut spec = gang(1);
        let limits = &mut spec["groups"][0]["template"]["spec"]["containers"][0]["resources"];
        *limits = match gpus {
            0 => json!({}),
            n => json!({"limits": {"nvidia.com/gpu": n.to_string()}}),
        };
        let mut w = Solo::new(spec);
        w.settle();
        let pod = w.pod("g", 0);
        let env = pod.spec.unwrap().containers[0].env.clone().unwrap();
        let names: BTreeSet<String> = env.iter().map(|v| v.name.clone()).collect();
        assert_eq!(differ(PAGE, &names), on_page_alone, "{gpus} accelerators");
        let value = |name: &str| env.iter().find(|v| v.name == name)?.value.clone();
        assert_eq!(
            value("PET_NPROC_PER_NODE"),
            (gpus > 0).then(|| gpus.to_string())
        );
        assert_eq!(
            value("JAX_COORDINATOR_ADDRESS").as_deref(),
            Some("w-g-0-0.w:29500")
        );
    }
}

#[test]
fn members_on_the_network_of_their_nodes_resolve_names_of_the_cluster() {
    for (given, expected) in [
        (Value::Null, "ClusterFirstWithHostNet"),
        (json!("Default"), "Default"),
    ] {
        let mut spec = gang(1);
        let pod = &mut spec["groups"][0]["template"]["spec"];
        pod["hostNetwork"] = json!(true);
        pod["dnsPolicy"] = given;
        let mut w = Solo::new(spec);
        w.settle();
        let policy = w.pod("g", 0).spec.unwrap().dns_policy;
        assert_eq!(policy.as_deref(), Some(expected));
    }
}

#[test]
fn coordinators_that_share_the_ports_of_a_node_have_different_ports() {
    let on_host = |network: Value| {
        let mut spec = gang_with(2, &json!({"network": network}));
        spec["groups"][0]["template"]["spec"]["hostNetwork"] = json!(true);
        spec
    };
    let mut w = Solo::new(on_host(json!({})));
    w.add_workload("replicas", on_host(json!({"world": "Replica"})));
    w.add_workload("chosen", on_host(json!({"port": 31_000})));
    w.settle();
    let mut ports: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for pod in w.pods() {
        let name = env(&pod, "LOCKSTEP_WORKLOAD").unwrap();
        let port = env(&pod, "MASTER_PORT").unwrap().parse().unwrap();
        ports.entry(name).or_default().push(port);
    }
    assert_eq!(ports["chosen"], [31_000; 2]);
    let (gang, replicas) = (&ports["w"], &ports["replicas"]);
    assert_eq!(gang[0], gang[1]);
    let mut own = [gang[0], replicas[0], replicas[1]];
    own.sort_unstable();
    assert!(own.windows(2).all(|pair| pair[1] - pair[0] >= 8), "{own:?}");
    assert!(own[0] >= 20_000 && own[2] < 28_000, "{own:?}");
}

#[test]
fn a_variable_that_the_docs_do_not_list_and_a_row_without_a_variable_are_noticed() {
    let mut w = Solo::new(gang(1));
    w.settle();
    let env = w.pod("g", 0).spec.unwrap().containers[0].env.clone();
    let names = env.unwrap().into_iter().map(|v| v.name).collect();
    let page = PAGE
        .replace("\n| `LOCAL_RANK`", "\n`LOCAL_RANK`")
        .replace("\n| `RANK`", "\n`RANK`")
        .replace("\n| `WORLD_SIZE`", "\n`WORLD_SIZE`");
    let without = page.replace("\n| `MASTER_PORT`", "\n`MASTER_PORT`");
    assert_eq!(differ(&without, &names), ["MASTER_PORT"]);
    let with = format!("{page}\n| `LOCKSTEP_MOOD` | good |\n");
    assert_eq!(differ(&with, &names), ["LOCKSTEP_MOOD"]);
}

#[test]
fn orders_come_before_deletions_and_deletions_before_pods() {
    let mut w = Solo::new(gang(4));
    w.settle();
    w.exit("g", 0, 1);
    w.fault("n1", |f| f.no_agent = true);
    w.agent("n0");
    while !matches!(w.plan(), Plan::Act(_)) {
        w.pass();
    }
    let Plan::Act(actions) = w.plan() else {
        unreachable!()
    };
    assert!(matches!(actions[0], Action::Update { .. }), "{actions:?}");
    assert_eq!(
        actions.len(),
        1,
        "pods are touched once the order is known to be out"
    );
}

#[test]
fn the_priority_of_what_exists_survives_a_change_of_its_class() {
    let mut w = Solo::new(gang_with(2, &json!({"priorityClassName": "research"})));
    w.create_class("research", 0, "PreemptLowerPriority");
    w.settle();
    w.delete_class("research");
    assert!(w.is_idle());
    w.create_class("research", 99, "PreemptLowerPriority");
    assert!(w.is_idle());
}

#[test]
fn a_workload_gives_up_the_preemption_of_its_class_but_cannot_add_it() {
    for (class, spec, expected) in [
        ("PreemptLowerPriority", None, "PreemptLowerPriority"),
        ("PreemptLowerPriority", Some("Never"), "Never"),
        ("Never", None, "Never"),
        ("Never", Some("PreemptLowerPriority"), "Never"),
    ] {
        let scheduling = json!({"preemptionPolicy": spec});
        let more = json!({"priorityClassName": "research", "scheduling": scheduling});
        let mut w = Solo::new(gang_with(2, &more));
        w.create_class("research", 7, class);
        w.settle();
        let group = w.groups().into_values().next().unwrap();
        let policy = json!(group.spec.gang.preemption_policy);
        assert_eq!(policy, expected, "{class}, {spec:?}");
    }
}

#[test]
fn a_pod_of_another_owner_with_our_labels_is_not_ours() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.edit(|s| s.suspend = true);
    w.edit_pod("g", 0, |p| {
        let owners = p.metadata.owner_references.as_mut().unwrap();
        owners[0].uid = "another".into();
    });
    w.control();
    assert_eq!(
        w.pods().iter().map(leaving).collect::<Vec<_>>(),
        [false, true]
    );
}

#[test]
fn an_old_pod_is_taken_out_of_the_service_before_its_replacement_is_made() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.lose("n0");
    let names: Vec<_> = w.pods().into_iter().map(|p| p.metadata.name).collect();
    w.settle();
    let mut old = w.pods();
    old.retain(|p| names.contains(&p.metadata.name) && leaving(p));
    assert!(!old.is_empty() && !old.iter().any(published));
    let mut there = BTreeMap::new();
    for write in w
        .log()
        .into_iter()
        .filter(|write| write.kind == WatchedKind::Pod)
    {
        let pod: Pod = serde_json::from_value(Value::clone(&write.object)).unwrap();
        let (member, published) = (member_of(&pod), published(&pod));
        match write.verb {
            Verb::Create => {
                let double = |other: &(Option<Member>, bool)| *other == (member.clone(), true);
                assert!(
                    !published || !there.values().any(double),
                    "{}",
                    write.line()
                );
                there.insert(write.uid, (member, published));
            }
            Verb::Gone => drop(there.remove(&write.uid)),
            Verb::Update | Verb::UpdateStatus | Verb::Evict | Verb::Delete => {
                there.insert(write.uid, (member, published));
            }
        }
    }
}

#[test]
fn each_transition_is_reported_once() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.exit("g", 1, 42);
    w.settle();
    for i in 0..2 {
        w.exit("g", i, 0);
    }
    w.settle();
    let spec = w.workload().unwrap().spec;
    let mut before = lockstep_api::TrainingWorkloadStatus::default();
    let mut events = Vec::new();
    for status in &w.written() {
        events.extend(
            transitions(&spec, &before, status)
                .into_iter()
                .map(|e| (e.type_, e.reason)),
        );
        before = status.clone();
    }
    let events: Vec<_> = events.iter().map(|(t, r)| (*t, r.as_str())).collect();
    assert_eq!(
        events,
        [
            (Normal, "Queued"),
            (Normal, "Scheduled"),
            (Normal, "AllMembersReady"),
            (Warning, "RestartGang"),
            (Normal, "Recovered"),
            (Normal, "SuccessPolicy"),
        ]
    );
}

#[test]
fn a_refused_pod_group_holds_back_the_pods_like_every_refused_object() {
    let mut w = Solo::new(gang(2));
    while !matches!(
        w.plan(),
        Plan::Act(actions) if matches!(actions[0], Action::CreatePod { .. })
    ) {
        w.pass();
        w.schedule();
    }
    // Another manager version requires other content, and the API server refuses it.
    w.edit_group("workload", |group| {
        group.spec.workload_ref.template_name = "other".into();
    });
    w.store().admission.rules = vec![Rule {
        kind: WatchedKind::PodGroup,
        verb: Verb::Update,
        name: None,
        answer: Refused::forbidden("no"),
    }];
    let update =
        |plan: &Plan| matches!(plan, Plan::Act(a) if matches!(a[0], Action::Update { .. }));
    assert!(update(&w.plan()));
    w.pass();
    let plan = w.plan();
    assert!(!matches!(plan, Plan::Act(_)), "{plan:?}");
    w.control();
    assert!(w.pods().is_empty());
}
