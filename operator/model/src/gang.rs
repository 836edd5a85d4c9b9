//! Gangs as read from their objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::ids::NodeName;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::annotations;
use lockstep_api::scheduling::Placement;

pub type Assignments = BTreeMap<Member, NodeName>;

/// Whether a gang may have or get capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangPhase {
    /// Ended, or being deleted. Its pods are deleted, and no capacity is kept.
    Finished,
    /// Requests no capacity now, for this reason.
    NotRequesting(&'static str),
    /// Requests capacity, or has it.
    Active,
}

/// Node of each member in a placement. Ignores invalid ranges, which other clients wrote and the
/// scheduler will overwrite.
pub fn assignments(placement: &Placement) -> Assignments {
    let mut out = Assignments::new();
    for at in &placement.nodes {
        let Some(node) = NodeName::read(Some(&at.node)) else {
            continue;
        };
        for member in MemberSet::parse(&at.members).unwrap_or_default() {
            out.insert(member, node.clone());
        }
    }
    out
}

/// Priority of running gangs of this class as victims (`preemptionPriority` in the future section
/// of KEP-5710). An annotation of the `PriorityClass`, because users could make their own workloads
/// immune. An invalid number counts as absent.
pub fn preemption_priority(class: &ObjectMeta) -> Option<i32> {
    class
        .annotations
        .as_ref()?
        .get(annotations::PREEMPTION_PRIORITY)?
        .parse()
        .ok()
}
