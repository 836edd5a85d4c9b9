//! The main story: from `kubectl apply` to completion.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use lockstep_api::condition::{reasons, types};
use lockstep_api::{RestartOrder, Workload};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, restarts, uids};
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::cluster;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_is_placed_whole_restarts_in_place_completes_and_leaves_nothing_behind() -> Result<()>
{
    scenario(cluster().await?, "life", &Shape::default(), async |t| {
        t.create(gang("llama", 4, 8, json!({}))).await?;
        let before = t.running("llama").await?;
        ensure!(before.len() == 4, "{} pods", before.len());

        t.exit(&before[2], 3).await?;
        let done = t
            .workload("llama", "to have restarted", |w| {
                let status = w.status.as_ref().context("status")?;
                ensure!(
                    status.attempt == 2 && status.restarts.in_place == 1,
                    "no restart yet"
                );
                ensure!(
                    status.domains.iter().all(|d| !d.is_restarting()),
                    "an incident is open"
                );
                Ok(())
            })
            .await?;
        let after = t.running("llama").await?;
        ensure!(uids(&before) == uids(&after), "pods were replaced");
        ensure!(
            after.iter().all(|p| restarts(p) == 1),
            "{:?}",
            after.iter().map(restarts).collect::<Vec<_>>()
        );
        let incident = done
            .status
            .and_then(|s| s.history.first().cloned())
            .context("an entry in the history")?;
        ensure!(incident.cause.exit_code == Some(3), "{incident:?}");

        for pod in &after {
            t.exit(pod, 0).await?;
        }
        t.condition("llama", types::COMPLETE).await?;

        t.workloads()
            .delete("llama", &DeleteParams::default())
            .await?;
        eventually("nothing to be left", PATIENCE, async || {
            let all = ListParams::default();
            let services: Api<Service> = Api::namespaced(t.client.clone(), &t.name);
            let orders: Api<RestartOrder> = Api::namespaced(t.client.clone(), &t.name);
            let workloads: Api<Workload> = Api::namespaced(t.client.clone(), &t.name);
            let left = t.all_pods().list(&all).await?.items.len()
                + services.list(&all).await?.items.len()
                + orders.list(&all).await?.items.len()
                + workloads.list(&all).await?.items.len()
                + t.pod_groups().list(&all).await?.items.len();
            ensure!(left == 0, "{left} objects");
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_service_with_the_same_name_is_kept_and_reported() -> Result<()> {
    scenario(
        cluster().await?,
        "conflict",
        &Shape {
            nodes: 1,
            ..Shape::default()
        },
        async |t| {
            t.create(
                json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "g"},
                        "spec": {"ports": [{"port": 80}], "selector": {"app": "other"}}}),
            )
            .await?;
            t.create(gang("g", 1, 8, json!({}))).await?;
            let message = t
                .condition_is("g", types::STALLED, true, reasons::NAME_CONFLICT)
                .await?;
            ensure!(message.contains('g'), "{message}");
            let services: Api<Service> = Api::namespaced(t.client.clone(), &t.name);
            let kept = services.get("g").await?;
            ensure!(
                kept.spec
                    .and_then(|s| s.selector)
                    .is_some_and(|s| s["app"] == "other"),
                "the service was changed"
            );
            ensure!(t.pods("g").await?.is_empty(), "pods exist");
            Ok(())
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_edited_by_hand_is_put_right() -> Result<()> {
    scenario(
        cluster().await?,
        "edited",
        &Shape {
            nodes: 1,
            ..Shape::default()
        },
        async |t| {
            t.create(gang("g", 1, 8, json!({}))).await?;
            t.running("g").await?;
            let services: Api<Service> = Api::namespaced(t.client.clone(), &t.name);
            let selector =
                async || anyhow::Ok(services.get("g").await?.spec.and_then(|s| s.selector));
            let right = selector().await?;
            t.patch(
                "Service",
                "v1",
                "g",
                json!({"spec": {"selector": {"app": "other"}}}),
            )
            .await?;
            eventually("the selector to be put right", PATIENCE, async || {
                let now = selector().await?;
                ensure!(now == right, "{now:?}");
                Ok(())
            })
            .await
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_taken_away_leaves_with_its_pod_group_and_the_other_runs_on() -> Result<()>
{
    scenario(cluster().await?, "fewer", &Shape { nodes: 2, ..Shape::default() }, async |t| {
        // Each replica is a separate world, so that the number of other replicas does not matter.
        let spec = json!({"scheduling": {"gang": {"scope": "Replica"}}, "network": {"world": "Replica"}});
        t.create(gang("g", 2, 8, spec)).await?;
        let before = t.running("g").await?;
        let fewer = r#"[{"op": "replace", "path": "/spec/groups/0/replicas", "value": 1}]"#;
        t.kubectl(&["patch", "tw", "g", "--type=json", "-p", fewer]).await?;
        eventually("one gang to be left", PATIENCE, async || {
            let (pods, groups) = (t.pods("g").await?, t.pod_groups().list(&ListParams::default()).await?.items);
            ensure!(pods.len() == 1 && groups.len() == 1, "{} pods, {} groups", pods.len(), groups.len());
            Ok(())
        })
        .await?;
        let after = t.running("g").await?;
        ensure!(uids(&after) == uids(&before[..1]) && restarts(&after[0]) == 0, "the replica that stays was disturbed");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_deleted_by_hand_comes_back_and_no_member_notices() -> Result<()> {
    scenario(
        cluster().await?,
        "service",
        &Shape {
            nodes: 2,
            ..Shape::default()
        },
        async |t| {
            t.create(gang("g", 2, 8, json!({}))).await?;
            let before = t.running("g").await?;
            let services: Api<Service> = Api::namespaced(t.client.clone(), &t.name);
            let old = services.get("g").await?.metadata.uid;
            services.delete("g", &DeleteParams::default()).await?;
            eventually("the service to be back", PATIENCE, async || {
                let new = services.get("g").await?.metadata.uid;
                ensure!(new != old, "still the old one");
                Ok(())
            })
            .await?;
            let after = t.running("g").await?;
            ensure!(
                uids(&before) == uids(&after) && after.iter().all(|p| restarts(p) == 0),
                "members were disturbed"
            );
            Ok(())
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_left_by_an_orphaned_workload_make_room_for_the_next_of_its_name() -> Result<()> {
    let shape = Shape {
        nodes: 1,
        ..Shape::default()
    };
    scenario(cluster().await?, "orphans", &shape, async |t| {
        t.create(gang("g", 1, 8, json!({}))).await?;
        t.running("g").await?;
        let orders: Api<RestartOrder> = Api::namespaced(t.client.clone(), &t.name);
        let first = orders.get("g").await?.spec.workload_uid;
        t.kubectl(&["delete", "tw", "g", "--cascade=orphan"])
            .await?;
        // The command of docs/install.md, in one namespace.
        let remaining = [
            "delete",
            "pod,service",
            "-l",
            "training.lockstep.dev/workload",
        ];
        t.kubectl(&remaining).await?;
        let order = orders.get("g").await?;
        ensure!(order.metadata.owner_references.is_none(), "{order:?}");
        t.create(gang("g", 1, 8, json!({}))).await?;
        t.running("g").await?;
        let second = orders.get("g").await?.spec.workload_uid;
        ensure!(second != first, "the order of the first workload remains");
        Ok(())
    })
    .await
}
