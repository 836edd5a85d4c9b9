use lockstep_api::scheduling::AutoscalerMode;

use super::{Finding, ok, some, unseen, warn};
use crate::doctor_facts::{AutoscalerFacts, InstallFacts};

pub(super) fn autoscaler(facts: &InstallFacts) -> Finding {
    let Some(found) = &facts.autoscaler else {
        return unseen("the manager's configuration");
    };
    let component = match found.mode {
        AutoscalerMode::Off if found.karpenter || found.serves_requests => {
            return ok("off: waiting gangs demand no nodes");
        }
        AutoscalerMode::Off => return ok("off"),
        AutoscalerMode::ProvisioningRequest => "provisioning-requests",
        AutoscalerMode::Pods => "signal-pods",
    };
    if let Some(lacks) = found.lacks.as_ref().filter(|lacks| !lacks.is_empty()) {
        return warn(format!(
            "no node is requested, because the manager may not {}: apply config/components/{component}",
            some(lacks)
        ));
    }
    match found.mode {
        AutoscalerMode::Pods => signal_pods(found),
        _ if found.serves_requests => ok("waiting gangs demand nodes by ProvisioningRequests"),
        _ => warn(
            "no node is requested, because the API server serves no ProvisioningRequests: apply the definition of Cluster Autoscaler, and set its flag --enable-provisioning-requests",
        ),
    }
}

fn signal_pods(found: &AutoscalerFacts) -> Finding {
    let namespace = &found.namespace;
    match found.namespace_exists {
        None => unseen("namespaces"),
        Some(false) => warn(format!(
            "no node is requested, because namespace {namespace} does not exist: apply config/components/signal-pods"
        )),
        Some(true) if found.karpenter => ok(format!(
            "signal pods in {namespace}; Karpenter is installed"
        )),
        Some(true) => ok(format!(
            "signal pods in {namespace}; Karpenter is not installed"
        )),
    }
}
