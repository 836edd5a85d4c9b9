//! The two ways in which a control plane tells who has called what: lines of the stand-in, by which
//! most scenarios judge, and events of the library that kube-apiserver logs with, by which they
//! judge where that is started. One plane writes both.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{
    DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
    WatchParams,
};
use kube::{Api, ResourceExt};
use lockstep_api::TrainingWorkload;
use lockstep_cluster::audit::{AuditLog, Write};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::{Cluster, Options, eventually};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(20);
const NAMESPACE: &str = "logs";

#[tokio::test(flavor = "multi_thread")]
async fn both_audit_logs_tell_of_the_same_calls() -> Result<()> {
    let cluster = Cluster::start(&Options {
        events: true,
        ..Options::named("logs")
    })
    .await?;
    if !cluster.is_stand_in("two logs of one control plane") {
        return Ok(());
    }
    cluster.kubectl(&["create", "namespace", NAMESPACE]).await?;
    config_maps(&cluster).await?;
    pods(&cluster).await?;
    workloads(&cluster).await?;
    others(&cluster).await?;
    let events = AuditLog::in_folder(cluster.folder());
    for (user, refusals) in [
        ("admin", &[404, 409, 422, 429][..]),
        ("reader", &[]),
        ("stranger", &[403]),
    ] {
        // A read may be answered before its event is in the file.
        let same = async || {
            let (one, other) = (cluster.audit.calls_by(user)?, events.calls_by(user)?);
            ensure!(one == other, "{one:#?} are not {other:#?}");
            ensure!(!one.is_empty(), "{user} has called nothing");
            Ok(())
        };
        eventually("both logs to tell of the same calls", PATIENCE, same).await?;
        let (one, other) = (told(&cluster.audit, user)?, told(&events, user)?);
        for (one, other) in one.iter().zip(&other) {
            ensure!(one == other, "{one:#?} is not {other:#?}");
        }
        ensure!(
            one.len() == other.len(),
            "{} and {}",
            one.len(),
            other.len()
        );
        let here = one.iter().filter(|(w, _)| w.namespace == NAMESPACE);
        let codes: BTreeSet<u16> = here.map(|(w, _)| w.code).filter(|c| *c >= 300).collect();
        ensure!(
            codes.iter().eq(refusals),
            "{user} was refused with {codes:?}"
        );
    }
    Ok(())
}

/// A user's writes and whether each has changed something, without what events do not tell as the
/// stand-in does.
fn told(log: &AuditLog, user: &str) -> Result<Vec<(Write, bool)>> {
    let writes = log.writes_by(user)?.into_iter().map(|mut write| {
        let changed = write.changed();
        // By the clock of either.
        write.time.clear();
        if write.code >= 300 {
            // The stand-in looks at what is stored, where the server came so far; events have only
            // what was answered, a refusal.
            write.resource_version_before.clear();
        }
        if ["eviction", "binding"].contains(&&*write.subresource) {
            // Answered without the pod, whose version after it is so not in an event.
            write.resource_version_after.clear();
        }
        (write, changed)
    });
    Ok(writes.collect())
}

fn refused<T: Debug>(result: kube::Result<T>, code: u16) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == code => Ok(()),
        other => bail!("expected {code}: {other:?}"),
    }
}

/// Every way to write an object, and ways to be refused.
#[expect(
    clippy::disallowed_methods,
    reason = "replacing is one of the ways to write that a log has to tell of"
)]
async fn config_maps(cluster: &Cluster) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await?, NAMESPACE);
    let (post, patch) = (PostParams::default(), PatchParams::default());
    let one = serde_json::from_value(json!({"metadata": {"name": "one"}}))?;
    let created = maps.create(&post, &one).await?;
    refused(maps.create(&post, &one).await, 409)?;
    let generated = serde_json::from_value(json!({"metadata": {"generateName": "some-"}}))?;
    maps.create(&post, &generated).await?;
    maps.create(
        &PostParams {
            dry_run: true,
            ..post.clone()
        },
        &generated,
    )
    .await?;
    // The second time nothing changes.
    for _ in 0..2 {
        let change = Patch::Merge(json!({"data": {"a": "b"}}));
        maps.patch("one", &patch, &change).await?;
        let whole = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "two"}, "data": {"c": "d"}});
        maps.patch("two", &PatchParams::apply("test"), &Patch::Apply(whole))
            .await?;
    }
    refused(maps.replace("one", &post, &created).await, 409)?;
    let now = maps.get("one").await?;
    maps.replace("one", &post, &now).await?;
    refused(
        maps.patch("none", &patch, &Patch::Merge(json!({}))).await,
        404,
    )?;
    let delete = |uid: Option<String>| DeleteParams {
        preconditions: Some(Preconditions {
            uid,
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    refused(maps.delete("one", &delete(Some("other".into()))).await, 409)?;
    maps.delete(
        "one",
        &DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        },
    )
    .await?;
    maps.delete("one", &delete(now.uid())).await?;
    maps.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    Ok(())
}

/// Status, and evictions that a budget refuses and grants, of a pod that goes at once and of one
/// that is only marked.
async fn pods(cluster: &Cluster) -> Result<()> {
    let client = cluster.client().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), NAMESPACE);
    let (post, patch) = (PostParams::default(), PatchParams::default());
    // Pods on a node that there is not would be collected.
    let node = serde_json::from_value(json!({"metadata": {"name": "somewhere"}}))?;
    Api::<Node>::all(client).create(&post, &node).await?;
    for (name, node) in [("loose", Value::Null), ("bound", json!("somewhere"))] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "x"}}, "spec": {
            "nodeName": node, "schedulerName": "nobody", "containers": [{"name": "c", "image": "b:1"}],
        }});
        pods.create(&post, &serde_json::from_value(pod)?).await?;
    }
    let invalid =
        serde_json::from_value(json!({"metadata": {"name": "bad"}, "spec": {"containers": []}}))?;
    refused(pods.create(&post, &invalid).await, 422)?;
    let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
    pods.patch_status("bound", &patch, &running).await?;
    let budget = json!({"metadata": {"name": "all"},
        "spec": {"minAvailable": "100%", "selector": {"matchLabels": {"app": "x"}}}});
    budgets
        .create(&post, &serde_json::from_value(budget)?)
        .await?;
    // The client tries again for minutes.
    let refused_once = eventually("the eviction to be refused", PATIENCE, async || {
        let writes = cluster.audit.writes_by("admin")?;
        ensure!(writes.iter().any(|w| w.code == 429), "not yet");
        Ok(())
    });
    let evict = EvictParams::default();
    tokio::select! {
        granted = pods.evict("bound", &evict) => bail!("{granted:?}"),
        once = refused_once => once?,
    }
    let other = Patch::Merge(json!({"metadata": {"labels": {"app": "y"}}}));
    pods.patch("bound", &patch, &other).await?;
    let dry = EvictParams {
        post_options: PostParams {
            dry_run: true,
            ..post
        },
        ..EvictParams::default()
    };
    pods.evict("loose", &dry).await?;
    pods.evict("loose", &evict).await?;
    pods.evict("bound", &evict).await?;
    Ok(())
}

/// A custom resource, whose refusals come from its definition.
async fn workloads(cluster: &Cluster) -> Result<()> {
    let workloads: Api<TrainingWorkload> = Api::namespaced(cluster.client().await?, NAMESPACE);
    let (post, patch) = (PostParams::default(), PatchParams::default());
    let mut one: TrainingWorkload = serde_json::from_value(gang("one", 2, 1, json!({})))?;
    workloads.create(&post, &one).await?;
    let preempted = Patch::Merge(json!({"status": {"preemptions": 1}}));
    // The second time nothing changes.
    for _ in 0..2 {
        workloads.patch_status("one", &patch, &preempted).await?;
    }
    one.spec.groups.clear();
    one.metadata.name = Some("none".into());
    refused(workloads.create(&post, &one).await, 422)?;
    workloads.delete("one", &DeleteParams::default()).await?;
    Ok(())
}

/// Users with few rights or none, themselves and impersonated.
async fn others(cluster: &Cluster) -> Result<()> {
    let namespace = ["-n", NAMESPACE];
    let view = [
        "create",
        "rolebinding",
        "reader",
        "--clusterrole=edit",
        "--user=reader",
    ];
    cluster.kubectl(&[&view[..], &namespace].concat()).await?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client_as("user:reader").await?, NAMESPACE);
    let list = ListParams::default();
    let listed = eventually("the right to list", PATIENCE, async || {
        Ok(maps.list(&list).await?)
    })
    .await?;
    let version = listed.metadata.resource_version.context("a version")?;
    let mut news = maps.watch(&WatchParams::default(), &version).await?.boxed();
    let impersonated = ["create", "configmap", "theirs", "--as=reader"];
    cluster
        .kubectl(&[&impersonated[..], &namespace].concat())
        .await?;
    news.next().await.context("news")??;
    maps.get("theirs").await?;

    let stranger = cluster.client_as("user:stranger").await?;
    let maps: Api<ConfigMap> = Api::namespaced(stranger, NAMESPACE);
    refused(maps.list(&list).await, 403)?;
    let one = serde_json::from_value(json!({"metadata": {"name": "one"}}))?;
    refused(maps.create(&PostParams::default(), &one).await, 403)?;
    // Refused before anybody knows who is meant: in neither log.
    let kubeconfig = cluster
        .kubeconfig_for("user:stranger")?
        .display()
        .to_string();
    let pretend = [
        "--kubeconfig",
        &kubeconfig,
        "create",
        "configmap",
        "x",
        "--as=admin",
    ];
    let error = cluster.kubectl(&[&pretend[..], &namespace].concat()).await;
    ensure!(error.is_err(), "a stranger may be anybody");
    Ok(())
}
