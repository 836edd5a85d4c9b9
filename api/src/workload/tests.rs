//! The CEL rules of the schema, evaluated in process: allowed manifests and changes, and the
//! messages of refusals.

use kube::core::cel::{validate_cel, validate_cel_update};
use serde_json::{Value, json};

use crate::names::labels;

use super::{CauseKind, FailureAction, Phase, TrainingWorkload};

fn workload(spec: &Value) -> TrainingWorkload {
    named("llama", spec)
}

fn named(name: &str, spec: &Value) -> TrainingWorkload {
    serde_json::from_value(json!({
        "apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

fn group(name: &str, replicas: i32, size: i32) -> Value {
    json!({"name": name, "replicas": replicas, "size": size,
           "template": {"spec": {"containers": [{"name": "trainer", "image": "train:1"}]}}})
}

/// A spec of two groups with the given parts replaced.
fn spec(parts: &Value) -> Value {
    let mut spec = json!({"groups": [group("data", 1, 2), group("workers", 4, 8)]});
    merge(&mut spec, parts);
    spec
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(a), Value::Object(b)) => {
            for (k, v) in b {
                merge(a.entry(k.clone()).or_insert(Value::Null), v);
            }
        }
        (a, b) => *a = b.clone(),
    }
}

/// Messages of the rules that refuse the object.
fn refusals(w: &TrainingWorkload) -> String {
    validate_cel(w)
        .err()
        .map(|e| format!("{e:?}"))
        .unwrap_or_default()
}

#[test]
fn a_ten_line_manifest_is_accepted() {
    assert_eq!(
        refusals(&workload(&json!({"groups": [group("workers", 4, 1)]}))),
        ""
    );
    assert_eq!(refusals(&workload(&spec(&json!({})))), "");
}

#[test]
fn a_spec_that_cannot_work_is_refused_with_what_is_allowed() {
    let cases = [
        (
            json!({"scheduling": {"gang": {"minCount": 35}}}),
            "minCount must be at most the number of members",
        ),
        (
            json!({"scheduling": {"gang": {"scope": "Group", "minCount": 2}}}),
            "minCount needs gang.scope Workload",
        ),
        (
            json!({"groups": [group("a", 200, 100), group("b", 1, 1)]}),
            "at most 20000 members",
        ),
        (
            json!({"scheduling": {"gang": {"scope": "Replica"}}, "groups": [group("a", 501, 2)]}),
            "at most 500 if scheduling.gang.scope or failurePolicy.restartScope is Replica",
        ),
        (
            json!({"failurePolicy": {"restartScope": "Replica"}, "groups": [group("a", 300, 2), group("b", 201, 1)]}),
            "at most 500 if scheduling.gang.scope or failurePolicy.restartScope is Replica",
        ),
        (
            json!({"scheduling": {"policy": "Basic", "disruptionMode": "All"}}),
            "disruptionMode All needs scheduling.policy Gang",
        ),
        (
            json!({"scheduling": {"policy": "Basic"}, "failurePolicy": {"progress": {"timeoutSeconds": 60}}}),
            "progress needs scheduling.policy Gang",
        ),
        (
            json!({"groups": [merged(group("a", 1, 1), &json!({"minCount": 1}))]}),
            "needs scheduling.gang.scope Group",
        ),
        (
            json!({"groups": [group("a", 1, 1), merged(group("b", 1, 1), &json!({"dependsOn": [{"group": "a"}]}))]}),
            "would wait for itself",
        ),
        (
            json!({"scheduling": {"gang": {"scope": "Group"}}, "groups": [merged(group("a", 1, 1), &json!({"dependsOn": [{"group": "b"}]})), group("b", 1, 1)]}),
            "precede this group",
        ),
        (
            json!({"scheduling": {"gang": {"scope": "Group"}}, "groups": [merged(group("a", 1, 1), &json!({"dependsOn": [{"group": "absent"}]}))]}),
            "precede this group",
        ),
        (
            json!({"priorityClassName": "system-node-critical"}),
            "belong to the cluster's own components",
        ),
        (
            json!({"successPolicy": {"groups": ["absent"]}}),
            "successPolicy.groups must name entries",
        ),
        (
            json!({"network": {"coordinator": {"group": "workers", "replica": 4}}}),
            "replica < replicas",
        ),
        (
            json!({"failurePolicy": {"rules": [{"name": "x", "action": "Ignore", "match": {"groups": ["absent"]}}]}}),
            "must name entries of spec.groups",
        ),
        (
            json!({"failurePolicy": {"rules": [{"name": "x", "action": "FailWorkload", "match": {"reasons": ["NodeLost", "NodeLeaving"]}}]}}),
            "NodeFaulty need action RestartGang, RecreateGang or Ignore",
        ),
    ];
    for (parts, message) in cases {
        let found = refusals(&workload(&spec(&parts)));
        assert!(found.contains(message), "{parts}: {found}");
    }
}

/// A group without replicas of its own.
fn uncounted(name: &str, size: i32) -> Value {
    let mut group = group(name, 1, size);
    if let Some(fields) = group.as_object_mut() {
        fields.remove("replicas");
    }
    group
}

#[test]
fn replicas_of_the_spec_count_the_one_group_without_its_own() {
    let one = json!({"replicas": 3, "groups": [group("data", 1, 2), uncounted("workers", 8)]});
    let one = workload(&one);
    assert_eq!(refusals(&one), "");
    assert_eq!(one.spec.replica_counts(), [1, 3]);
    let name = one.spec.scaled_group().map(|g| g.name.as_str());
    assert_eq!(name, Some("workers"));
    for (groups, message) in [
        (
            json!([group("data", 1, 2), group("workers", 4, 8)]),
            "replicas counts the group without groups[].replicas, and all groups have them",
        ),
        (
            json!([uncounted("data", 2), uncounted("workers", 8)]),
            "replicas counts one group, and several have no groups[].replicas",
        ),
    ] {
        let found = refusals(&workload(&json!({"replicas": 3, "groups": groups})));
        assert!(found.contains(message), "{groups}: {found}");
    }
    let none = workload(&json!({"groups": [uncounted("data", 2), uncounted("workers", 8)]}));
    assert_eq!(
        (refusals(&none), none.spec.replica_counts()),
        (String::new(), vec![1, 1])
    );
    assert!(none.spec.scaled_group().is_none());
}

#[test]
fn limits_of_replicas_include_the_replicas_of_the_spec() {
    let elastic = json!({"gang": {"minCount": 9}});
    let replica = json!({"gang": {"scope": "Replica"}});
    let group_gangs = json!({"gang": {"scope": "Group"}});
    let with_minimum = merged(uncounted("a", 4), &json!({"minCount": 9}));
    let coordinator = json!({"coordinator": {"group": "a", "replica": 2}});
    for (enough, other, rest, message) in [
        (
            5000,
            5001,
            json!({"groups": [uncounted("a", 4)]}),
            "at most 20000 members",
        ),
        (
            500,
            501,
            json!({"groups": [uncounted("a", 4)], "scheduling": replica}),
            "at most 500",
        ),
        (
            3,
            2,
            json!({"groups": [uncounted("a", 4)], "scheduling": elastic}),
            "at most the number of members",
        ),
        (
            3,
            2,
            json!({"groups": [with_minimum], "scheduling": group_gangs}),
            "at most replicas x size",
        ),
        (
            3,
            2,
            json!({"groups": [uncounted("a", 4)], "network": coordinator}),
            "replica < replicas",
        ),
    ] {
        let with = |n: i32| refusals(&workload(&merged(rest.clone(), &json!({"replicas": n}))));
        assert_eq!(with(enough), "", "{rest}");
        assert!(with(other).contains(message), "{rest}: {}", with(other));
    }
    let longest = "a".repeat(63 - "-workers-10-8".len());
    let of = |n: i32| {
        refusals(&named(
            &longest,
            &json!({"replicas": n, "groups": [uncounted("workers", 8)]}),
        ))
    };
    assert_eq!(of(10), "");
    assert!(of(100).contains("limited to 63 characters"));
}

fn merged(mut base: Value, parts: &Value) -> Value {
    merge(&mut base, parts);
    base
}

#[test]
fn a_name_whose_hostnames_would_not_fit_is_refused() {
    let longest = "a".repeat(63 - "-workers-4-8".len());
    let parts = json!({"groups": [group("workers", 4, 8)]});
    assert_eq!(refusals(&named(&longest, &parts)), "");
    assert!(refusals(&named(&format!("{longest}a"), &parts)).contains("limited to 63 characters"));
    assert!(refusals(&named("4llama", &parts)).contains("starts with a letter"));
}

#[test]
fn a_template_may_not_claim_what_the_operator_sets() {
    let cases = [
        (
            json!({"metadata": {"labels": {"training.lockstep.dev/group": "x"}}}),
            "set by the operator",
        ),
        (
            json!({"metadata": {"annotations": {"training.lockstep.dev/attempt": "7"}}}),
            "set by the operator",
        ),
        (
            json!({"spec": {"nodeName": "n1"}}),
            "nodeName is chosen by the operator",
        ),
        (
            json!({"spec": {"schedulingGates": [{"name": "example.com/later"}]}}),
            "schedulingGates are set by the operator",
        ),
        (
            json!({"spec": {"restartPolicy": "Always"}}),
            "restartPolicy must be Never or OnFailure",
        ),
        (
            json!({"spec": {"containers": [{"name": "t", "image": "1", "restartPolicy": "Always"}]}}),
            "restartPolicy of the training container must be Never or OnFailure",
        ),
        (
            json!({"metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "t"}},
                "spec": {"containers": [{"name": "log"}, {"name": "t", "restartPolicy": "Always"}]}}),
            "restartPolicy of the training container must be Never or OnFailure",
        ),
        (
            json!({"metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "absent"}},
                "spec": {"containers": [{"name": "t", "restartPolicy": "Always"}, {"name": "log"}]}}),
            "restartPolicy of the training container must be Never or OnFailure",
        ),
        (
            json!({"spec": {"priority": 7}}),
            "set spec.priorityClassName of the workload",
        ),
    ];
    for (template, message) in cases {
        let g = merged(group("workers", 1, 1), &json!({"template": template}));
        let found = refusals(&workload(&json!({"groups": [g]})));
        assert!(found.contains(message), "{template}: {found}");
    }
}

#[test]
fn a_template_may_opt_out_of_preemption() {
    let opt_out = json!({"metadata": {"labels": {labels::EVICTABLE: "false"}}});
    let g = merged(group("workers", 1, 1), &json!({"template": opt_out}));
    assert_eq!(refusals(&workload(&json!({"groups": [g]}))), "");
}

#[test]
fn containers_beside_the_training_container_may_restart_always() {
    let annotated = json!({"annotations": {"kubectl.kubernetes.io/default-container": "t"}});
    for template in [
        json!({"spec": {"containers": [{"name": "t"}, {"name": "log", "restartPolicy": "Always"}]}}),
        json!({"metadata": annotated,
            "spec": {"containers": [{"name": "log", "restartPolicy": "Always"}, {"name": "t"}]}}),
        json!({"spec": {"containers": [{"name": "t", "restartPolicy": "Never"}],
            "initContainers": [{"name": "log", "restartPolicy": "Always"}]}}),
    ] {
        let g = merged(group("workers", 1, 1), &json!({"template": template}));
        let found = refusals(&workload(&json!({"groups": [g]})));
        assert_eq!(found, "", "{template}");
    }
}

#[test]
fn while_running_only_counts_limits_and_deadlines_may_change() {
    let old = workload(&spec(&json!({})));
    let change = |parts: &Value| {
        let new = workload(&spec(parts));
        validate_cel_update(&new, &old)
            .err()
            .map(|e| format!("{e:?}"))
            .unwrap_or_default()
    };
    for allowed in [
        json!({"restartNonce": 1}),
        // Definitions of older versions fill in the default port.
        json!({"network": {"port": 29500}}),
        json!({"groups": [group("data", 1, 2), group("workers", 6, 8)]}),
        json!({"replicas": 6, "groups": [group("data", 1, 2), uncounted("workers", 8)]}),
        json!({"scheduling": {"gang": {"minCount": 8}, "timeoutSeconds": 60}}),
        json!({"failurePolicy": {"limits": {"maxRestarts": 3}, "inPlace": {"deadlineSeconds": 5}, "nodeLostSeconds": 5}}),
        json!({"activeDeadlineSeconds": 100, "ttlSecondsAfterFinished": 0}),
        json!({"suspend": true, "priorityClassName": "high", "groups": [group("data", 1, 1), group("workers", 4, 4)]}),
    ] {
        assert_eq!(change(&allowed), "", "{allowed}");
    }
    let other_image = merged(
        group("workers", 4, 8),
        &json!({"template": {"spec": {"containers": [{"name": "t", "image": "2"}]}}}),
    );
    for (refused, message) in [
        (
            json!({"groups": [group("data", 1, 2), group("workers", 4, 4)]}),
            "size and dependsOn are immutable while running",
        ),
        (
            json!({"groups": [group("data", 1, 2), other_image]}),
            "template is immutable while running",
        ),
        (
            json!({"groups": [group("data", 1, 2), group("helpers", 4, 8)]}),
            "cannot be added, removed, renamed",
        ),
        (
            json!({"priorityClassName": "high"}),
            "priorityClassName is immutable while running",
        ),
        (
            json!({"network": {"port": 29501}}),
            "network is immutable while running",
        ),
        (
            json!({"network": {"subdomain": "other"}}),
            "network is immutable while running",
        ),
        (
            json!({"managedBy": "kueue.x-k8s.io/multikueue"}),
            "managedBy is immutable",
        ),
        (
            json!({"suspend": true, "managedBy": "other"}),
            "managedBy is immutable",
        ),
        (
            json!({"scheduling": {"disruptionMode": "Single"}}),
            "scheduling is immutable while running",
        ),
        (
            json!({"failurePolicy": {"restartScope": "Replica"}}),
            "compiled into the pods",
        ),
    ] {
        let found = change(&refused);
        assert!(found.contains(message), "{refused}: {found}");
    }
}

#[test]
fn actions_causes_and_phases_are_called_what_the_api_writes() {
    for action in FailureAction::ALL {
        assert_eq!(json!(action), action.as_str());
    }
    for kind in CauseKind::ALL {
        assert_eq!(json!(kind), kind.as_str());
    }
    for phase in Phase::ALL {
        assert_eq!(json!(phase), phase.as_str());
    }
}

#[test]
fn as_many_domains_as_a_status_can_hold_are_accepted() {
    let many = [
        json!({"scheduling": {"gang": {"scope": "Replica"}}, "groups": [group("a", 500, 8)]}),
        json!({"scheduling": {"policy": "Basic"}, "groups": [group("a", 20_000, 1)]}),
        json!({"groups": [group("a", 20_000, 1)]}),
    ];
    for parts in many {
        assert_eq!(refusals(&workload(&spec(&parts))), "");
    }
}

/// The words that the schema of an enum allows.
fn words_of<T: schemars::JsonSchema>() -> Vec<String> {
    let schema = schemars::schema_for!(T).to_value();
    let listed = schema["enum"].as_array().into_iter().flatten();
    let described = schema["oneOf"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|one| {
            let plain = one["enum"].as_array().into_iter().flatten();
            plain.chain(one.get("const"))
        });
    let words = listed.chain(described).filter_map(Value::as_str);
    words.map(str::to_owned).collect()
}

#[test]
fn the_lists_of_actions_causes_and_phases_have_all_that_the_schema_has() {
    let actions = FailureAction::ALL.map(FailureAction::as_str);
    assert_eq!(words_of::<FailureAction>(), actions);
    let causes = CauseKind::ALL.map(CauseKind::as_str);
    assert_eq!(words_of::<CauseKind>(), causes);
    assert_eq!(words_of::<Phase>(), Phase::ALL.map(Phase::as_str));
}
