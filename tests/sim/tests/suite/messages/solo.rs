//! Stories of one workload.

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Service;
use lockstep_sim::api::{Refused, Rule, Verb};
use lockstep_sim::pods::add_foreign_gate;
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Solo, WatchedKind};
use serde_json::{Value, json};

pub(super) fn settled(mut world: Solo) -> Solo {
    world.settle();
    world
}

/// Title of a story, and its world at the end.
pub(super) type Story = (&'static str, fn() -> Solo);

pub(super) const STORIES: &[Story] = &[
    ("completes", completes),
    ("restarts in place", || fails_once(&json!({}))),
    ("restarts one pod", || fails_once(&rule("RestartPod"))),
    ("restarts one container", || {
        fails_once(&rule("RestartContainer"))
    }),
    ("recreates", || fails_once(&rule("RecreateGang"))),
    ("fails by a rule", || fails_once(&rule("FailWorkload"))),
    ("has ignored failures only", || {
        let mut w = fails_once(&rule("Ignore"));
        w.exit("g", 1, 4);
        w.settle();
        w
    }),
    ("has no restarts left", || {
        fails_once(&json!({"failurePolicy": {"limits": {"maxRestarts": 0}}}))
    }),
    ("takes another node", takes_another_node),
    ("is restarted by its owner", restarted_by_its_owner),
    ("is suspended and resumed", suspended_and_resumed),
    ("has no members", || after(gang(0), 30)),
    ("does not fit", || after(gang(20), 60)),
    ("fits in part", || {
        after(gang_with(10, &json!({"groups": elastic(10, 4)})), 120)
    }),
    ("waits for too long", || {
        after(
            gang_with(
                20,
                &json!({"scheduling": {"timeoutSeconds": 30, "onTimeout": "Fail"}}),
            ),
            90,
        )
    }),
    ("runs for too long", || {
        after(gang_with(2, &json!({"activeDeadlineSeconds": 30})), 90)
    }),
    ("does not start", does_not_start),
    ("is rejected by its node", rejected),
    ("loses a node", || loses_a_node(4)),
    ("loses a node that nothing replaces", || loses_a_node(8)),
    ("has a pod that does not end", does_not_end),
    ("fails again and again", fails_again_and_again),
    ("waits for kube-scheduler", || {
        settled(Solo::kubernetes(gang(20)))
    }),
    ("needs native groups that are not served", || {
        let mut w = Solo::kubernetes(gang(2));
        w.native_support(false);
        settled(w)
    }),
    ("has a group of its own where kube-scheduler places", || {
        let mut spec = gang(2);
        let pod = &mut spec["groups"][0]["template"]["spec"];
        pod["schedulingGroup"] = json!({"podGroupName": "mine"});
        settled(Solo::kubernetes(spec))
    }),
    ("has a topology where kube-scheduler places", || {
        let rack = json!({"scheduling": {"topology": {"key": "rack"}}});
        settled(Solo::kubernetes(gang_with(2, &rack)))
    }),
    ("names no class", || {
        after(gang_with(2, &json!({"priorityClassName": "nobody"})), 30)
    }),
    ("has an invalid template", || {
        refused(|w| {
            w.store().admission.invalid = Some("spec.containers[0].image: Required value".into());
        })
    }),
    ("has an outage of all kubelets", || {
        let mut w = Solo::new(gang(2));
        w.settle();
        w.faults(|f| f.cut_off = true);
        w.wait(100);
        w
    }),
    ("has pods that a webhook fails", || {
        refused(|w| {
            let words = "failed calling webhook \"gate.example.com\": no endpoints";
            w.store().admission.webhook = Some(Box::new(move |_| {
                Err(Refused::new(500, "InternalError", words))
            }));
        })
    }),
    ("exceeds a quota", || {
        refused(|w| w.store().admission.quota = Some(1))
    }),
    ("is forbidden", || {
        refused(|w| {
            w.store().admission.webhook = Some(Box::new(|_| {
                Err(Refused::forbidden(
                    "pods \"p\" is forbidden: violates PodSecurity \"restricted\"",
                ))
            }));
        })
    }),
    ("has a webhook that drops annotations of its pods", || {
        refused(|w| {
            w.store().admission.webhook = Some(Box::new(|pod| {
                pod["metadata"]["annotations"] = json!({});
                Ok(())
            }));
        })
    }),
    ("has a service that is invalid", || {
        refused(|w| {
            let rule = Rule {
                kind: WatchedKind::Service,
                verb: Verb::Create,
                name: None,
                answer: Refused::invalid("Service \"w\" is invalid: metadata.name: Invalid value"),
            };
            w.store().admission.rules.push(rule);
        })
    }),
    ("finds its names taken", names_taken),
    ("depends on another group", || after(chain("Succeeded"), 60)),
    ("depends on a group that breaks", dependency_breaks),
    ("depends on a group that lacks a node", || {
        let mut spec = chain("Ready");
        spec["groups"][0]["replicas"] = json!(8);
        let mut w = settled(Solo::new(spec));
        let node = w.node_of("g", 0);
        w.lose(&node);
        w.wait(200);
        w
    }),
    (
        "has no agents, and may not restart without supervisors",
        no_agents,
    ),
    ("is supervised", supervised),
    ("runs with the members that fit", || {
        let elastic = json!({"scheduling": {"gang": {"minCount": 2}}});
        after(gang_with(9, &elastic), 30)
    }),
    ("is scaled beyond the cluster", || {
        let mut w = after(gang(2), 30);
        w.edit(|spec| spec.groups[0].replicas = Some(9));
        w.wait(60);
        w
    }),
    (
        "has a class that is made anew with another value",
        class_made_anew,
    ),
    ("loses a pod that is replaced alone", loses_a_pod),
    ("never stays up", never_stays_up),
    ("cannot start a container", cannot_start_a_container),
    ("cannot pull an image", cannot_pull_an_image),
    ("misses a secret", misses_a_secret),
    (
        "names a scheduler that does not exist",
        names_a_scheduler_that_is_not_there,
    ),
    (
        "has pods with a scheduling gate of another controller",
        has_gated_pods,
    ),
];

pub(super) fn rule(action: &str) -> Value {
    json!({"failurePolicy": {"rules": [{"name": "all", "match": {}, "action": action}]}})
}

fn elastic(members: i32, least: i32) -> Value {
    let mut groups = gang(members)["groups"].clone();
    groups[0]["minCount"] = json!(least);
    groups
}

pub(super) fn after(spec: Value, seconds: i64) -> Solo {
    let mut w = Solo::new(spec);
    w.wait(seconds);
    w
}

fn completes() -> Solo {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.exit("g", 0, 0);
    w.exit("g", 1, 0);
    w.settle();
    w
}

pub(super) fn fails_once(more: &Value) -> Solo {
    let mut w = Solo::new(gang_with(2, more));
    w.settle();
    w.exit("g", 0, 3);
    w.settle();
    w
}

fn takes_another_node() -> Solo {
    let mut more = rule("RestartGang");
    more["failurePolicy"]["rules"][0]["failedMember"] = json!("ReplaceElsewhere");
    fails_once(&more)
}

fn restarted_by_its_owner() -> Solo {
    let mut w = after(gang(2), 30);
    w.edit(|spec| spec.restart_nonce += 1);
    w.settle();
    w.edit(|spec| spec.groups[0].replicas = Some(3));
    w.settle();
    w
}

fn suspended_and_resumed() -> Solo {
    let mut w = after(gang(2), 30);
    w.edit(|spec| spec.suspend = true);
    w.settle();
    w.edit(|spec| spec.suspend = false);
    w.settle();
    w
}

fn does_not_start() -> Solo {
    let mut w = Solo::new(gang_with(
        2,
        &json!({"failurePolicy": {"startDeadlineSeconds": 60}}),
    ));
    w.faults(|f| f.starts_nothing = true);
    w.wait(200);
    w
}

fn rejected() -> Solo {
    let mut w = Solo::new(gang(2));
    w.faults(|f| f.rejects = true);
    w.wait(120);
    w
}

fn loses_a_node(members: i32) -> Solo {
    let more = json!({"failurePolicy": {"nodeLostSeconds": 30, "replacementTimeoutSeconds": 60}});
    let mut w = Solo::new(gang_with(members, &more));
    w.settle();
    let node = w.node_of("g", 0);
    w.lose(&node);
    w.wait(400);
    w
}

fn does_not_end() -> Solo {
    let more = json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}});
    let mut spec = gang_with(4, &more);
    let pod = &mut spec["groups"][0]["template"]["spec"];
    pod["containers"][0]["env"] = json!([{"name": "HOLLOW_ON_TERM", "value": "ignore"}]);
    let mut w = Solo::new(spec);
    w.settle();
    w.fault("n1", |f| f.unkillable = true);
    w.exit("g", 0, 1);
    w.rounds(200);
    w
}

fn fails_again_and_again() -> Solo {
    let more = json!({"failurePolicy": {"rules": [{"name": "free", "match": {}, "action": "RestartGang", "counted": false}]}});
    let mut w = Solo::new(gang_with(2, &more));
    w.settle();
    for _ in 0..40 {
        w.exit_if_running("g", 0, 3);
        w.wait(15);
    }
    w
}

fn refused(how: impl FnOnce(&mut Solo)) -> Solo {
    let mut w = Solo::new(gang(2));
    how(&mut w);
    w.wait(60);
    w
}

fn names_taken() -> Solo {
    let mut w = Solo::new(gang(2));
    let mut service = Service::default();
    service.metadata.name = Some("w".into());
    service.metadata.namespace = Some("ns".into());
    w.create(&service);
    w.wait(30);
    w
}

/// Three groups that depend on each other in turn. The second has no accelerators.
fn chain(condition: &str) -> Value {
    let mut spec = gang_with(2, &json!({"scheduling": {"gang": {"scope": "Group"}}}));
    for (name, on) in [("late", "g"), ("last", "late")] {
        let mut group = spec["groups"][0].clone();
        group["name"] = json!(name);
        group["dependsOn"] = json!([{"group": on, "condition": condition}]);
        if name == "late" {
            group["template"]["spec"]["containers"][0]["resources"] = json!({});
        }
        spec["groups"].as_array_mut().unwrap().push(group);
    }
    spec
}

fn dependency_breaks() -> Solo {
    let mut w = Solo::new(chain("Ready"));
    w.faults(|f| f.starts_nothing = true);
    w.rounds(30);
    w.faults(|f| f.starts_nothing = false);
    w.settle();
    w.exit("g", 0, 1);
    w.settle();
    let nodes = w.node_names();
    for node in &nodes {
        w.capacity(node, 0);
    }
    w.preempt("g");
    w.rounds(60);
    for node in &nodes {
        w.capacity(node, 2);
    }
    settled(w)
}

fn no_agents() -> Solo {
    let more = json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}});
    let mut w = Solo::new(gang_with(2, &more));
    w.settle();
    w.faults(|f| f.no_agent = true);
    w.wait(60);
    w
}

fn class_made_anew() -> Solo {
    let more = json!({"priorityClassName": "research", "failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}});
    let mut w = Solo::new(gang_with(2, &more));
    w.create_class("research", 7, "Never");
    w.settle();
    w.delete_class("research");
    w.create_class("research", 9, "Never");
    w.exit("g", 0, 1);
    w.settle();
    w.delete_class("research");
    w.create_class("research", 7, "Never");
    w.exit("g", 0, 1);
    w.settle();
    w
}

fn loses_a_pod() -> Solo {
    let mut w = Solo::new(gang_with(2, &rule("RestartPod")));
    w.settle();
    w.delete_pod("g", 0);
    w.settle();
    w
}

fn never_stays_up() -> Solo {
    let mut w = Solo::new(gang(2));
    w.patience = TimeDelta::seconds(100);
    w.settle();
    for _ in 0..6 {
        w.exit("g", 0, 1);
        w.settle();
    }
    w
}

fn cannot_start_a_container() -> Solo {
    let mut spec = gang(2);
    spec["groups"][0]["template"]["spec"]["containers"][0]["env"] = json!([
        {"name": "HOLLOW_EXIT", "value": "128"}, {"name": "HOLLOW_REASON", "value": "StartError"}]);
    after(spec, 60)
}

fn cannot_pull_an_image() -> Solo {
    let mut spec = gang_with(2, &json!({"failurePolicy": {"startDeadlineSeconds": 20}}));
    spec["groups"][0]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "HOLLOW_NOT_CREATED", "value": "ErrImagePull"}]);
    after(spec, 150)
}

fn misses_a_secret() -> Solo {
    let mut spec = gang(2);
    spec["groups"][0]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "HOLLOW_NOT_CREATED", "value": "CreateContainerConfigError"}]);
    after(spec, 20)
}

fn names_a_scheduler_that_is_not_there() -> Solo {
    let mut spec = gang_with(2, &json!({"failurePolicy": {"startDeadlineSeconds": 20}}));
    spec["groups"][0]["template"]["spec"]["schedulerName"] = json!("volcano");
    after(spec, 150)
}

fn has_gated_pods() -> Solo {
    let spec = gang_with(2, &json!({"failurePolicy": {"startDeadlineSeconds": 20}}));
    let mut w = Solo::new(spec);
    w.cluster.store().admission.webhook = Some(Box::new(|pod| {
        add_foreign_gate(pod);
        Ok(())
    }));
    w.wait(60);
    w
}

fn supervised() -> Solo {
    let mut w = Solo::supervised(gang(2));
    w.settle();
    w.exit("g", 0, 3);
    w.settle();
    w
}
