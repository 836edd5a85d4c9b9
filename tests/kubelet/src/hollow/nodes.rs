//! Node objects and their Leases.

#![expect(
    clippy::disallowed_methods,
    reason = "hollow nodes run in the time of their own process"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use chrono::{DateTime, SecondsFormat, Utc};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::warn;

use super::args::Options;
use crate::clock::Clock;
use crate::model::FEATURE_RESTART_ALL;

/// Limit of a call.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of concurrent calls.
pub(super) const CONCURRENCY: usize = 16;
/// Namespace of node Leases.
const LEASES: &str = "kube-node-lease";

/// Shared data of a node.
#[derive(Debug)]
pub(super) struct NodeInfo {
    pub(super) name: String,
    pub(super) ip: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) declares_restart_all: bool,
    /// False after the node vanished.
    pub(super) up: AtomicBool,
}

/// Node number `i` according to the options.
pub(super) fn node_info(options: &Options, i: usize, name: String) -> NodeInfo {
    // Consecutive nodes form a rack and consecutive racks a zone, as nodes that share switches do.
    let block = |parts: usize| i * parts.max(1) / options.nodes.max(1);
    let racks = options.racks.max(1);
    let (rack, zone) = (block(racks), block(racks) * options.zones.max(1) / racks);
    let fixed = [
        ("kubernetes.io/hostname", name.clone()),
        ("kubernetes.io/os", "linux".into()),
        ("kubernetes.io/arch", "amd64".into()),
        ("topology.kubernetes.io/zone", format!("zone-{zone}")),
        ("topology.kubernetes.io/rack", format!("rack-{rack}")),
    ];
    let labels = fixed
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v))
        .chain(options.labels.iter().cloned());
    NodeInfo {
        ip: format!("10.{}.{}.{}", i >> 16, (i >> 8) & 0xff, i & 0xff),
        labels: labels.collect(),
        declares_restart_all: options.declares_restart_all(&name),
        up: AtomicBool::new(true),
        name,
    }
}

/// Allocatable resources, by name.
pub(super) fn resources(options: &Options) -> BTreeMap<String, String> {
    let mut out: BTreeMap<String, String> = [
        ("cpu", &options.cpu),
        ("memory", &options.memory),
        ("pods", &options.pods),
        (options.gpu_resource.as_str(), &options.gpus),
    ]
    .map(|(k, v)| (k.to_owned(), v.clone()))
    .into();
    out.insert("ephemeral-storage".into(), "1Ti".into());
    out.retain(|_, amount| amount != "0");
    out
}

/// Creates or updates the objects of all nodes.
pub(super) async fn register(
    client: &Client,
    options: &Options,
    nodes: &[Arc<NodeInfo>],
    clock: Clock,
) -> Result<()> {
    stream::iter(nodes)
        .map(|node| async move {
            register_one(client, options, node, clock)
                .await
                .with_context(|| format!("cannot register {}", node.name))
        })
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await
}

async fn register_one(
    client: &Client,
    options: &Options,
    node: &NodeInfo,
    clock: Clock,
) -> Result<()> {
    if options.adopted.is_empty() {
        create(client, options, node, clock.now()).await?;
    } else {
        post_ready(client, options, node, clock.now()).await?;
    }
    let leases = Api::<Lease>::namespaced(client.clone(), LEASES);
    let lease: Lease = serde_json::from_value(json!({
        "metadata": {"name": node.name},
        "spec": {"holderIdentity": node.name, "leaseDurationSeconds": options.lease_seconds, "renewTime": micro(clock.now())},
    }))?;
    // The API server creates the namespace shortly after its start.
    for _ in 0..50 {
        match timeout(DEADLINE, leases.create(&PostParams::default(), &lease)).await? {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(e)) if e.is_already_exists() => {
                return renew(client, node, options.lease_seconds, clock.now()).await;
            }
            Err(kube::Error::Api(e)) if e.is_not_found() => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(e) => return Err(e.into()),
        }
    }
    bail!("namespace {LEASES} does not exist")
}

async fn create(
    client: &Client,
    options: &Options,
    node: &NodeInfo,
    now: DateTime<Utc>,
) -> Result<()> {
    let api = Api::<Node>::all(client.clone());
    let object: Node = serde_json::from_value(json!({
        "metadata": {"name": node.name, "labels": node.labels},
        "status": status(options, node, now),
    }))?;
    match timeout(DEADLINE, api.create(&PostParams::default(), &object)).await? {
        Err(kube::Error::Api(e)) if e.is_already_exists() => {
            post_ready(client, options, node, now).await
        }
        created => Ok(created.map(drop)?),
    }
}

/// Reports a node as ready after its return, as a kubelet does. The Lease is renewed first, because
/// a ready node with an old Lease is marked as lost again at once.
pub(super) async fn come_back(
    client: &Client,
    options: &Options,
    node: &NodeInfo,
    now: DateTime<Utc>,
) -> Result<()> {
    renew(client, node, options.lease_seconds, now).await?;
    post_ready(client, options, node, now).await
}

async fn post_ready(
    client: &Client,
    options: &Options,
    node: &NodeInfo,
    now: DateTime<Utc>,
) -> Result<()> {
    let patch = json!({"status": status(options, node, now)});
    let api = Api::<Node>::all(client.clone());
    timeout(
        DEADLINE,
        api.patch_status(
            &node.name,
            &PatchParams::default(),
            &Patch::Strategic(patch),
        ),
    )
    .await??;
    Ok(())
}

async fn renew(client: &Client, node: &NodeInfo, seconds: u32, now: DateTime<Utc>) -> Result<()> {
    let patch = json!({"spec": {
        "holderIdentity": node.name, "leaseDurationSeconds": seconds, "renewTime": micro(now)}});
    let api = Api::<Lease>::namespaced(client.clone(), LEASES);
    timeout(
        DEADLINE,
        api.patch(&node.name, &PatchParams::default(), &Patch::Merge(patch)),
    )
    .await??;
    Ok(())
}

fn status(options: &Options, node: &NodeInfo, now: DateTime<Utc>) -> Value {
    let time = now.to_rfc3339_opts(SecondsFormat::Secs, true);
    let condition = |type_: &str, status: &str, reason: &str, message: &str| {
        json!({"type": type_, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": time, "lastTransitionTime": time})
    };
    let features: &[&str] = if node.declares_restart_all {
        &[FEATURE_RESTART_ALL]
    } else {
        &[]
    };
    json!({
        "capacity": resources(options),
        "allocatable": resources(options),
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ],
        "addresses": [
            {"type": "InternalIP", "address": node.ip},
            {"type": "Hostname", "address": node.name},
        ],
        "declaredFeatures": features,
        "nodeInfo": {
            "kubeletVersion": options.kubelet_version, "containerRuntimeVersion": "hollow://1", "kubeProxyVersion": "",
            "operatingSystem": "linux", "architecture": "amd64", "osImage": "hollow", "kernelVersion": "6.1.0",
            "machineID": node.name, "systemUUID": node.name, "bootID": node.name,
        },
    })
}

fn micro(t: DateTime<Utc>) -> String {
    t.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// Renews the Leases of all nodes that are up, spread evenly over the period, until dropped.
pub(super) async fn keep_leases(
    client: Client,
    options: Options,
    nodes: Vec<Arc<NodeInfo>>,
    clock: Clock,
) {
    let gap = options.renew() / u32::try_from(nodes.len().max(1)).unwrap_or(u32::MAX);
    let mut due = Instant::now();
    let turns = stream::iter((0..nodes.len()).cycle());
    turns
        .then(|i| {
            due += gap;
            let due = due;
            async move {
                sleep_until(due).await;
                i
            }
        })
        .for_each_concurrent(CONCURRENCY, |i| {
            let (client, node, seconds) = (&client, &nodes[i], options.lease_seconds);
            async move {
                if !node.up.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(error) = renew(client, node, seconds, clock.now()).await {
                    warn!(node = node.name, error = %error, "cannot renew the node's lease");
                }
            }
        })
        .await;
}

/// Reports a node as ready again if the API server has another state although the node is up, for
/// example after a late lease.
pub(super) async fn keep_ready(
    client: Client,
    options: Options,
    nodes: Vec<Arc<NodeInfo>>,
    clock: Clock,
) {
    let by_name: BTreeMap<_, _> = nodes.iter().map(|n| (n.name.clone(), n.clone())).collect();
    let mut doubted: BTreeSet<String> = BTreeSet::new();
    loop {
        let config = kube::runtime::watcher::Config::default();
        let mut seen = std::pin::pin!(kube::runtime::WatchStreamExt::default_backoff(
            kube::runtime::watcher(Api::<Node>::all(client.clone()), config)
        ));
        while let Some(event) = seen.next().await {
            let Ok(
                kube::runtime::watcher::Event::Apply(node)
                | kube::runtime::watcher::Event::InitApply(node),
            ) = event
            else {
                continue;
            };
            let Some(info) = node.metadata.name.as_ref().and_then(|n| by_name.get(n)) else {
                continue;
            };
            let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
            let ready = conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True");
            if ready || !info.up.load(Ordering::Relaxed) {
                doubted.remove(&info.name);
            } else if doubted.insert(info.name.clone())
                && let Err(error) = come_back(&client, &options, info, clock.now()).await
            {
                warn!(node = info.name, error = %error, "cannot post the node's status");
                doubted.remove(&info.name);
            }
        }
    }
}
