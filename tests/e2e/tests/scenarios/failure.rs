//! Conditions under which a workload fails.

use anyhow::{Context, Result, ensure};
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::uids;
use lockstep_e2e::cluster;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_code_with_action_fail_workload_fails_it_at_once() -> Result<()> {
    scenario(cluster().await?, "fatal", &Shape::default(), async |t| {
        let policy = json!({"failurePolicy": {"rules": [
            {"name": "bad-arguments", "match": {"exitCodes": {"operator": "In", "values": [2]}}, "action": "FailWorkload"}]}});
        t.create(gang("g", 3, 8, policy)).await?;
        let before = t.running("g").await?;
        t.exit(&before[0], 2).await?;
        let (reason, message) = t.condition("g", types::FAILED).await?;
        ensure!(reason == reasons::FAILURE_POLICY && message.contains("bad-arguments"), "{reason}: {message}");
        let status = t.workloads().get("g").await?.status.context("status")?;
        let incident = status.history.first().context("history")?;
        ensure!(incident.cause.exit_code == Some(2) && status.restarts.total == 0, "{status:?}");
        t.none_runs("g").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_budget_fails_the_workload_with_its_history() -> Result<()> {
    scenario(cluster().await?, "budget", &Shape::default(), async |t| {
        t.create(gang(
            "g",
            2,
            8,
            json!({"failurePolicy": {"limits": {"maxRestarts": 1}}}),
        ))
        .await?;
        let pods = t.running("g").await?;
        t.exit(&pods[0], 5).await?;
        t.restarted("g", 1).await?;
        let pods = t.running("g").await?;
        t.exit(&pods[1], 6).await?;
        let (reason, _) = t.condition("g", types::FAILED).await?;
        ensure!(reason == reasons::RESTART_LIMIT_EXCEEDED, "{reason}");
        let status = t.workloads().get("g").await?.status.context("status")?;
        let codes: Vec<_> = status.history.iter().map(|h| h.cause.exit_code).collect();
        ensure!(codes == [Some(6), Some(5)], "newest first: {codes:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_over_its_quota_is_held_with_no_pods_and_no_evictions() -> Result<()> {
    scenario(cluster().await?, "quota", &Shape::default(), async |t| {
        t.create(gang("victim", 2, 8, json!({"priorityClassName": "low"})))
            .await?;
        let before = t.running("victim").await?;
        t.create(
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
                        "spec": {"hard": {"pods": "4"}}}),
        )
        .await?;
        t.create(gang("greedy", 4, 8, json!({"priorityClassName": "high"})))
            .await?;
        let message = t
            .condition_is("greedy", types::ADMITTED, false, reasons::QUOTA_EXCEEDED)
            .await?;
        let said = "exceeded quota: q, requested: pods=4, used: pods=2, limited: pods=4";
        ensure!(message.contains(said), "{message}");
        t.no_pods("greedy").await?;
        ensure!(
            uids(&before) == uids(&t.running("victim").await?),
            "a pod was evicted"
        );
        // It was never placed, so it has only its decision.
        let group = t.pod_group("greedy").await?;
        let status = group.status.unwrap_or_default();
        ensure!(
            status.placement.is_none() && status.reservation.is_none(),
            "{status:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_object_that_refuses_one_pod_leaves_nothing() -> Result<()> {
    scenario(cluster().await?, "policy", &Shape::default(), async |t| {
        t.create(json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "e2e-third-member"},
            "spec": {"failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
                "validations": [{"expression": "!object.metadata.name.startsWith('g-workers-2-')",
                    "message": "no third member here", "reason": "Forbidden"}]}}))
            .await?;
        t.create(json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "e2e-third-member"},
            "spec": {"policyName": "e2e-third-member", "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": t.name}}}}}))
            .await?;
        t.until_refused("g-workers-2-probe").await?;
        t.create(gang("g", 4, 8, json!({}))).await?;
        let message = t.condition_is("g", types::ADMITTED, false, reasons::FORBIDDEN).await?;
        ensure!(message.contains("no third member here"), "{message}");
        t.no_pods("g").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_exits_zero_while_it_is_deleted_has_not_succeeded() -> Result<()> {
    scenario(cluster().await?, "sigterm", &Shape::default(), async |t| {
        let mut polite = gang("g", 2, 8, json!({}));
        let trainer = &mut polite["spec"]["groups"][0]["template"]["spec"]["containers"][0];
        trainer["env"] = json!([{"name": "HOLLOW_ON_TERM", "value": "0"}]);
        t.create(polite).await?;
        let before = t.running("g").await?;
        let name = before[0].metadata.name.clone().context("name")?;
        t.kubectl(&["delete", "pod", &name, "--wait=false"]).await?;
        t.restarted("g", 1).await?;
        let pods = t.running("g").await?;
        ensure!(
            pods.len() == 2 && pods[0].metadata.uid != before[0].metadata.uid,
            "the member was not replaced"
        );
        let status = t.workloads().get("g").await?.status.context("status")?;
        ensure!(
            status
                .groups
                .iter()
                .all(|g| g.succeeded == 0 && g.completed_indexes.is_empty()),
            "{:?}",
            status.groups
        );
        Ok(())
    })
    .await
}
