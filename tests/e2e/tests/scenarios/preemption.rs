//! A more important gang preempts other work.

use anyhow::{Context, Result, ensure};
use chrono::SecondsFormat;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lockstep_api::condition::{find, reasons, types};
use lockstep_api::names::annotations;
use lockstep_api::workload::{CauseKind, Phase};
use lockstep_cluster::manifests::{gang, merge};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, Scenario, uids};
use lockstep_cluster::{eventually, scenario, time_of_day};
use lockstep_e2e::cluster;
use serde_json::{Value, json};

use crate::claims::{unattachable_claim, with_claim};

fn of_class(name: &str, members: i32, class: &str) -> Value {
    gang(name, members, 8, json!({"priorityClassName": class}))
}

/// Two gangs of low priority fill the nodes. Returns their pods.
pub(super) async fn two_low(t: &Scenario<'_>) -> Result<[Vec<Pod>; 2]> {
    t.create(of_class("a", 2, "low")).await?;
    t.create(of_class("b", 2, "low")).await?;
    Ok([t.running("a").await?, t.running("b").await?])
}

/// Checks that both gangs of low priority still have their pods.
pub(super) async fn nobody_left(t: &Scenario<'_>, before: &[Vec<Pod>; 2]) -> Result<()> {
    ensure!(
        uids(&before[0]) == uids(&t.pods("a").await?)
            && uids(&before[1]) == uids(&t.pods("b").await?),
        "evicted"
    );
    Ok(())
}

/// Names of the two gangs of low priority: first the evicted gang.
pub(super) async fn evicted_and_spared(
    t: &Scenario<'_>,
    before: &[Vec<Pod>; 2],
) -> Result<(&'static str, &'static str)> {
    let untouched = |now: &[Pod], then: &[Pod]| uids(now) == uids(then);
    let (a, b) = (t.pods("a").await?, t.pods("b").await?);
    match (untouched(&a, &before[0]), untouched(&b, &before[1])) {
        (true, false) => Ok(("b", "a")),
        (false, true) => Ok(("a", "b")),
        both => anyhow::bail!("untouched: {both:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preemptor_takes_one_whole_gang_of_lower_priority_which_queues_again_uncounted()
-> Result<()> {
    scenario(cluster().await?, "preempt", &Shape::default(), async |t| {
        let before = two_low(t).await?;
        t.create(of_class("vip", 2, "high")).await?;
        t.running("vip").await?;
        let (evicted, spared) = evicted_and_spared(t, &before).await?;
        ensure!(
            t.pods(evicted).await?.is_empty(),
            "{evicted} was not evicted whole"
        );
        let victim = t
            .workload(evicted, "to wait again", |w| {
                let status = w.status.as_ref().context("status")?;
                ensure!(
                    status.phase == Some(Phase::Pending) && status.preemptions == 1,
                    "{status:?}"
                );
                Ok(())
            })
            .await?;
        ensure!(
            victim.status.context("status")?.restarts.counted == 0,
            "a preemption was counted"
        );
        for (workload, needed) in [("vip", "Preempting"), (evicted, "PreemptionByScheduler")] {
            let events = t.event_reasons(workload).await?;
            ensure!(events.iter().any(|r| r == needed), "{workload}: {events:?}");
        }
        t.workloads()
            .delete("vip", &DeleteParams::default())
            .await?;
        t.running(evicted).await?;
        let again = t.workloads().get(evicted).await?.status.context("status")?;
        ensure!(
            again.history.len() == 1 && again.history[0].cause.kind == CauseKind::Preempted,
            "a preemption is no failure: {:?}",
            again.history
        );
        let still = t.workloads().get(spared).await?.status.context("status")?;
        ensure!(
            still.preemptions == 0 && still.restarts.total == 0,
            "{spared} was disturbed: {still:?}"
        );
        Ok(())
    })
    .await
}

/// Two equal gangs: `saved` has a new checkpoint, the other has none since its start.
async fn the_saved_one_goes(t: &Scenario<'_>, saved: &str) -> Result<()> {
    let before = two_low(t).await?;
    // Costs are in whole seconds, so some work must exist.
    for name in ["a", "b"] {
        t.workload(name, "to be ready for some seconds", |w| {
            let ready = w
                .status
                .as_ref()
                .and_then(|s| find(&s.conditions, types::READY))
                .context("condition Ready")?;
            let age = time_of_day() - ready.last_transition_time;
            ensure!(
                ready.status == true.into() && age.num_seconds() >= 4,
                "{ready:?}"
            );
            Ok(())
        })
        .await?;
    }
    let checkpoint = time_of_day().to_rfc3339_opts(SecondsFormat::Secs, true);
    let annotated =
        json!({"metadata": {"annotations": {annotations::LAST_CHECKPOINT: checkpoint}}});
    t.workloads()
        .patch(saved, &PatchParams::default(), &Patch::Merge(annotated))
        .await?;
    t.create(of_class("vip", 2, "high")).await?;
    t.running("vip").await?;
    let (evicted, _) = evicted_and_spared(t, &before).await?;
    ensure!(
        evicted == saved,
        "{evicted} went although {saved} had less to lose"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_equal_gangs_the_one_that_saved_its_work_last_is_evicted() -> Result<()> {
    scenario(cluster().await?, "saved-a", &Shape::default(), async |t| {
        the_saved_one_goes(t, "a").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checkpoint_and_not_the_name_decides_the_victim() -> Result<()> {
    scenario(cluster().await?, "saved-b", &Shape::default(), async |t| {
        the_saved_one_goes(t, "b").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn gangs_of_equal_priority_are_never_evicted() -> Result<()> {
    scenario(cluster().await?, "equals", &Shape::default(), async |t| {
        let before = two_low(t).await?;
        t.create(of_class("c", 2, "low")).await?;
        t.condition_is("c", types::ADMITTED, false, reasons::UNSCHEDULABLE)
            .await?;
        nobody_left(t, &before).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_refused_for_its_volumes_preempts_once_and_reports_the_refusal() -> Result<()> {
    scenario(cluster().await?, "volumes", &Shape::default(), async |t| {
        let before = two_low(t).await?;
        unattachable_claim(t, t.nodes.names()).await?;
        let mut vip = of_class("vip", 2, "high");
        merge(
            &mut vip["spec"]["groups"][0]["template"]["spec"],
            with_claim(),
        );
        t.create(vip).await?;
        t.workload("vip", "to say why it is refused", |w| {
            let conditions = &w.status.as_ref().context("status")?.conditions;
            let said = &find(conditions, types::ADMITTED)
                .context("condition Admitted")?
                .message;
            for part in [
                "exceed max volume count",
                "no workload is preempted for this gang",
                "retry at",
            ] {
                ensure!(said.contains(part), "{part:?} is missing: {said}");
            }
            Ok(())
        })
        .await?;
        // The refused gang has no capacity, and its victim runs again.
        for gang in ["a", "b"] {
            t.running(gang).await?;
        }
        evicted_and_spared(t, &before).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_with_preemption_policy_never_evicts_no_pod() -> Result<()> {
    scenario(cluster().await?, "never", &Shape::default(), async |t| {
        let before = two_low(t).await?;
        let polite =
            json!({"priorityClassName": "high", "scheduling": {"preemptionPolicy": "Never"}});
        t.create(gang("polite", 2, 8, polite)).await?;
        t.condition_is("polite", types::ADMITTED, false, reasons::UNSCHEDULABLE)
            .await?;
        nobody_left(t, &before).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_may_make_what_runs_count_for_more_than_its_priority() -> Result<()> {
    scenario(
        cluster().await?,
        "sticky",
        &Shape {
            nodes: 2,
            ..Shape::default()
        },
        async |t| {
            let note = json!({annotations::PREEMPTION_PRIORITY: i32::MAX.to_string()});
            t.create(
                json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1,
            "metadata": {"name": "sticky", "annotations": note}}),
            )
            .await?;
            t.create(of_class("a", 2, "sticky")).await?;
            let before = t.running("a").await?;
            t.create(of_class("vip", 2, "high")).await?;
            t.condition_is("vip", types::ADMITTED, false, reasons::UNSCHEDULABLE)
                .await?;
            ensure!(uids(&before) == uids(&t.pods("a").await?), "evicted");
            Ok(())
        },
    )
    .await
}

/// A budget that allows no disruption of a gang of two.
async fn keep(t: &Scenario<'_>, gang: &str) -> Result<()> {
    let name = format!("keep-{gang}");
    t.create(
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"minAvailable": 2,
                 "selector": {"matchLabels": {"training.lockstep.dev/workload": gang}}}}),
    )
    .await?;
    t.budget_counted(&name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_disruption_budgets_keep_a_preemptor_waiting_until_one_budget_allows_it()
-> Result<()> {
    scenario(cluster().await?, "guarded", &Shape::default(), async |t| {
        let before = two_low(t).await?;
        for gang in ["a", "b"] {
            keep(t, gang).await?;
        }
        t.create(of_class("vip", 2, "high")).await?;
        t.workload("vip", "to say that budgets keep the others", |w| {
            let conditions = &w.status.as_ref().context("status")?.conditions;
            let admitted = find(conditions, types::ADMITTED).context("condition Admitted")?;
            ensure!(
                admitted
                    .message
                    .contains("disruption budgets protect 4 pods"),
                "{admitted:?}"
            );
            Ok(())
        })
        .await?;
        nobody_left(t, &before).await?;
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(t.client.clone(), &t.name);
        budgets.delete("keep-a", &DeleteParams::default()).await?;
        t.running("vip").await?;
        let (evicted, _) = evicted_and_spared(t, &before).await?;
        ensure!(evicted == "a", "the gang with the budget was evicted");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disruption_budget_is_spared_when_another_gang_suffices() -> Result<()> {
    scenario(cluster().await?, "budgeted", &Shape::default(), async |t| {
        let before = two_low(t).await?;
        keep(t, "a").await?;
        t.create(of_class("vip", 2, "high")).await?;
        t.running("vip").await?;
        let (evicted, _) = evicted_and_spared(t, &before).await?;
        ensure!(evicted == "b", "the gang with the budget was evicted");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_intent_in_a_pod_group_evicts_no_pod() -> Result<()> {
    scenario(cluster().await?, "forged", &Shape::default(), async |t| {
        let before = two_low(t).await?;
        t.create(of_class("c", 2, "low")).await?;
        t.condition_is("c", types::ADMITTED, false, reasons::UNSCHEDULABLE).await?;
        let (group, victim) = (t.pod_group("c").await?, t.pod_group("a").await?);
        let nodes: Vec<Value> = before[0]
            .iter()
            .enumerate()
            .map(|(i, p)| json!({"node": lockstep_cluster::scenario::node(p), "members": [format!("workers/{i}/0")]}))
            .collect();
        let forged = json!({"status": {
            "placement": {"id": "forged", "members": 2, "nodes": nodes, "decidedAt": "2026-01-01T00:00:00Z"},
            "preemption": {"id": "forged", "preemptorUID": group.uid(), "placement": "forged",
                "decidedAt": "2026-01-01T00:00:00Z",
                "victims": [{"kind": "PodGroup", "namespace": t.name, "name": victim.name_any(), "uid": victim.uid(),
                             "priority": 1, "pods": 2, "cost": 0}]}}});
        let name = group.name_any();
        t.pod_groups().patch_status(&name, &PatchParams::default(), &Patch::Merge(forged)).await?;
        eventually("the forged intent to be dropped", PATIENCE, async || {
            let status = t.pod_groups().get(&name).await?.status.context("status")?;
            ensure!(status.preemption.is_none(), "{:?}", status.preemption);
            Ok(())
        })
        .await?;
        ensure!(uids(&before[0]) == uids(&t.running("a").await?), "the forged intent evicted a pod");
        ensure!(uids(&before[1]) == uids(&t.running("b").await?), "the forged intent evicted a pod");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_pod_of_lower_priority_leaves_through_the_eviction_api() -> Result<()> {
    scenario(
        cluster().await?,
        "foreign",
        &Shape {
            nodes: 2,
            ..Shape::default()
        },
        async |t| {
            t.create(
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lonely"},
            "spec": {"priorityClassName": "low", "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "c", "image": "registry.example/other:1",
                    "resources": {"limits": {"nvidia.com/gpu": 8}}}]}}),
            )
            .await?;
            eventually("the foreign pod to run", PATIENCE, async || {
                let phase = t
                    .all_pods()
                    .get("lonely")
                    .await?
                    .status
                    .and_then(|s| s.phase);
                ensure!(phase.as_deref() == Some("Running"), "{phase:?}");
                Ok(())
            })
            .await?;
            t.create(of_class("vip", 2, "high")).await?;
            t.running("vip").await?;
            let writes = t.manager_writes()?;
            ensure!(
                writes
                    .iter()
                    .any(|w| w.target() == "pods/eviction" && w.name == "lonely"),
                "it was not evicted"
            );
            ensure!(
                !writes
                    .iter()
                    .any(|w| w.verb == "delete" && w.name == "lonely"),
                "it was deleted"
            );
            Ok(())
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_whose_only_room_is_with_the_managers_waits_and_says_so() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("pods in the namespace of the managers") {
        return Ok(());
    }
    let shape = Shape {
        nodes: 1,
        ..Shape::default()
    };
    scenario(cluster, "beside-managers", &shape, async |t| {
        let place = cluster.method.manager();
        let pods: Api<Pod> = Api::namespaced(t.client.clone(), &place.namespace);
        // With accelerators and low priority: only its namespace protects it.
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "beside-managers"},
            "spec": {"nodeName": format!("{}-0000", t.name), "priorityClassName": "low", "terminationGracePeriodSeconds": 1,
                "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{"name": "c", "image": "registry.example/other:1",
                    "resources": {"limits": {"nvidia.com/gpu": 8}},
                    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}))?;
        pods.create(&PostParams::default(), &pod).await?;
        t.create(of_class("vip", 1, "high")).await?;
        t.condition_is("vip", types::ADMITTED, false, reasons::UNSCHEDULABLE)
            .await?;
        t.workload("vip", "to say what is out of reach", |w| {
            let message = w.status.as_ref().map_or("", |s| &s.message);
            ensure!(message.contains("scheduler.preemption.victims"), "{message}");
            Ok(())
        })
        .await?;
        let there = pods.get("beside-managers").await?;
        ensure!(there.metadata.deletion_timestamp.is_none(), "it was evicted");
        pods.delete("beside-managers", &DeleteParams::default())
            .await?;
        t.running("vip").await.map(drop)
    })
    .await
}
