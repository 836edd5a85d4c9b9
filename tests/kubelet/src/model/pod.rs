//! A pod according to the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

/// A pod with the fields that its kubelet needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodDesc {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Generation of the object, repeated in the status.
    pub generation: Option<i64>,
    /// The spec.
    pub spec: PodSpec,
    /// Grace period of a requested deletion.
    pub deletion: Option<Duration>,
    /// True if the object is gone from the API server (a forced deletion). Then nothing is written
    /// any more.
    pub gone: bool,
}

/// Kinds of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Runs to its end before the next container starts.
    Init,
    /// Init container with restartPolicy Always, which runs at the same time as the regular
    /// containers.
    Sidecar,
    /// One of `spec.containers`.
    Regular,
}

impl PodDesc {
    /// Converts an API object. `None` if it lacks name, UID or spec.
    pub fn from_api(pod: Pod) -> Option<Self> {
        let meta = pod.metadata;
        let grace = meta.deletion_grace_period_seconds.unwrap_or(0);
        Some(Self {
            namespace: meta.namespace?,
            name: meta.name?,
            uid: meta.uid?,
            labels: meta.labels.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
            generation: meta.generation,
            spec: pod.spec?,
            deletion: meta
                .deletion_timestamp
                .map(|_| Duration::from_secs(u64::try_from(grace).unwrap_or(0))),
            gone: false,
        })
    }

    /// Init containers and sidecars in order, then regular containers.
    pub fn containers(&self) -> impl Iterator<Item = (Kind, &Container)> {
        let init = self.spec.init_containers.iter().flatten();
        init.map(|c| (init_kind(c), c))
            .chain(self.spec.containers.iter().map(|c| (Kind::Regular, c)))
    }

    /// Containers of one kind, in order.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Container> {
        self.containers()
            .filter(move |(k, _)| *k == kind)
            .map(|(_, c)| c)
    }

    /// True if a container has a rule that restarts all containers.
    pub fn has_restart_all_rule(&self) -> bool {
        self.containers().any(|(_, c)| {
            c.restart_policy_rules
                .iter()
                .flatten()
                .any(|r| r.action == super::exit::RESTART_ALL)
        })
    }

    /// Grace period of the spec, with the API server's default.
    pub fn spec_grace(&self) -> Duration {
        let seconds = self.spec.termination_grace_period_seconds.unwrap_or(30);
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    }
}

fn init_kind(c: &Container) -> Kind {
    if c.restart_policy.as_deref() == Some("Always") {
        Kind::Sidecar
    } else {
        Kind::Init
    }
}
