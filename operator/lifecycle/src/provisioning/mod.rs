//! Objects by which a node autoscaler learns which nodes waiting gangs lack.
//!
//! [`plan`] is a function of the node demand of all gangs and of the objects that exist. It is
//! level-triggered: it deletes what belongs to no demand, so a pass continues from any intermediate
//! state. A demand is shown whole or not at all: the autoscaler sees the signal pods of a gang, or its
//! request, only when all of them, or all templates, exist.

mod actions;
mod demand_pod;
mod input;
mod requests;
mod signal_pods;

use lockstep_api::scheduling::AutoscalerMode;

pub use self::actions::{ProvisioningAction, ProvisioningPlan};
pub use self::input::{
    AdmittedTemplate, DemandingGang, HeldObject, ProvisioningSettings, ProvisioningView, SignalPod,
    SignalStage,
};

/// Decides what to create, show and delete.
pub fn plan(view: &ProvisioningView, settings: &ProvisioningSettings) -> ProvisioningPlan {
    let mut gangs: Vec<&DemandingGang> = view.gangs.iter().collect();
    gangs.sort_by_key(|gang| gang.position());
    let mut plan = ProvisioningPlan::default();
    // What another mode has left is deleted.
    let (for_pods, for_requests) = match settings.mode {
        AutoscalerMode::Off => (&[][..], &[][..]),
        AutoscalerMode::Pods => (&gangs[..], &[][..]),
        AutoscalerMode::ProvisioningRequest => (&[][..], &gangs[..]),
    };
    signal_pods::plan(view, for_pods, settings, &mut plan);
    if view.serves_requests {
        requests::plan(view, for_requests, settings, &mut plan);
    }
    plan
}
