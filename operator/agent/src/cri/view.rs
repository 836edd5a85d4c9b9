//! Converts the runtime's lists to pods of members. Pure.

use std::collections::BTreeMap;

use chrono::DateTime;
use lockstep_api::names::labels;
use lockstep_node::ObservedContainer;

use super::api::{Container, ContainerState, PodSandbox};
use super::exits::{Exits, restarts};
use crate::runtime::Sandbox;

/// The agent never stops pods of this namespace, whatever their labels.
const PROTECTED_NAMESPACE: &str = "kube-system";

#[derive(Debug)]
pub(super) struct Pod {
    pub uid: String,
    namespace: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    /// Ids of the pod's sandboxes; several during a replacement.
    sandboxes: Vec<String>,
}

/// Pods of members, sorted by UID. Labels and annotations are from the newest sandbox.
pub(super) fn pods(mut sandboxes: Vec<PodSandbox>) -> Vec<Pod> {
    sandboxes.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
    for sandbox in sandboxes {
        let metadata = sandbox.metadata.unwrap_or_default();
        let member = sandbox.labels.contains_key(labels::WORKLOAD_UID);
        if !member || metadata.uid.is_empty() || metadata.namespace == PROTECTED_NAMESPACE {
            continue;
        }
        let mut ids = pods
            .remove(&metadata.uid)
            .map(|p| p.sandboxes)
            .unwrap_or_default();
        ids.push(sandbox.id);
        let pod = Pod {
            uid: metadata.uid.clone(),
            namespace: metadata.namespace,
            labels: sandbox.labels.into_iter().collect(),
            annotations: sandbox.annotations.into_iter().collect(),
            sandboxes: ids,
        };
        pods.insert(metadata.uid, pod);
    }
    pods.into_values().collect()
}

/// Pairs the members' containers with their pods. A container names only its sandbox.
pub(super) fn join<'a>(
    pods: &'a [Pod],
    containers: &'a [Container],
) -> impl Iterator<Item = (&'a Pod, &'a Container)> {
    let by_sandbox: BTreeMap<&str, &Pod> = pods
        .iter()
        .flat_map(|p| p.sandboxes.iter().map(move |id| (id.as_str(), p)))
        .collect();
    containers
        .iter()
        .filter_map(move |c| Some((*by_sandbox.get(c.pod_sandbox_id.as_str())?, c)))
}

/// Each pod with running containers from the listing and ended containers from the known exits.
pub(super) fn sandboxes(pods: Vec<Pod>, containers: &[Container], exits: &Exits) -> Vec<Sandbox> {
    let mut running: BTreeMap<String, Vec<(String, ObservedContainer)>> = BTreeMap::new();
    for (pod, container) in join(&pods, containers) {
        // A container in state Unknown may still run.
        let runs = matches!(
            container.state(),
            ContainerState::ContainerRunning | ContainerState::ContainerUnknown
        );
        if !runs || exits.contains(&pod.uid, &container.id) {
            continue;
        }
        let metadata = container.metadata.clone().unwrap_or_default();
        let created_at = DateTime::from_timestamp_nanos(container.created_at);
        let observed = ObservedContainer {
            id: container.id.clone(),
            restarts: restarts(metadata.attempt),
            created_at,
            exit: None,
        };
        running
            .entry(pod.uid.clone())
            .or_default()
            .push((metadata.name, observed));
    }
    let mut out = Vec::with_capacity(pods.len());
    for pod in pods {
        let mut by_name: BTreeMap<String, Vec<ObservedContainer>> = BTreeMap::new();
        for (name, container) in exits
            .of(&pod.uid)
            .cloned()
            .chain(running.remove(&pod.uid).unwrap_or_default())
        {
            by_name.entry(name).or_default().push(container);
        }
        out.push(Sandbox {
            pod_uid: pod.uid,
            namespace: pod.namespace,
            labels: pod.labels,
            annotations: pod.annotations,
            containers: by_name,
        });
    }
    out
}
