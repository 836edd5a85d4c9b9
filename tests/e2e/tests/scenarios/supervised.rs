//! Restarts inside containers: supervised gangs under the default policy.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use lockstep_api::condition::{reasons, types};
use lockstep_api::workload::{CauseKind, Phase};
use lockstep_cluster::manifests::{gang, merge};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, kept, uids};
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::cluster;
use serde_json::{Value, json};

/// Nodes with agents that are linked to supervisors.
fn supervised() -> Shape {
    Shape {
        supervise: true,
        ..Shape::default()
    }
}

/// The default, which does not allow restarts in place without a supervisor.
fn default_policy(rules: &Value) -> Value {
    json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}, "rules": rules}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_member_brings_a_supervised_gang_back_inside_its_containers() -> Result<()> {
    scenario(cluster().await?, "supervised", &supervised(), async |t| {
        t.create(gang("g", 4, 8, default_policy(&json!([]))))
            .await?;
        let before = t.running("g").await?;
        t.condition_is("g", types::RESTARTS_IN_PLACE, true, reasons::SUPERVISED)
            .await?;
        let init = before.iter().all(|p| {
            let inits = p
                .spec
                .iter()
                .flat_map(|s| s.init_containers.iter().flatten());
            inits.map(|c| c.name.as_str()).eq(["lockstep-run"])
        });
        ensure!(init, "the supervisor is copied into each pod");
        t.exit(&before[2], 7).await?;
        let status = t.restarted("g", 1).await?;
        let after = t.running("g").await?;
        kept(&before, &after, 0)?;
        let version = |p: &k8s_openapi::api::core::v1::Pod| p.metadata.resource_version.clone();
        ensure!(
            before.iter().map(version).eq(after.iter().map(version)),
            "a kubelet had something to write"
        );
        let cause = &status.history.first().context("history")?.cause;
        ensure!(
            status.attempt == 2 && cause.exit_code == Some(7),
            "attempt {}, {cause:?}",
            status.attempt
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_done_wait_for_the_last_and_then_the_workload_succeeds() -> Result<()> {
    scenario(cluster().await?, "done", &supervised(), async |t| {
        t.create(gang("g", 3, 8, default_policy(&json!([]))))
            .await?;
        let pods = t.running("g").await?;
        for pod in &pods[..2] {
            t.exit(pod, 0).await?;
        }
        t.exit(&pods[2], 5).await?;
        t.restarted("g", 1).await?;
        let again = t.running("g").await?;
        ensure!(
            uids(&pods) == uids(&again),
            "the crash of one restarts those that were done"
        );
        for pod in &again {
            t.exit(pod, 0).await?;
        }
        t.workload("g", "to succeed", |w| {
            let phase = w.status.as_ref().and_then(|s| s.phase);
            ensure!(phase == Some(Phase::Succeeded), "{phase:?}");
            Ok(())
        })
        .await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_recreates_or_fails_does_so_under_supervisors() -> Result<()> {
    scenario(cluster().await?, "recreates", &supervised(), async |t| {
        let rules = json!([
            {"name": "disk", "match": {"exitCodes": {"operator": "In", "values": [9]}}, "action": "RecreateGang"},
            {"name": "bug", "match": {"exitCodes": {"operator": "In", "values": [3]}}, "action": "FailWorkload"}]);
        t.create(gang("g", 3, 8, default_policy(&rules))).await?;
        let before = t.running("g").await?;
        t.exit(&before[0], 9).await?;
        t.restarted("g", 1).await?;
        let after = t.running("g").await?;
        let old = uids(&before);
        ensure!(uids(&after).iter().all(|u| !old.contains(u)), "pods were kept");
        t.exit(&after[1], 3).await?;
        t.condition_is("g", types::FAILED, true, reasons::FAILURE_POLICY)
            .await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_hangs_brings_a_supervised_gang_back_inside_its_containers() -> Result<()> {
    scenario(cluster().await?, "hang", &supervised(), async |t| {
        let policy = json!({
            "progress": {"timeoutSeconds": 10, "startupSeconds": 10},
        });
        let mut spec = gang("g", 3, 8, json!({"failurePolicy": policy}));
        let container = &mut spec["spec"]["groups"][0]["template"]["spec"]["containers"][0];
        container["env"] = json!([
            {"name": "HOLLOW_STEP_MILLIS", "value": "1000"},
            {"name": "HOLLOW_HANGS_AFTER", "value": "3"},
        ]);
        t.create(spec).await?;
        let before = t.running("g").await?;
        let status = t.restarted("g", 1).await?;
        let after = t.running("g").await?;
        ensure!(uids(&before) == uids(&after), "pods were replaced");
        let cause = &status.history.first().context("history")?.cause;
        ensure!(
            cause.kind == CauseKind::Hang && cause.message == "no progress for 10 s after step 3",
            "{cause:?}"
        );
        let progress = status.progress.context("progress in the status")?;
        ensure!(progress.step > 0, "{progress:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervised_gang_runs_and_restarts_where_pod_security_is_restricted() -> Result<()> {
    scenario(cluster().await?, "restricted", &supervised(), async |t| {
        let label = "pod-security.kubernetes.io/enforce=restricted";
        t.cluster
            .kubectl(&["label", "namespace", &t.name, label])
            .await?;
        let pods: Api<Pod> = Api::namespaced(t.client.clone(), &t.name);
        let asked = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let plain: Pod = serde_json::from_value(json!({"metadata": {"name": "plain"},
            "spec": {"containers": [{"name": "c", "image": "registry.example/plain:1"}]}}))?;
        eventually("the label to count", PATIENCE, async || {
            let refused = pods.create(&asked, &plain).await.err();
            let refused = refused.context("a pod of any kind is let in")?.to_string();
            ensure!(refused.contains("violates PodSecurity"), "{refused}");
            Ok(())
        })
        .await?;
        // As strict as the namespace requires. The supervisor is not mentioned.
        let rules = json!([{"name": "disk", "match": {"exitCodes": {"operator": "In", "values": [9]}},
            "action": "RecreateGang"}]);
        let mut object = gang("g", 3, 8, default_policy(&rules));
        let pod = &mut object["spec"]["groups"][0]["template"]["spec"];
        let of_pod = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
        merge(pod, json!({"securityContext": of_pod}));
        let of_container = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]}});
        pod["containers"][0]["securityContext"] = of_container;
        t.create(object).await?;
        let before = t.running("g").await?;
        t.condition_is("g", types::RESTARTS_IN_PLACE, true, reasons::SUPERVISED)
            .await?;
        t.exit(&before[1], 7).await?;
        t.restarted("g", 1).await?;
        let after = t.running("g").await?;
        kept(&before, &after, 0)?;
        // Replacement pods are admitted too.
        t.exit(&after[0], 9).await?;
        t.restarted("g", 2).await?;
        let anew = t.running("g").await?;
        ensure!(
            uids(&anew).iter().all(|u| !uids(&after).contains(u)),
            "old pods"
        );
        Ok(())
    })
    .await
}
