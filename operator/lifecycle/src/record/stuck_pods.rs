//! Stage 06: nodes on which pods do not end. The gang avoids such a node before it deletes the pod
//! by force: the processes may still use devices, ports and volumes.

use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::ids::NodeName;

use crate::facts::{Facts, PlacementState, Standing};
use crate::ledger::{Avoidance, Ledger};
use crate::pods::PodView;

pub(super) fn avoid_stuck_nodes(facts: &Facts<'_>, ledger: &mut Ledger) {
    for gang in &facts.gangs {
        let Some(entry) = ledger.gang(&gang.key) else {
            continue;
        };
        let placed = match facts.placement_state(&gang.key, entry) {
            PlacementState::Unplaced => continue,
            PlacementState::Placed(_) => true,
            PlacementState::Released => false,
        };
        let avoidances = stuck_nodes(facts, ledger, gang, placed);
        for (node, avoidance) in avoidances {
            ledger.avoid_node(&gang.key, node, avoidance);
        }
    }
}

/// `placed`: the end of current pods is neither awaited nor forced.
fn stuck_nodes(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    placed: bool,
) -> Vec<(NodeName, Avoidance)> {
    let settings = facts.view.settings();
    let mut awaited: Vec<&PodView> = Vec::new();
    for domain in &gang.domains {
        let entry = ledger.domain(&domain.key).filter(|_| placed);
        for member in &domain.members {
            let current = entry.and_then(|e| facts.current(e, member));
            let pods = facts.pods_of(member).iter().copied();
            awaited.extend(pods.filter(|p| current.is_none_or(|c| c.uid != p.uid)));
        }
    }
    let mut out = Vec::new();
    for pod in awaited {
        // Independent of `now`, so recorded only once.
        let until = facts.view.stuck_from(pod).map(|from| from + settings.avoid);
        if let (Some(until), Some(node)) = (until, NodeName::read(pod.node.as_deref()))
            && facts.standing(pod) == Standing::Stuck
        {
            out.push((node, Avoidance::new(reasons::POD_STUCK, until)));
        }
    }
    out
}
