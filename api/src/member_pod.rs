//! Pods of members: labels, annotations and exit codes.

use std::collections::BTreeMap;

use crate::member::Member;
use crate::names::{annotations, labels, member_of};
use crate::tier::Tier;

/// Annotation with the name of the training container, because runtimes list containers in no
/// particular order.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// True for SIGKILL or SIGTERM from outside the container, not by its own memory limit.
pub fn looks_killed(code: i32, reason: &str) -> bool {
    matches!(code, 137 | 143) && reason != "OOMKilled"
}

/// Lockstep's labels and annotations of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `None` if the labels name no member.
    pub member: Option<Member>,
    /// Whether DNS publishes the pod before it is ready.
    pub published: bool,
    /// Hash of the spec by which the pod was created.
    pub spec_hash: String,
    /// How the pod restarts in place.
    pub tier: Option<Tier>,
    /// Attempt of its restart domain at its creation.
    pub attempt: i64,
    /// Id of the placement by which the pod was created.
    pub placement: String,
    /// Name of its native pod group, from the spec.
    pub native_group: Option<String>,
}

impl Identity {
    /// Reads labels and annotations. Invalid values of other clients count as absent.
    pub fn read(
        pod_labels: &BTreeMap<String, String>,
        pod_annotations: &BTreeMap<String, String>,
    ) -> Self {
        Self {
            member: member_of(pod_labels),
            published: pod_labels.contains_key(labels::PUBLISHED),
            spec_hash: text_of(pod_annotations, annotations::SPEC_HASH).to_owned(),
            tier: text_of(pod_annotations, annotations::TIER).parse().ok(),
            attempt: text_of(pod_annotations, annotations::ATTEMPT)
                .parse()
                .unwrap_or_default(),
            placement: text_of(pod_annotations, annotations::PLACEMENT).to_owned(),
            native_group: None,
        }
    }
}

fn text_of<'a>(annotations: &'a BTreeMap<String, String>, key: &str) -> &'a str {
    let value = annotations.get(key);
    value.map(String::as_str).unwrap_or_default()
}
