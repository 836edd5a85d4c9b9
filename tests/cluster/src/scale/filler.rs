//! Other pods, for a realistic number of objects in the cluster.

use anyhow::Result;
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use lockstep_cluster::Cluster;
use serde_json::{Value, json};

/// Pods per node.
const EACH: usize = 100;
/// Concurrent requests.
const AT_ONCE: usize = 32;

/// Creates this number of pods on nodes without kubelet.
pub async fn fill(cluster: &Cluster, pods: usize) -> Result<()> {
    if pods == 0 {
        return Ok(());
    }
    let client = cluster.client().await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let api: Api<Pod> = Api::namespaced(client, "default");
    let params = PostParams::default();
    let name = |i: usize| format!("full-{:04}", i / EACH);
    for i in (0..pods).step_by(EACH) {
        nodes
            .create(&params, &serde_json::from_value(node(&name(i)))?)
            .await?;
    }
    stream::iter(0..pods)
        .map(|i| {
            let pod = serde_json::from_value(pod(i, &name(i)));
            async { anyhow::Ok(api.create(&params, &pod?).await.map(drop)?) }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    println!("{pods} pods of others");
    Ok(())
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "250"}}})
}

fn pod(number: usize, node: &str) -> Value {
    let env: Vec<Value> = (0..10)
        .map(|i| json!({"name": format!("SETTING_{i}"), "value": "a value of some length"}))
        .collect();
    json!({
        "metadata": {"name": format!("service-{number}"), "labels": {"app": format!("service-{}", number % 500)}},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "registry.example/service:v1", "env": env,
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}],
        },
    })
}
