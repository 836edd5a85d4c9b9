use std::collections::BTreeMap;

use lockstep_api::provisioning::SIGNAL_NAMESPACE;
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_scheduler::config::{ValueRule, time};
use serde::{Deserialize, Serialize};

use super::{Span, secs};

/// Upper bound of `maxPods`.
const MAX_PODS: usize = 10_000;
/// Most parameters of a `ProvisioningRequest`.
const MAX_PARAMETERS: usize = 100;

/// Nodes on demand: what a node autoscaler is asked for, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AutoscalerConfig {
    /// How the autoscaler learns which nodes waiting gangs lack.
    pub mode: AutoscalerMode,
    /// For this time after a gang has begun to wait, new nodes are preferred to preemption. 0: a gang
    /// preempts at once, and only gangs that may not or cannot preempt demand nodes. 0s to 24h.
    pub scale_up_before_preemption: Span,
    /// Namespace of signal pods (mode Pods). The optional component creates it, for signal pods only.
    pub namespace: String,
    /// Most signal pods at once, 1 to 10000. A gang whose pods would exceed it waits for others; a gang
    /// larger than this demands no nodes.
    pub max_pods: usize,
    /// Class of each `ProvisioningRequest`. Annotation `training.lockstep.dev/provisioning-class` of a
    /// workload overrides it.
    pub provisioning_class: String,
    /// Parameters of each `ProvisioningRequest`, at most 100. Annotations of a workload that begin with
    /// `provreq.training.lockstep.dev/` add or replace single ones.
    pub parameters: BTreeMap<String, String>,
    /// Whether members get the marks against consolidation: annotations
    /// `cluster-autoscaler.kubernetes.io/safe-to-evict: "false"` and `karpenter.sh/do-not-disrupt: "true"`,
    /// unless the template has them.
    pub protect_members: bool,
}

impl Default for AutoscalerConfig {
    fn default() -> Self {
        Self {
            mode: AutoscalerMode::Off,
            scale_up_before_preemption: secs(0),
            namespace: SIGNAL_NAMESPACE.into(),
            max_pods: 1000,
            provisioning_class: "best-effort-atomic-scale-up.autoscaling.x-k8s.io".into(),
            parameters: BTreeMap::new(),
            protect_members: true,
        }
    }
}

impl AutoscalerConfig {
    pub(super) fn rules(&self) -> [ValueRule; 5] {
        let wait = self.scale_up_before_preemption;
        [
            ValueRule::new(
                !wait.is_negative() && time(wait).as_secs() <= 24 * 3600,
                "autoscaler.scaleUpBeforePreemption",
                wait,
                "at least 0s and at most 24h",
            ),
            ValueRule::new(
                !self.namespace.is_empty(),
                "autoscaler.namespace",
                &self.namespace,
                "the name of a namespace",
            ),
            ValueRule::new(
                (1..=MAX_PODS).contains(&self.max_pods),
                "autoscaler.maxPods",
                self.max_pods,
                "1 to 10000",
            ),
            ValueRule::new(
                !self.provisioning_class.is_empty(),
                "autoscaler.provisioningClass",
                &self.provisioning_class,
                "the name of a provisioning class",
            ),
            ValueRule::new(
                self.parameters.len() <= MAX_PARAMETERS,
                "autoscaler.parameters",
                self.parameters.len(),
                "at most 100",
            ),
        ]
    }
}
