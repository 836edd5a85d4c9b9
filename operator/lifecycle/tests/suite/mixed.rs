//! Restart domains in which only some pods have a supervisor: a node lacks an agent, or a group's
//! container has no command. Supervised members still wait at the barrier. With `Deny`, the other
//! members get new pods once all have stopped.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::condition::find;
use lockstep_api::names::annotations;
use lockstep_api::workload::{FailureAction, Phase};
use lockstep_sim::Solo;
use lockstep_sim::pods::{env, leaving, member_of};
use lockstep_sim::solo::{gang, gang_with};
use serde_json::{Value, json};

/// Three members on separate nodes. The node of `n1` has no agent.
fn one_node_without_agent(policy: &str) -> Solo {
    let spec = json!({"failurePolicy": {"inPlace": {"withoutSupervisor": policy}}});
    let mut w = Solo::supervised(gang_with(3, &spec));
    for node in ["n0", "n1", "n2"] {
        w.capacity(node, 1);
    }
    w.capacity("n3", 0);
    w.fault("n1", |f| f.no_agent = true);
    w.settle();
    w
}

/// Two members of a group that can have supervisors, and one of a group that cannot.
fn one_group_without_command(policy: &str) -> Solo {
    let mut spec: Value = gang(2);
    spec["failurePolicy"]["inPlace"]["withoutSupervisor"] = json!(policy);
    // All members share one coordinator.
    spec["network"] = json!({"world": "Workload"});
    let mut second = spec["groups"][0].clone();
    second["name"] = json!("h");
    second["replicas"] = json!(1);
    second["template"]["spec"]["containers"][0]["command"] = json!([]);
    spec["groups"].as_array_mut().unwrap().push(second);
    let mut w = Solo::supervised(spec);
    w.settle();
    w
}

fn has_supervisor(w: &Solo, member: &str) -> bool {
    let mut pods = w.pods();
    pods.retain(|p| !leaving(p) && member_of(p).is_some_and(|m| m.to_string() == member));
    let pod = pods.pop().expect("the member has a pod");
    pod.metadata.annotations.unwrap()[annotations::TIER] == "supervised"
}

/// Members with and without a supervisor.
fn split(w: &Solo) -> (Vec<String>, Vec<String>) {
    let members = w.uids().into_keys();
    members.partition(|member| has_supervisor(w, member))
}

/// Runtime ids of containers that run without a supervisor.
fn unheld(w: &mut Solo) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for name in w.node_names() {
        for (pod, view) in w.node(&name).runtime.table().all() {
            let tier = pod.annotations.get(annotations::TIER);
            if tier.is_some_and(|t| t != "supervised") {
                for container in view.containers {
                    if container.alive() {
                        all.insert(container.id);
                    }
                }
            }
        }
    }
    all
}

/// The coordinator's port as set for each member.
fn ports(w: &Solo) -> BTreeMap<String, String> {
    let order = w.order().unwrap().spec.domains.remove(0);
    let moved = order.coordinator.map(|c| c.port.to_string());
    let pods = w.pods().into_iter().filter(|p| !leaving(p));
    let port = |pod| {
        let member = member_of(&pod)?.to_string();
        let moved = moved.clone().filter(|_| has_supervisor(w, &member));
        Some((member, moved.or_else(|| env(&pod, "MASTER_PORT"))?))
    };
    pods.filter_map(port).collect()
}

fn meet_at_one_place(w: &Solo) {
    let ports = ports(w);
    let different: BTreeSet<&String> = ports.values().collect();
    assert_eq!(different.len(), 1, "{ports:?}");
}

/// Runs until no action is due. No supervised member runs the next attempt while an unsupervised
/// member runs this one. `apart`: nor vice versa.
fn restart(w: &mut Solo, fails: &str, apart: bool) {
    let old = unheld(w);
    let present: BTreeSet<u64> = w.children().into_values().collect();
    assert_eq!((present.len(), old.len()), (1, 1));
    let present = *present.first().unwrap();
    let member = fails.split('-').collect::<Vec<_>>();
    w.exit(member[0], member[1].parse().unwrap(), 1);
    for _ in 0..90 {
        w.rounds(1);
        let unheld = unheld(w);
        let children: BTreeSet<u64> = w.children().into_values().collect();
        let next = children.iter().any(|attempt| *attempt > present);
        assert!(!next || unheld.is_disjoint(&old), "{}", w.story(40));
        let others = !unheld.is_subset(&old);
        assert!(
            !apart || !others || !children.contains(&present),
            "{}",
            w.story(40)
        );
    }
    w.settle();
}

/// Members with another pod than before.
fn replaced(w: &Solo, before: &BTreeMap<String, String>) -> Vec<String> {
    let after = w.uids().into_iter();
    let new = after.filter(|(member, uid)| before.get(member) != Some(uid));
    new.map(|(member, _)| member).collect()
}

fn message(w: &Solo, condition: &str) -> String {
    let status = w.status();
    find(&status.conditions, condition).unwrap().message.clone()
}

#[test]
fn supervised_members_wait_for_the_first_start_of_one_without_supervisor() {
    let spec = json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}}});
    let mut w = Solo::supervised(gang_with(3, &spec));
    for node in ["n0", "n1", "n2"] {
        w.capacity(node, 1);
    }
    w.capacity("n3", 0);
    w.fault("n1", |f| (f.no_agent, f.starts_nothing) = (true, true));
    w.rounds(35);
    assert!(w.uids().len() == 3 && w.children().is_empty());
    w.fault("n1", |f| f.starts_nothing = false);
    w.settle();
    assert_eq!(w.children().len(), 2);
    assert_eq!(w.status().phase, Some(Phase::Running));
    meet_at_one_place(&w);
}

#[test]
fn under_deny_only_the_member_without_an_agent_gets_a_new_pod() {
    for unsupervised_fails in [false, true] {
        let mut w = one_node_without_agent("Deny");
        let (with, without) = split(&w);
        assert_eq!((with.len(), without.len()), (2, 1));
        assert_eq!(w.condition("RestartsInPlace"), "!AgentMissing");
        let before = w.uids();
        let fails = if unsupervised_fails {
            &without[0]
        } else {
            &with[0]
        };
        restart(&mut w, fails, true);
        let s = w.status();
        assert_eq!(s.phase, Some(Phase::Running));
        assert_eq!(replaced(&w, &before), without);
        assert_eq!(
            (s.history[0].action, s.restarts.counted, s.attempt),
            (FailureAction::RestartGang, 1, 2)
        );
        meet_at_one_place(&w);
    }
}

#[test]
fn under_allow_only_the_member_without_an_agent_gets_a_new_pod_on_any_failure() {
    for unsupervised_fails in [false, true] {
        let mut w = one_node_without_agent("Allow");
        let (with, without) = split(&w);
        assert!(message(&w, "RestartsInPlace").contains("pods there are recreated"));
        let before = w.uids();
        let fails = if unsupervised_fails {
            &without[0]
        } else {
            &with[0]
        };
        restart(&mut w, fails, false);
        let s = w.status();
        assert_eq!(s.phase, Some(Phase::Running));
        let after = w.uids();
        assert!(
            with.iter().all(|m| before[m] == after[m]),
            "{before:?} {after:?}"
        );
        assert!(without.iter().all(|m| before[m] != after[m]));
        assert_eq!(w.children().into_values().collect::<Vec<_>>(), [2, 2]);
        assert_eq!(
            (
                s.history[0].action,
                s.restarts.counted,
                s.restarts.recreated
            ),
            (FailureAction::RestartGang, 1, 1)
        );
        meet_at_one_place(&w);
    }
}

#[test]
fn under_deny_only_the_group_without_command_gets_new_pods() {
    for fails in ["g-1-0", "h-0-0"] {
        let mut w = one_group_without_command("Deny");
        assert_eq!(w.condition("RestartsInPlace"), "!Denied");
        let why = message(&w, "RestartsInPlace");
        assert!(
            why.contains("group h") && why.contains("sets no command"),
            "{why}"
        );
        let before = w.uids();
        restart(&mut w, fails, true);
        let s = w.status();
        assert_eq!(s.phase, Some(Phase::Running));
        assert_eq!(replaced(&w, &before), ["h-0-0"]);
        assert_eq!(
            (s.history[0].action, s.restarts.counted),
            (FailureAction::RestartGang, 1)
        );
        meet_at_one_place(&w);
    }
}

#[test]
fn under_allow_a_group_without_command_restarts_in_place_with_supervised_members() {
    for fails in ["g-1-0", "h-0-0"] {
        let mut w = one_group_without_command("Allow");
        assert_eq!(w.condition("RestartsInPlace"), "Unsupervised");
        let before = w.uids();
        restart(&mut w, fails, false);
        let s = w.status();
        assert_eq!((s.phase, w.uids()), (Some(Phase::Running), before));
        assert_eq!(
            w.restarts(),
            [0, 0, 1],
            "the one without restarts its container"
        );
        assert_eq!(w.children().into_values().collect::<Vec<_>>(), [2, 2]);
        assert_eq!(
            (s.history[0].action, s.restarts.counted, s.restarts.in_place),
            (FailureAction::RestartGang, 1, 1)
        );
        meet_at_one_place(&w);
    }
}

#[test]
fn a_mixed_gang_meets_at_one_place_after_it_was_suspended() {
    for policy in ["Deny", "Allow"] {
        let mut all = [
            one_node_without_agent(policy),
            one_group_without_command(policy),
        ];
        for w in &mut all {
            w.edit(|s| s.suspend = true);
            w.settle();
            w.edit(|s| s.suspend = false);
            w.settle();
            assert_eq!((w.children().len(), w.status().restarts.counted), (2, 0));
            meet_at_one_place(w);
        }
    }
}
