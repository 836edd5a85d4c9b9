//! A gang with another obstacle than capacity, for which eviction would not help. No gang is
//! evicted for it, neither for obstacles that the manager detects nor for those that only
//! kube-scheduler detects. The gang runs after the obstacle is removed.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use lockstep_api::condition::{find, reasons, types};
use lockstep_cluster::manifests::{gang, merge, pin_to_pool};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, Scenario};
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::cluster;
use serde_json::{Value, json};

use crate::claims::{bound_claim, host_path, with_claim};
use crate::preemption::{evicted_and_spared, nobody_left, two_low};

/// A gang that can preempt. `members` is merged into the spec of its pods.
fn vip(members: Value) -> Value {
    let mut vip = gang("vip", 2, 8, json!({"priorityClassName": "high"}));
    merge(&mut vip["spec"]["groups"][0]["template"]["spec"], members);
    vip
}

fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    phase == Some("Running")
}

/// Two gangs of low priority fill the nodes. A more important gang without pods waits for the
/// reason `said`. Returns the pods of the two gangs, all of which still exist.
async fn spares(
    t: &Scenario<'_>,
    members: Value,
    reason: &str,
    said: &str,
) -> Result<[Vec<Pod>; 2]> {
    let before = two_low(t).await?;
    t.create(vip(members)).await?;
    t.workload("vip", "to say why it waits", |w| {
        let conditions = &w.status.as_ref().context("status")?.conditions;
        let admitted = find(conditions, types::ADMITTED).context("condition Admitted")?;
        let told = admitted.reason == reason && admitted.message.contains(said);
        ensure!(told, "{reason}, {said:?} are missing: {admitted:?}");
        Ok(())
    })
    .await?;
    t.no_pods("vip").await?;
    nobody_left(t, &before).await?;
    Ok(before)
}

/// Without the obstacle, exactly one of the two gangs is evicted for the gang.
async fn runs_at_the_expense_of_one(t: &Scenario<'_>, before: &[Vec<Pod>; 2]) -> Result<()> {
    t.running("vip").await?;
    evicted_and_spared(t, before).await?;
    Ok(())
}

/// No gang is evicted for the gang, which runs as soon as there is capacity.
async fn runs_when_another_ends(t: &Scenario<'_>, other: &str) -> Result<()> {
    for pod in &t.pods(other).await? {
        t.exit(pod, 0).await?;
    }
    t.running("vip").await?;
    let spared = t.workloads().get("b").await?.status.context("status")?;
    ensure!(spared.preemptions == 0, "{spared:?}");
    Ok(())
}

/// A pod on every node that is not evicted for the gang.
async fn daemons(t: &Scenario<'_>) -> Result<()> {
    for (i, node) in t.nodes.names().iter().enumerate() {
        t.create(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("daemon-{i}"), "labels": {"app": "daemon"}},
            "spec": {"priorityClassName": "high", "terminationGracePeriodSeconds": 1,
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [{"name": "c", "image": "registry.example/daemon:1",
                    "ports": [{"containerPort": 9999, "hostPort": 9999}]}]}}))
            .await?;
    }
    eventually("the daemons to run", PATIENCE, async || {
        for i in 0..t.nodes.names().len() {
            let pod = t.all_pods().get(&format!("daemon-{i}")).await?;
            ensure!(runs(&pod), "daemon-{i} does not run");
        }
        Ok(())
    })
    .await
}

/// Deletes the daemons on the nodes of a gang. Daemons of all nodes are deleted one by one, so that
/// the first two could be on nodes of both gangs.
async fn delete_daemons(t: &Scenario<'_>, of: &[Pod]) -> Result<()> {
    let node_of = |pod: &Pod| pod.spec.as_ref()?.node_name.clone();
    let theirs: Vec<String> = of.iter().filter_map(node_of).collect();
    for (i, node) in t.nodes.names().iter().enumerate() {
        if theirs.iter().any(|n| n == node) {
            let name = format!("daemon-{i}");
            t.all_pods().delete(&name, &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

/// Labels the nodes of a gang with their names. Nodes are labelled one by one, so that the first
/// two could have members of both gangs.
async fn label_nodes(t: &Scenario<'_>, key: &str, of: &[Pod]) -> Result<()> {
    let nodes: Api<Node> = Api::all(t.client.clone());
    for name in of
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
    {
        let label = json!({"metadata": {"labels": {key: name}}});
        nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(label))
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_whose_host_port_a_daemon_uses_evicts_no_pod_before_the_port_is_free() -> Result<()>
{
    scenario(cluster().await?, "port", &Shape::default(), async |t| {
        daemons(t).await?;
        let container = json!({"name": "trainer", "image": "registry.example/trainer:1",
            "command": ["train"], "resources": {"limits": {"nvidia.com/gpu": 8}},
            "ports": [{"containerPort": 9999, "hostPort": 9999}]});
        let members = json!({"containers": [container]});
        let said = "host port 9999";
        let before = spares(t, members, reasons::UNSCHEDULABLE, said).await?;
        delete_daemons(t, &before[0]).await?;
        runs_at_the_expense_of_one(t, &before).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_with_anti_affinity_to_a_daemon_evicts_no_pod_and_runs_without_the_daemon()
-> Result<()> {
    scenario(cluster().await?, "apart", &Shape::default(), async |t| {
        daemons(t).await?;
        let apart = json!({"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": {"matchLabels": {"app": "daemon"}},
                "topologyKey": "kubernetes.io/hostname"}]}}});
        let said = "required pod anti-affinity to other pods";
        let before = spares(t, apart, reasons::UNSCHEDULABLE, said).await?;
        delete_daemons(t, &before[0]).await?;
        runs_when_another_ends(t, "a").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_with_an_unsatisfiable_spread_evicts_no_pod_until_the_spread_can_hold() -> Result<()>
{
    scenario(cluster().await?, "spread", &Shape::default(), async |t| {
        let key = "lockstep.test/cell";
        let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"training.lockstep.dev/workload": "vip"}}}]});
        let before = spares(
            t,
            spread,
            reasons::UNSCHEDULABLE,
            "topology spread constraints",
        )
        .await?;
        label_nodes(t, key, &before[0]).await?;
        runs_when_another_ends(t, "a").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_with_a_missing_claim_evicts_no_pod_and_reports_the_claim_name() -> Result<()> {
    scenario(cluster().await?, "no-claim", &Shape::default(), async |t| {
        let said = "persistentvolumeclaim \"data\" not found: create it";
        let before = spares(t, with_claim(), reasons::VOLUME_MISSING, said).await?;
        let queue = t.lockstep(&["queue", "-o", "json"]).await?;
        let queue: Value = serde_json::from_str(&queue)?;
        let vip = &queue["gangs"][0];
        let shown = vip["workload"] == "vip" && vip["state"] == "Held";
        ensure!(shown && vip["reason"] == reasons::VOLUME_MISSING, "{queue}");
        bound_claim(t, host_path()).await?;
        runs_at_the_expense_of_one(t, &before).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_with_a_volume_in_a_zone_without_nodes_evicts_no_pod_until_a_node_is_there()
-> Result<()> {
    scenario(cluster().await?, "zonal", &Shape::default(), async |t| {
        let zone = "lockstep.test/zone-of-the-volume";
        let mut source = host_path();
        source["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": zone, "operator": "Exists"}]}]}});
        bound_claim(t, source).await?;
        let before = spares(
            t,
            with_claim(),
            reasons::NO_NODE_MATCHES,
            "did not match nodeSelector",
        )
        .await?;
        label_nodes(t, zone, &before[0]).await?;
        runs_at_the_expense_of_one(t, &before).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_that_requests_an_unknown_resource_evicts_no_pod_and_runs_without_it() -> Result<()>
{
    scenario(cluster().await?, "unknown", &Shape::default(), async |t| {
        let before = two_low(t).await?;
        let resources = |limits: Value| {
            json!({"containers": [{"name": "trainer", "command": ["train"],
                "image": "registry.example/trainer:1", "resources": {"limits": limits}}]})
        };
        let odd = resources(json!({"nvidia.com/gpu": 8, "example.com/foo": 1}));
        t.create(vip(odd)).await?;
        let said = t
            .condition_is("vip", types::ADMITTED, false, reasons::EXCEEDS_LARGEST_NODE)
            .await?;
        ensure!(said.contains("example.com/foo"), "{said}");
        nobody_left(t, &before).await?;
        let mut mended = vip(json!({}));
        pin_to_pool(&mut mended, &t.name);
        let groups = &mended["spec"]["groups"];
        t.patch_spec("vip", json!({"suspend": true, "groups": groups}))
            .await?;
        t.patch_spec("vip", json!({"suspend": false})).await?;
        t.running("vip").await?;
        evicted_and_spared(t, &before).await?;
        Ok(())
    })
    .await
}

/// Adds tolerations of the nodes' taints to the pods of the namespace, as cloud providers do.
/// Returns after it takes effect.
async fn tolerating(t: &Scenario<'_>) -> Result<()> {
    let add = "[JSONPatch{op: \"add\", path: \"/spec/tolerations/-\", value: \
        Object.spec.tolerations{key: \"nvidia.com/gpu\", operator: \"Exists\", effect: \"NoSchedule\"}}]";
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": t.name}});
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
    let version = "admissionregistration.k8s.io/v1";
    t.create(
        json!({"apiVersion": version, "kind": "MutatingAdmissionPolicy", "metadata": {"name": t.name},
        "spec": {"failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"namespaceSelector": selector, "resourceRules": [rule]},
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": add}}]}}),
    )
    .await?;
    t.create(
        json!({"apiVersion": version, "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": t.name}, "spec": {"policyName": t.name}}),
    )
    .await?;
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "probe"}, "spec": {
        "tolerations": [{"key": "any", "operator": "Exists"}],
        "containers": [{"name": "c", "image": "registry.example/probe:1"}]}}))?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually("the policy to change pods", PATIENCE, async || {
        let spec = t.all_pods().create(&dry_run, &pod).await?.spec;
        let mut tolerations = spec.iter().flat_map(|s| s.tolerations.iter().flatten());
        let added = tolerations.any(|a| a.key.as_deref() == Some("nvidia.com/gpu"));
        ensure!(added, "the toleration is not added yet");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_runs_on_tainted_nodes_when_admission_adds_the_toleration() -> Result<()> {
    scenario(cluster().await?, "taints", &Shape::default(), async |t| {
        let nodes: Api<Node> = Api::all(t.client.clone());
        let taint = json!([{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]);
        for name in t.nodes.names() {
            let patch = Patch::Merge(json!({"spec": {"taints": taint}}));
            nodes.patch(name, &PatchParams::default(), &patch).await?;
        }
        tolerating(t).await?;
        t.create(gang("llama", 2, 8, json!({}))).await?;
        t.running("llama").await?;
        Ok(())
    })
    .await
}
