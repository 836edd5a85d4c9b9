//! What objects say about a gang.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::ids::NodeName;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::annotations;
use lockstep_api::scheduling::Placement;

/// Node of each placed member.
pub type Assignments = BTreeMap<Member, NodeName>;

/// Whether a gang may have or get capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangPhase {
    /// It ended, or is being deleted: its pods go, and nothing is kept for it.
    Finished,
    /// It does not request capacity now, for this reason.
    NotRequesting(&'static str),
    /// It requests capacity, or has it.
    Active,
}

/// The placement's node of each member. A range that does not parse places no member: it is not
/// ours, and the placement is written again.
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

/// Priority that gangs of a class have as victims once they run (`preemptionPriority` of KEP-5710's
/// future section): an annotation of the `PriorityClass`, since a user who may set it for
/// a workload could make that immune. A value that is not a number counts as absent.
pub fn preemption_priority(class: &ObjectMeta) -> Option<i32> {
    class
        .annotations
        .as_ref()?
        .get(annotations::PREEMPTION_PRIORITY)?
        .parse()
        .ok()
}
