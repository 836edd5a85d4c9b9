//! Control by users: suspension, dependencies, success, time limits.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use lockstep_api::condition::{reasons, types};
use lockstep_api::workload::Phase;
use lockstep_cluster::manifests::{gang, group};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, Scenario, uids};
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::cluster;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn suspending_releases_capacity_to_other_gangs_and_resuming_takes_it_again() -> Result<()> {
    scenario(cluster().await?, "suspend", &Shape::default(), async |t| {
        t.create(gang("g", 4, 8, json!({}))).await?;
        t.running("g").await?;
        t.patch_spec("g", json!({"suspend": true})).await?;
        t.condition("g", types::SUSPENDED).await?;
        t.no_pods("g").await?;
        t.create(gang("other", 4, 8, json!({}))).await?;
        let pods = t.running("other").await?;
        t.patch_spec("g", json!({"suspend": false})).await?;
        t.condition_is("g", types::ADMITTED, false, reasons::UNSCHEDULABLE)
            .await?;
        for pod in &pods {
            t.exit(pod, 0).await?;
        }
        t.running("g").await?;
        let status = t.workloads().get("g").await?.status.context("status")?;
        ensure!(status.restarts.counted == 0, "{:?}", status.restarts);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspend_edit_and_resume_within_a_second_runs_the_edited_template() -> Result<()> {
    scenario(cluster().await?, "edit", &Shape::default(), async |t| {
        t.create(gang("g", 2, 8, json!({}))).await?;
        let before = t.running("g").await?;
        let mut edited = group("workers", 2, 8);
        edited["template"]["spec"]["containers"][0]["image"] = json!("registry.example/trainer:2");
        edited["template"]["spec"]["nodeSelector"] =
            json!({lockstep_cluster::manifests::POOL: t.name});
        t.patch_spec("g", json!({"suspend": true})).await?;
        t.patch_spec("g", json!({"groups": [edited]})).await?;
        t.patch_spec("g", json!({"suspend": false})).await?;
        eventually("pods of the new template", PATIENCE, async || {
            let pods = t.running("g").await?;
            let images: Vec<_> = pods
                .iter()
                .flat_map(|p| p.spec.iter().filter_map(|s| s.containers[0].image.clone()))
                .collect();
            ensure!(images == ["registry.example/trainer:2"; 2], "{images:?}");
            ensure!(
                pods.iter()
                    .all(|p| before.iter().all(|b| b.uid() != p.uid())),
                "an old pod is still there"
            );
            Ok(())
        })
        .await
    })
    .await
}

/// A workload of two groups, each a gang. The second waits for the first.
async fn depending(t: &Scenario<'_>, condition: &str) -> Result<()> {
    let mut trainers = group("workers", 2, 8);
    trainers["dependsOn"] = json!([{"group": "data", "condition": condition}]);
    let spec = json!({"groups": [group("data", 1, 1), trainers], "scheduling": {"gang": {"scope": "Group"}}});
    t.create(gang("g", 0, 0, spec)).await?;
    Ok(())
}

fn of_group(pods: &[k8s_openapi::api::core::v1::Pod], group: &str) -> usize {
    pods.iter()
        .filter(|p| {
            p.labels()
                .get(lockstep_api::names::labels::GROUP)
                .is_some_and(|g| g == group)
        })
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_depends_on_a_ready_group_starts_after_it() -> Result<()> {
    scenario(cluster().await?, "ready", &Shape::default(), async |t| {
        depending(t, "Ready").await?;
        let pods = t.running("g").await?;
        ensure!(
            of_group(&pods, "data") == 1 && of_group(&pods, "workers") == 2,
            "{} pods",
            pods.len()
        );
        let created = |g: &str| {
            pods.iter()
                .filter(|p| p.labels()[lockstep_api::names::labels::GROUP] == g)
                .map(ResourceExt::creation_timestamp)
                .max()
        };
        ensure!(
            created("data") <= created("workers"),
            "the dependent group was first"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_depends_on_success_starts_when_the_other_has_succeeded() -> Result<()> {
    scenario(
        cluster().await?,
        "succeeded",
        &Shape::default(),
        async |t| {
            depending(t, "Succeeded").await?;
            let data = eventually("the first group to run alone", PATIENCE, async || {
                let pods = t.pods("g").await?;
                ensure!(
                    of_group(&pods, "workers") == 0,
                    "the dependent group has started"
                );
                let running = pods.into_iter().find(|p| {
                    p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")
                });
                running.context("not running yet")
            })
            .await?;
            t.exit(&data, 0).await?;
            eventually("the second group to run", PATIENCE, async || {
                let pods = t.pods("g").await?;
                ensure!(
                    of_group(&pods, "workers") == 2,
                    "{} workers",
                    of_group(&pods, "workers")
                );
                Ok(())
            })
            .await
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_member_stays_finished_when_its_pod_is_collected() -> Result<()> {
    scenario(
        cluster().await?,
        "collected",
        &Shape::default(),
        async |t| {
            t.create(gang("g", 2, 8, json!({}))).await?;
            let pods = t.running("g").await?;
            t.exit(&pods[0], 0).await?;
            t.workload("g", "to have one finished member", |w| {
                let groups = &w.status.as_ref().context("status")?.groups;
                ensure!(
                    groups.first().is_some_and(|g| g.completed_indexes == "0"),
                    "{groups:?}"
                );
                Ok(())
            })
            .await?;
            t.kubectl(&["delete", "pod", &pods[0].name_any(), "--wait=true"])
                .await?;
            t.exit(&pods[1], 0).await?;
            t.condition("g", types::COMPLETE).await?;
            let status = t.workloads().get("g").await?.status.context("status")?;
            ensure!(
                status.restarts.total == 0 && status.phase == Some(Phase::Succeeded),
                "{status:?}"
            );
            Ok(())
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn success_any_completes_with_the_first_group_and_stops_other_groups() -> Result<()> {
    scenario(cluster().await?, "any", &Shape::default(), async |t| {
        let spec = json!({"groups": [group("scouts", 1, 8), group("workers", 2, 8)], "successPolicy": {"operator": "Any"},
                          "scheduling": {"gang": {"scope": "Group"}}});
        t.create(gang("g", 0, 0, spec)).await?;
        let pods = t.running("g").await?;
        t.exit(&pods[0], 0).await?;
        let (reason, _) = t.condition("g", types::COMPLETE).await?;
        ensure!(reason == reasons::SUCCESS_POLICY, "{reason}");
        eventually("the other group to be gone", PATIENCE, async || {
            let left = t.pods("g").await?;
            ensure!(of_group(&left, "workers") == 0, "{} left", of_group(&left, "workers"));
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_is_deleted_when_its_time_to_live_has_passed() -> Result<()> {
    scenario(cluster().await?, "ttl", &Shape::default(), async |t| {
        t.create(gang("g", 1, 8, json!({"ttlSecondsAfterFinished": 1})))
            .await?;
        let pods = t.running("g").await?;
        t.exit(&pods[0], 0).await?;
        eventually("the workload to be gone", PATIENCE, async || {
            ensure!(t.workloads().get_opt("g").await?.is_none(), "still there");
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_past_its_active_deadline_fails() -> Result<()> {
    scenario(cluster().await?, "deadline", &Shape::default(), async |t| {
        t.create(gang("g", 1, 8, json!({"activeDeadlineSeconds": 2})))
            .await?;
        let (reason, _) = t.condition("g", types::FAILED).await?;
        ensure!(reason == reasons::DEADLINE_EXCEEDED, "{reason}");
        t.no_pods("g").await
    })
    .await
}

/// Value of a variable in the environment of the training container.
pub fn env<'a>(pod: &'a k8s_openapi::api::core::v1::Pod, name: &str) -> Option<&'a str> {
    let env = pod.spec.as_ref()?.containers.first()?.env.as_ref()?;
    env.iter().find(|e| e.name == name)?.value.as_deref()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_replicas_restarts_the_gang_once_with_its_new_world() -> Result<()> {
    scenario(cluster().await?, "resize", &Shape::default(), async |t| {
        t.create(gang(
            "g",
            2,
            8,
            json!({"scheduling": {"gang": {"minCount": 1}}}),
        ))
        .await?;
        t.running("g").await?;
        t.kubectl(&[
            "patch",
            "tw",
            "g",
            "--type=json",
            "-p",
            r#"[{"op":"replace","path":"/spec/groups/0/replicas","value":3}]"#,
        ])
        .await?;
        let status = t.restarted("g", 1).await?;
        let after = t.running("g").await?;
        // The number of members is in the environment of all pods, which cannot change in place.
        let sizes: Vec<_> = after.iter().map(|p| env(p, "PET_NNODES")).collect();
        ensure!(sizes == [Some("3"); 3], "{sizes:?}");
        ensure!(status.restarts.counted == 0, "{:?}", status.restarts);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_min_count_reaches_the_pod_group_and_disturbs_no_member() -> Result<()> {
    scenario(
        cluster().await?,
        "min-count",
        &Shape::default(),
        async |t| {
            t.create(gang(
                "g",
                2,
                8,
                json!({"scheduling": {"gang": {"minCount": 1}}}),
            ))
            .await?;
            let before = t.running("g").await?;
            t.patch_spec("g", json!({"scheduling": {"gang": {"minCount": 2}}}))
                .await?;
            eventually("the pod group to follow", PATIENCE, async || {
                let policy = t.pod_group("g").await?.spec.gang.scheduling_policy.gang;
                ensure!(
                    policy.as_ref().is_some_and(|g| g.min_count == 2),
                    "{policy:?}"
                );
                Ok(())
            })
            .await?;
            ensure!(
                uids(&before) == uids(&t.running("g").await?),
                "members were disturbed"
            );
            Ok(())
        },
    )
    .await
}
