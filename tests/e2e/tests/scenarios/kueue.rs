//! Gangs of a queue of a real Kueue. What a queue has given away is compared with its quota at every
//! change of its objects.

mod api;
mod killed;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use lockstep_api::condition::types;
use lockstep_api::workload::{CheckpointOutcome, Phase};
use lockstep_cluster::cluster::{Manager, repository};
use lockstep_cluster::kueue::{Kueue, Usage, is_true, kind};
use lockstep_cluster::manifests::{POOL, gang, group, merge};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, Scenario, node, uids};
use lockstep_cluster::{Cluster, eventually, scenario};
use lockstep_e2e::{fresh, patient};
use serde_json::{Value, json};

/// Reason of a gang that waits for Kueue.
const WAITING: &str = "WaitingForQuota";
/// Of the nodes that the flavor of the tests describes.
const SPOT: &str = "lockstep.test/spot";

/// What a test acts on beside its scenario.
struct Stage<'a> {
    cluster: &'a Cluster,
    kueue: Kueue<'a>,
    manager: Manager,
    usage: Usage,
}

/// Runs a test on a cluster with Kueue and a queue with quota for `gpus` accelerators, which are on
/// nodes with a label and a taint. `config` is merged over the configuration of the manager.
async fn on_kueue(
    name: &str,
    gpus: i32,
    config: Value,
    body: impl AsyncFnOnce(&mut Stage<'_>, &Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let mut merged = patient();
    merge(&mut merged, json!({"kueue": {"enabled": true}}));
    merge(&mut merged, config);
    let cluster = fresh(name, merged).await?;
    if !cluster.has_nodes(name) {
        return Ok(());
    }
    allow(&cluster).await?;
    let kueue = Kueue::start(&cluster, json!({})).await?;
    let manager = cluster.start_manager("a").await?;
    let label = format!("--label={SPOT}=true");
    let shape = Shape {
        supervise: true,
        args: vec![label],
        ..Shape::default()
    };
    scenario(&cluster, name, &shape, async |t| {
        for node in t.nodes.names() {
            let taint = ["taint", "node", node, "lockstep.test/spot=true:NoSchedule"];
            cluster.kubectl(&taint).await?;
        }
        let flavor = json!({
            "nodeLabels": {SPOT: "true"},
            "nodeTaints": [{"key": SPOT, "value": "true", "effect": "NoSchedule"}],
            "tolerations": [{"key": SPOT, "operator": "Exists"}],
        });
        kueue.create_queue(name, gpus, flavor).await?;
        let mut stage = Stage {
            cluster: &cluster,
            kueue,
            manager,
            usage: Usage::follow(&t.client, name, gpus.into()),
        };
        let played = body(&mut stage, t).await;
        if played.is_err() {
            let all = "workloads.kueue.x-k8s.io,clusterqueues,localqueues,resourceflavors";
            match t.kubectl(&["get", all, "-o", "yaml"]).await {
                Ok(text) => eprintln!("---- Kueue\n{text}"),
                Err(e) => eprintln!("---- Kueue: {e:#}"),
            }
        }
        played?;
        stage.usage.within()
    })
    .await
}

/// Gives the manager the rights that it needs for Kueue.
async fn allow(cluster: &Cluster) -> Result<()> {
    let folder = repository().join("config/components/kueue");
    let path = |file: &str| folder.join(file).display().to_string();
    let (role, binding) = (path("role.yaml"), path("role_binding.yaml"));
    cluster
        .kubectl(&["apply", "-f", &role, "-f", &binding])
        .await?;
    Ok(())
}

/// A gang of members with 8 accelerators that saves on request, in the queue. `spec` (a JSON merge
/// patch) changes its spec.
fn queued(name: &str, members: i32, spec: Value) -> Value {
    let mut workers = group("workers", members, 8);
    workers["template"]["spec"]["terminationGracePeriodSeconds"] = json!(30);
    workers["template"]["spec"]["containers"][0]["env"] = json!([
        {"name": "HOLLOW_STEP_MILLIS", "value": "500"},
        {"name": "HOLLOW_ON_CHECKPOINT", "value": "save"},
        {"name": "HOLLOW_CHECKPOINT_MILLIS", "value": "2000"},
    ]);
    let mut changed = json!({
        "groups": [workers],
        "checkpoint": {"onRequest": {"timeoutSeconds": 20}},
    });
    merge(&mut changed, spec);
    let mut gang = gang(name, members, 8, changed);
    gang["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "queue"});
    gang
}

/// The Workloads of Kueue that a training workload owns.
async fn owned(t: &Scenario<'_>, owner: &str) -> Result<Vec<DynamicObject>> {
    let owner = t.workloads().get(owner).await?.uid().context("a UID")?;
    let all = kueue_workloads(t).list(&ListParams::default()).await?;
    let is_owned = |o: &DynamicObject| o.owner_references().iter().any(|r| r.uid == owner);
    Ok(all.into_iter().filter(is_owned).collect())
}

fn kueue_workloads(t: &Scenario<'_>) -> Api<DynamicObject> {
    Api::namespaced_with(t.client.clone(), &t.name, &kind("Workload"))
}

/// The only Workload of Kueue that a training workload owns, once it passes `check`.
async fn workload_of(
    t: &Scenario<'_>,
    owner: &str,
    what: &str,
    check: impl Fn(&DynamicObject) -> Result<()>,
) -> Result<DynamicObject> {
    let what = format!("Kueue's Workload of {owner} to {what}");
    eventually(&what, PATIENCE, async || {
        let mut all = owned(t, owner).await?;
        ensure!(all.len() == 1, "{} Workloads", all.len());
        let found = all.remove(0);
        check(&found).with_context(|| format!("{:?}", found.data["status"]))?;
        Ok(found)
    })
    .await
}

/// Waits until Kueue's Workload of a training workload has a condition.
async fn has(t: &Scenario<'_>, owner: &str, type_: &str) -> Result<DynamicObject> {
    workload_of(t, owner, &format!("be {type_}"), |w| {
        ensure!(is_true(w, type_));
        Ok(())
    })
    .await
}

/// Waits until a gang is held for Kueue's quota. Returns the message.
async fn waits(t: &Scenario<'_>, name: &str) -> Result<String> {
    let message = t
        .condition_is(name, types::ADMITTED, false, WAITING)
        .await?;
    ensure!(t.pods(name).await?.is_empty(), "it has pods");
    Ok(message)
}

/// Waits until a gang has made a step.
async fn steps(t: &Scenario<'_>, name: &str) -> Result<Vec<Pod>> {
    let pods = t.running(name).await?;
    t.workload(name, "to make steps", |w| {
        let status = w.status.as_ref().context("no status yet")?;
        status.progress.as_ref().map(drop).context("no step yet")
    })
    .await?;
    Ok(pods)
}

async fn is_in(t: &Scenario<'_>, name: &str, phase: Phase) -> Result<()> {
    t.workload(name, &format!("to be {phase:?}"), |w| {
        let now = w.status.as_ref().and_then(|s| s.phase);
        ensure!(now == Some(phase), "phase {now:?}");
        Ok(())
    })
    .await
    .map(drop)
}

/// Ends the processes of a gang with success and waits for its end, which Kueue is told.
async fn finish(t: &Scenario<'_>, name: &str) -> Result<()> {
    for pod in t.running(name).await? {
        t.exit(&pod, 0).await?;
    }
    is_in(t, name, Phase::Succeeded).await?;
    workload_of(t, name, "be finished", |w| {
        ensure!(is_true(w, "Finished") && w.finalizers().is_empty());
        Ok(())
    })
    .await
    .map(drop)
}

/// A job of Kubernetes in the queue, which Kueue itself manages.
async fn create_job(t: &Scenario<'_>) -> Result<()> {
    let template = json!({"spec": {
        "restartPolicy": "Never",
        "nodeSelector": {POOL: t.name},
        "containers": [{
            "name": "c",
            "image": "registry.example/job:1",
            "resources": {"limits": {"nvidia.com/gpu": 8}},
        }],
    }});
    t.create(json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {"suspend": true, "template": template},
    }))
    .await?;
    eventually("Kueue to admit the job", PATIENCE, async || {
        let suspended = ["get", "job", "job", "-o", "jsonpath={.spec.suspend}"];
        let suspended = t.kubectl(&suspended).await?;
        ensure!(suspended == "false", "{suspended:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-kueue"]
async fn a_gang_waits_for_the_quota_of_a_job_and_runs_where_its_flavor_says() -> Result<()> {
    on_kueue("kueue-job", 16, json!({}), async |s, t| {
        create_job(t).await?;
        t.create(queued("g", 2, json!({}))).await?;
        let message = waits(t, "g").await?;
        ensure!(message.contains("queue"), "{message}");
        let tested = "the admission policies are in force";
        eventually("the policies to be tested", PATIENCE, async || {
            let log = std::fs::read_to_string(s.manager.process.log())?;
            ensure!(log.contains(tested), "{}", s.manager.process.log_tail(20));
            Ok(())
        })
        .await?;
        t.kubectl(&["delete", "job", "job"]).await?;
        let pods = t.running("g").await?;
        ensure!(pods.len() == 2 && pods.iter().all(|p| !node(p).is_empty()));
        for pod in &pods {
            let spec = pod.spec.as_ref().context("a spec")?;
            let selector = spec.node_selector.clone().unwrap_or_default();
            ensure!(selector.contains_key(SPOT), "{selector:?}");
            let mut tolerations = spec.tolerations.iter().flatten();
            ensure!(tolerations.any(|t| t.key.as_deref() == Some(SPOT)));
            let owner = pod.annotations().get("kueue.x-k8s.io/workload");
            let admitted = has(t, "g", "Admitted").await?.name_any();
            ensure!(owner == Some(&admitted), "{:?}", pod.annotations());
            ensure!(pod.labels().contains_key("kueue.x-k8s.io/podset"));
        }
        has(t, "g", "PodsReady").await?;
        finish(t, "g").await?;
        s.usage.ends(PATIENCE).await
    })
    .await
}

/// Creates a class of Kueue's own priorities.
async fn create_class(kueue: &Kueue<'_>, name: &str, value: i32) -> Result<()> {
    let class = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": name},
        "value": value,
    });
    kueue.apply(&class).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-kueue"]
async fn a_gang_that_kueue_preempts_saves_waits_again_and_finishes() -> Result<()> {
    on_kueue("kueue-preempts", 16, json!({}), async |s, t| {
        create_class(&s.kueue, "urgent", 1000).await?;
        t.create(queued("first", 2, json!({}))).await?;
        let before = steps(t, "first").await?;
        t.create(queued("second", 2, json!({}))).await?;
        waits(t, "second").await?;
        let mut urgent = queued("urgent", 2, json!({}));
        urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = json!("urgent");
        t.create(urgent).await?;
        t.running("urgent").await?;
        waits(t, "first").await?;
        let request = t.checkpoint_request("first").await?;
        ensure!(
            request.outcome == Some(CheckpointOutcome::Saved),
            "{request:?}"
        );
        let evicted = workload_of(t, "first", "be queued again", |w| {
            ensure!(is_true(w, "Requeued") && !is_true(w, "QuotaReserved"));
            ensure!(w.data["status"]["admission"].is_null());
            Ok(())
        })
        .await?;
        ensure!(is_true(&evicted, "Preempted"));
        finish(t, "urgent").await?;
        finish(t, "first").await?;
        finish(t, "second").await?;
        let status = t.workloads().get("first").await?.status;
        let status = status.context("status")?;
        ensure!(status.restarts.counted == 0, "{status:?}");
        ensure!(before.len() == 2);
        for (name, times) in [("urgent", 1), ("first", 2), ("second", 1)] {
            let uid = t.workloads().get(name).await?.uid().context("a UID")?;
            let admissions = s.usage.admissions(&uid);
            ensure!(
                admissions == times,
                "{name} was admitted {admissions} times"
            );
        }
        s.usage.ends(PATIENCE).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-kueue"]
async fn kueue_sees_nothing_of_a_restart_in_place_or_of_a_replaced_pod() -> Result<()> {
    on_kueue("kueue-restart", 16, json!({}), async |s, t| {
        let rules = json!({"failurePolicy": {"rules": [
            {"name": "three", "match": {"exitCodes": {"operator": "In", "values": [3]}}, "action": "RecreateGang"}]}});
        t.create(queued("g", 2, rules)).await?;
        let pods = t.running("g").await?;
        let before = has(t, "g", "PodsReady").await?;
        t.exit(pods.first().context("a pod")?, 1).await?;
        t.restarted("g", 1).await?;
        let again = t.running("g").await?;
        ensure!(uids(&pods) == uids(&again), "pods were replaced");
        let after = has(t, "g", "PodsReady").await?;
        ensure!(before.metadata == after.metadata && before.data == after.data);
        t.exit(again.first().context("a pod")?, 3).await?;
        t.restarted("g", 2).await?;
        let recreated = t.running("g").await?;
        ensure!(uids(&again) != uids(&recreated), "no pod was replaced");
        let after = has(t, "g", "PodsReady").await?;
        for part in ["spec", "status"] {
            let (before, after) = (&before.data[part], &after.data[part]);
            let without_pods_ready = |v: &Value| {
                let mut v = v.clone();
                if let Some(conditions) = v["conditions"].as_array_mut() {
                    conditions.retain(|c| c["type"] != "PodsReady");
                }
                v
            };
            ensure!(
                without_pods_ready(before) == without_pods_ready(after),
                "{before}\n{after}"
            );
        }
        finish(t, "g").await?;
        s.usage.ends(PATIENCE).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-kueue"]
async fn gangs_that_are_deleted_stopped_or_suspended_give_their_quota_back() -> Result<()> {
    on_kueue("kueue-back", 16, json!({}), async |s, t| {
        t.create(queued("deleted", 2, json!({}))).await?;
        t.running("deleted").await?;
        t.create(queued("waits", 2, json!({}))).await?;
        t.create(queued("next", 2, json!({}))).await?;
        waits(t, "waits").await?;
        waits(t, "next").await?;
        for name in ["waits", "deleted"] {
            t.workloads().delete(name, &DeleteParams::default()).await?;
        }
        t.running("next").await?;
        let workload = has(t, "next", "Admitted").await?.name_any();
        let stop = json!({"spec": {"active": false}});
        let version = "kueue.x-k8s.io/v1beta2";
        t.patch("Workload", version, &workload, stop).await?;
        t.none_runs("next").await?;
        s.usage.ends(PATIENCE).await?;
        waits(t, "next").await?;
        let start = json!({"spec": {"active": true}});
        t.patch("Workload", version, &workload, start).await?;
        t.running("next").await?;
        t.patch_spec("next", json!({"suspend": true})).await?;
        t.none_runs("next").await?;
        t.workloads()
            .delete("next", &DeleteParams::default())
            .await?;
        eventually("Kueue's Workloads to be gone", PATIENCE, async || {
            let left = kueue_workloads(t).list(&ListParams::default()).await?;
            ensure!(left.items.is_empty(), "{left:?}");
            Ok(())
        })
        .await?;
        s.usage.ends(PATIENCE).await
    })
    .await
}
