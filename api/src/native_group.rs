//! Native groups: `Workload` and `PodGroup` of Kubernetes' own group `scheduling.k8s.io` (KEP-4671),
//! and which parts of them an API server supports.

use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use serde_json::json;

use crate::names::short_hash;

/// API group of the native kinds.
pub const NATIVE_GROUP: &str = "scheduling.k8s.io";
/// The version of native groups that Lockstep creates. In `v1alpha2` of Kubernetes 1.36, `minCount`
/// cannot be lowered.
pub const NATIVE_VERSION: &str = "v1beta1";
/// Resource of the native pod groups.
pub const NATIVE_POD_GROUPS: &str = "podgroups";
/// Resource of the native groups of pod groups.
pub const NATIVE_COMPOSITES: &str = "compositepodgroups";

/// What an API server supports of native groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NativeSupport {
    /// Versions that serve pod groups, the server's preferred version first.
    pub versions: Vec<String>,
    /// Handling of `spec.schedulingGroup` of pods.
    pub pod_field: PodField,
}

/// Whether the API server keeps `spec.schedulingGroup` of a pod. With feature gate
/// `GenericWorkload` off, it drops the field without an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum PodField {
    /// Not tested: no version serves pod groups, or the dry run was refused.
    #[default]
    Unknown,
    /// Kept.
    Kept,
    /// Dropped.
    Dropped,
}

impl PodField {
    /// The state that the answer to a dry run of [`probe`] shows.
    pub fn read(stored: &Pod) -> Self {
        let spec = stored.spec.as_ref();
        match spec.and_then(|s| s.scheduling_group.as_ref()) {
            Some(_) => Self::Kept,
            None => Self::Dropped,
        }
    }

    /// The state in lower case, for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Kept => "kept",
            Self::Dropped => "dropped",
        }
    }
}

impl NativeSupport {
    /// Why Lockstep can create no native groups. `None` if it can.
    pub fn missing(&self) -> Option<String> {
        if self.versions.is_empty() {
            return Some(format!("{NATIVE_GROUP} serves no pod groups"));
        }
        if !self.versions.iter().any(|v| v == NATIVE_VERSION) {
            let served = self.versions.join(", ");
            return Some(format!(
                "{NATIVE_GROUP} serves pod groups in {served}, and Lockstep creates them in {NATIVE_VERSION}"
            ));
        }
        match self.pod_field {
            PodField::Kept => None,
            PodField::Dropped => Some(
                "the API server drops spec.schedulingGroup of pods: its feature gate GenericWorkload is off"
                    .to_owned(),
            ),
            PodField::Unknown => Some(
                "a dry run could not show whether the API server keeps spec.schedulingGroup of pods"
                    .to_owned(),
            ),
        }
    }
}

/// Name of the native pod group of a gang, from the name of the gang's `PodGroup`. A deleted native
/// pod group keeps its name until its pods have ended, so each set of pods needs another name.
pub fn native_pod_group_name(pod_group: &str, placement: &str, attempt: i64) -> String {
    let hash = short_hash(&[placement, &attempt.to_string()]);
    format!("{pod_group}-{hash}")
}

/// A pod for a dry run that shows whether the API server keeps `spec.schedulingGroup`. It meets the
/// restricted pod security standard and states requests and limits, so that quotas admit it.
pub fn probe() -> Pod {
    let amounts = json!({"cpu": "1m", "memory": "1Mi"});
    let pod = json!({
        "metadata": {"name": "lockstep-scheduling-group"},
        "spec": {
            "schedulingGroup": {"podGroupName": "lockstep-scheduling-group"},
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "probe",
                "image": "registry.invalid/probe",
                "resources": {"requests": amounts, "limits": amounts},
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "runAsNonRoot": true,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
        },
    });
    serde_json::from_value(pod).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn support(versions: &[&str], pod_field: PodField) -> NativeSupport {
        NativeSupport {
            versions: versions.iter().map(|&v| v.to_owned()).collect(),
            pod_field,
        }
    }

    #[test]
    fn native_groups_need_v1beta1_and_the_field_of_pods() {
        assert_eq!(support(&["v1beta1"], PodField::Kept).missing(), None);
        let both = &["v1alpha3", "v1beta1"];
        assert_eq!(support(both, PodField::Kept).missing(), None);
        for (versions, field, part) in [
            (&[][..], PodField::Unknown, "serves no pod groups"),
            (&["v1alpha2"], PodField::Kept, "in v1alpha2, and"),
            (&["v1alpha3"], PodField::Kept, "in v1alpha3, and"),
            (&["v1beta1"], PodField::Dropped, "GenericWorkload is off"),
            (&["v1beta1"], PodField::Unknown, "could not show"),
        ] {
            let why = support(versions, field).missing().unwrap();
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn the_probe_names_a_group() {
        assert_eq!(PodField::read(&probe()), PodField::Kept);
        assert_eq!(PodField::read(&Pod::default()), PodField::Dropped);
    }
}
