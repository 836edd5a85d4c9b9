//! Pods and nodes as inputs of decisions about a workload.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1 as core;
use lockstep_api::ids::Uid;
use lockstep_api::member_pod::Identity;
use lockstep_api::time::utc;
use lockstep_lifecycle::PodView;
use lockstep_lifecycle::nodes::NodeInfo;
use lockstep_lifecycle::pods::{
    ConditionView, ContainerState, ContainerView, END_AT_ONCE, PodPhase, Termination,
};
use lockstep_model::parse::partial::{PartialNode, PartialPod};
use lockstep_model::pods::pod::{Stage, workload_of};
use lockstep_model::pods::pod_view::{ContainerStatusView, PartialCondition};
use lockstep_model::{Node, Pod};

/// A pod and the UID of its controlling workload. Only owner references decide about membership.
/// Fields that the scheduler needs too are parsed once.
pub fn member(partial: &PartialPod, pod: &Pod) -> Option<(Uid, PodView)> {
    let none = BTreeMap::new();
    let pod_labels = partial.metadata.labels.as_ref().unwrap_or(&none);
    let annotations = partial.metadata.annotations.as_ref().unwrap_or(&none);
    let workload = Uid::read(Some(&workload_of(&partial.metadata)?.uid))?;
    let status = &partial.status;
    let view = PodView {
        name: pod.name.to_string(),
        uid: pod.uid.clone(),
        owner_uid: workload.clone(),
        identity: Identity {
            native_group: partial.spec.group().map(str::to_owned),
            ..Identity::read(pod_labels, annotations)
        },
        node: pod.bound.clone().map(String::from),
        pinned: pod.pinned.clone().map(String::from),
        nominated: pod.nominated.clone().map(String::from),
        priority: partial.spec.priority,
        gated: pod.stage == Stage::Gated,
        foreign_gate: pod.foreign_gate.as_deref().map(str::to_owned),
        ends_at_once: partial.spec.active_deadline_seconds == Some(END_AT_ONCE),
        created_at: partial
            .metadata
            .creation_timestamp
            .as_ref()
            .and_then(utc)
            .unwrap_or_default(),
        deletion_timestamp: partial.metadata.deletion_timestamp.as_ref().and_then(utc),
        deletion_requested_at: deletion_requested_at(partial),
        deletion_received_at: None,
        deletion_grace: partial.metadata.deletion_grace_period_seconds.unwrap_or(0),
        phase: PodPhase::from(status.phase.as_str()),
        reason: status.reason.clone(),
        message: status.message.clone(),
        pod_ip: status.pod_ip.clone(),
        conditions: status
            .conditions
            .iter()
            .map(|c| (c.type_.clone(), condition(c)))
            .collect(),
        containers: status
            .init_container_statuses
            .iter()
            .map(|c| (c, true))
            .chain(status.container_statuses.iter().map(|c| (c, false)))
            .map(|(c, init)| (c.name.clone(), container(c, init)))
            .collect(),
    };
    Some((workload, view))
}

fn condition(c: &PartialCondition) -> ConditionView {
    ConditionView {
        status: c.status.clone(),
        reason: c.reason.clone().unwrap_or_default(),
        message: c.message.clone().unwrap_or_default(),
        since: c.last_transition_time.as_ref().and_then(utc),
    }
}

fn container(c: &ContainerStatusView, init: bool) -> ContainerView {
    ContainerView {
        init,
        ready: c.ready,
        restart_count: c.restart_count,
        id: c.container_id.clone().filter(|id| !id.is_empty()),
        state: if let Some(t) = &c.state.terminated {
            ContainerState::Terminated(termination(t))
        } else if let Some(r) = &c.state.running {
            ContainerState::Running {
                started_at: r.started_at.as_ref().and_then(utc),
            }
        } else {
            let waiting = c.state.waiting.clone().unwrap_or_default();
            ContainerState::Waiting {
                reason: waiting.reason.unwrap_or_default(),
                message: waiting.message.unwrap_or_default(),
            }
        },
        last: c.last_state.terminated.as_ref().map(termination),
    }
}

fn termination(t: &core::ContainerStateTerminated) -> Termination {
    Termination {
        exit_code: t.exit_code,
        reason: t.reason.clone().unwrap_or_default(),
        message: t.message.clone().unwrap_or_default(),
        finished_at: t.finished_at.as_ref().and_then(utc),
        id: t.container_id.clone(),
    }
}

/// The deletion timestamp is the end of the grace period. Without a grace period, it is the time of
/// the last request (`rest.BeforeDelete`), which says nothing about the first.
fn deletion_requested_at(partial: &PartialPod) -> Option<DateTime<Utc>> {
    let over = partial.metadata.deletion_timestamp.as_ref().and_then(utc)?;
    let grace = partial
        .metadata
        .deletion_grace_period_seconds
        .filter(|seconds| *seconds > 0)?;
    Some(over - TimeDelta::try_seconds(grace)?)
}

/// Leaves `ready_since` unset.
pub fn node_info(partial: &PartialNode, node: &Node) -> NodeInfo {
    NodeInfo {
        signals: Vec::new(),
        machine: partial.spec.provider_id.clone(),
        boot: partial.status.node_info.boot_id.clone(),
        not_ready_since: partial.not_ready_since(),
        became_ready: partial.became_ready(),
        ready_since: None,
        state: node.state,
        zone: zone_of(partial.metadata.labels.as_ref()),
        declared_features: partial.status.declared_features.clone(),
        kubelet_version: partial.status.node_info.kubelet_version.clone(),
        runtime_version: partial.status.node_info.container_runtime_version.clone(),
    }
}

/// Region and zone, by which the node lifecycle controller separates zones. Empty without labels.
fn zone_of(labels: Option<&BTreeMap<String, String>>) -> String {
    let label = |name| labels.and_then(|l| l.get(name)).map_or("", String::as_str);
    let region = label("topology.kubernetes.io/region");
    let zone = label("topology.kubernetes.io/zone");
    if region.is_empty() && zone.is_empty() {
        return String::new();
    }
    format!("{region}/{zone}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_member_view_has_container_states_and_the_time_of_the_deletion_request() {
        let partial: PartialPod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ml", "uid": "u", "resourceVersion": "9",
                "creationTimestamp": "2026-11-21T10:00:00Z",
                "deletionTimestamp": "2026-11-21T10:02:30Z", "deletionGracePeriodSeconds": 30,
                "ownerReferences": [{"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
                    "name": "llama", "uid": "w", "controller": true}]},
            "spec": {"nodeName": "n1", "containers": [{"name": "t", "image": "i"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T10:00:05Z"}],
                "containerStatuses": [{"name": "t", "ready": true, "restartCount": 1, "containerID": "containerd://b",
                    "image": "i", "imageID": "",
                    "state": {"running": {"startedAt": "2026-11-21T10:00:04Z"}},
                    "lastState": {"terminated": {"exitCode": 137, "reason": "Error", "containerID": "containerd://a"}}}]},
        }))
        .unwrap();
        let (uid, view) = member(&partial, &partial.scheduling().unwrap()).unwrap();
        let c = view.containers.get("t").unwrap();
        assert_eq!(
            (uid.as_str(), view.node.as_deref(), view.phase),
            ("w", Some("n1"), PodPhase::Running)
        );
        assert_eq!(
            (c.ready, c.restart_count, c.id.as_deref()),
            (true, 1, Some("containerd://b"))
        );
        assert_eq!(
            view.deletion_requested_at.unwrap().to_rfc3339(),
            "2026-11-21T10:02:00+00:00"
        );
        assert_eq!(
            view.ends_at().unwrap().to_rfc3339(),
            "2026-11-21T10:02:30+00:00"
        );
        assert!(c.running());
        assert_eq!(c.last.as_ref().map(|t| t.exit_code), Some(137));
    }
}
