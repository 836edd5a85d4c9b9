//! Messages about nodes on demand.

use lockstep_api::condition::reasons;
use lockstep_api::scheduling::{NodeDemand, PodGroupStatus};
use lockstep_api::words::{nodes_requested, span, time};

use crate::memory::backoff::next_try_at;

/// Why a try of mode Pods has failed.
pub(crate) const IN_VAIN: &str =
    "nodes have come, but they do not meet the required levels of scheduling.topology";
/// Why a try of mode `ProvisioningRequest` has failed.
pub(crate) const PROVISIONED_IN_VAIN: &str =
    "the request was provisioned 10 min ago, and the gang still does not fit";
pub(crate) const REQUEST_FAILED: &str = "the autoscaler refuses the request (Failed)";
pub(crate) const BOOKING_EXPIRED: &str =
    "the autoscaler no longer keeps the nodes for the gang (BookingExpired)";
pub(crate) const CAPACITY_REVOKED: &str = "the autoscaler removes the nodes (CapacityRevoked)";

/// Adds the words of the autoscaler.
pub(crate) fn with_words(what: &str, words: &str) -> String {
    match words.trim().trim_end_matches('.') {
        "" => what.to_owned(),
        words => format!("{what}: {words}"),
    }
}

/// Adds the node demand to the reason why a gang waits.
pub(crate) fn with_demand(waiting: &str, demand: &NodeDemand) -> String {
    if demand.is_open() {
        let requested = nodes_requested(waiting, demand.since, demand.number);
        return with_words(&requested, &demand.message);
    }
    format!("{waiting}; {}", failed(demand))
}

fn failed(demand: &NodeDemand) -> String {
    let NodeDemand {
        number, message, ..
    } = demand;
    match next_try_at(demand) {
        Some(at) => format!(
            "the nodes of try {number} did not suffice: {message}; next try at {}",
            time(at)
        ),
        None => format!(
            "no more nodes are requested before a spec change, after {number} tries: {message}"
        ),
    }
}

/// An event about the node demand of a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandEvent {
    /// True if an operator may have to act.
    pub warning: bool,
    /// From the table of reasons.
    pub reason: &'static str,
    pub note: String,
}

impl DemandEvent {
    /// The event of a status write, if it opens, ends or fails a try.
    pub fn between(before: &PodGroupStatus, after: &PodGroupStatus) -> Option<Self> {
        let old = before.demand.as_ref().filter(|demand| demand.is_open());
        if let (Some(old), Some(placement)) = (old, &after.placement)
            && before.placement.is_none()
            && after.preemption.is_none()
        {
            let took = placement.decided_at - old.requested_at;
            return Some(Self {
                warning: false,
                reason: reasons::NODES_PROVIDED,
                note: format!(
                    "the gang is placed {} after nodes were requested for it",
                    span(took.num_seconds())
                ),
            });
        }
        let new = after.demand.as_ref()?;
        let same = before.demand.as_ref().filter(|old| old.since == new.since);
        if !new.is_open() {
            return same.is_none_or(NodeDemand::is_open).then(|| Self {
                warning: true,
                reason: reasons::NODES_NOT_PROVIDED,
                note: failed(new),
            });
        }
        same.is_none().then(|| Self {
            warning: false,
            reason: reasons::NODES_REQUESTED,
            note: format!(
                "nodes are requested from the autoscaler (try {})",
                new.number
            ),
        })
    }
}
