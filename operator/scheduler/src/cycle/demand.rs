//! Node demands: which waiting gangs request nodes from a node autoscaler, and when a try has failed.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::names::provisioning_request_name;
use lockstep_api::scheduling::{
    AutoscalerMode, LastPreemption, NodeDemand, ProvisioningPhase, ProvisioningState,
};
use lockstep_api::workload::TopologyMode;
use lockstep_model::QueueReservation;

use super::place::{attempt, capacity_for, placement_request};
use super::state::Cycle;
use crate::context::Context;
use crate::gang::pending::{NoPreemption, Pending};
use crate::gang::state::GangState;
use crate::input::hold::{GangPhase, Hold};
use crate::memory::backoff::next_try_at;
use crate::memory::equivalence_class::Request;
use crate::messages::demand as messages;
use crate::refusal::CLAIM_IN_USE;

/// How long the demanded nodes must be there without a placement of the gang, so that a try has
/// failed.
const IN_VAIN: Duration = Duration::from_mins(1);

/// The same for a request that is Provisioned: as long as autoscalers keep the nodes.
const BOOKED: Duration = Duration::from_mins(10);

/// Whether a gang lacks nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Nodes,
    /// This cycle does not know.
    Unknown,
    Nothing,
}

impl Cycle<'_> {
    /// Opens, fails and removes node demands. Without an autoscaler, no gang has one.
    pub(super) fn decide_demands(&mut self) {
        for at in 0..self.gangs.len() {
            let before = &self.gangs[at].status.demand;
            if self.context.settings.autoscaler == AutoscalerMode::Off && before.is_none() {
                continue;
            }
            let demand = self.demand(at);
            if !demand.as_ref().is_some_and(NodeDemand::is_open) {
                let since = &mut self.memory.fits_without_levels_since;
                since.remove(self.gangs[at].uid());
            }
            if demand != self.gangs[at].status.demand {
                self.gangs[at].status_mut().demand = demand;
            }
        }
    }

    fn demand(&mut self, at: usize) -> Option<NodeDemand> {
        let (context, gang) = (&self.context, &self.gangs[at]);
        let requests = gang.phase() == &GangPhase::Active
            && gang.status.preemption.is_none()
            && !gang.disrupted()
            && !gang.input.released();
        if !requests || context.settings.autoscaler == AutoscalerMode::Off {
            return None;
        }
        let before = gang.status.demand.clone();
        if gang.assigned.is_some() {
            return before.filter(|demand| is_kept_by_placed(context, gang, demand));
        }
        let spec = gang.observed_spec();
        match (before.filter(|d| d.observed == spec), self.want(at)) {
            (None, Want::Nodes) => Some(NodeDemand {
                number: 1,
                since: context.now,
                requested_at: context.now,
                observed: spec,
                ..NodeDemand::default()
            }),
            (None, _) => None,
            (Some(demand), want) => match demand.failed_at {
                Some(_) => Some(next_try(context, demand, want)),
                None if want == Want::Nothing => None,
                None => Some(self.follow(at, demand)),
            },
        }
    }

    fn want(&self, at: usize) -> Want {
        let gang = &self.gangs[at];
        match &gang.pending {
            _ if self.queue.unsearched.contains(&at) => Want::Unknown,
            Some(Pending::Reserved { .. } | Pending::Undecided { .. }) => Want::Unknown,
            // The dry run of its pods soon shows whether nodes help. A new leader has none.
            Some(Pending::NoPreemption { why, .. })
                if matches!(**why, NoPreemption::NotAdmitted(_)) =>
            {
                Want::Unknown
            }
            Some(Pending::Held(Hold::Misfit(_))) => Want::Nodes,
            Some(pending) if lacks_nodes(gang, pending) => match gang.status.reservation {
                Some(_) => Want::Nodes,
                // New nodes are not ready yet: too many for a misfit, too few for a reservation.
                None => Want::Unknown,
            },
            _ => Want::Nothing,
        }
    }

    /// An open try: continues with the autoscaler's words, or has failed.
    fn follow(&mut self, at: usize, mut demand: NodeDemand) -> NodeDemand {
        let in_vain = || (true, messages::IN_VAIN.to_owned());
        let reported = match self.context.settings.autoscaler {
            AutoscalerMode::Pods => self.came_in_vain(at).then(in_vain),
            _ => report(&self.context, &self.gangs[at], &demand),
        };
        let (failed, message) = reported.unwrap_or_default();
        demand.failed_at = failed.then_some(self.context.now);
        demand.message = message;
        demand
    }

    /// True if the gang has not fit for some time, although it would without required levels.
    fn came_in_vain(&mut self, at: usize) -> bool {
        let fits = self.fits_without_levels(at);
        let (now, uid) = (self.context.now, self.gangs[at].uid());
        if !fits {
            self.memory.fits_without_levels_since.remove(uid);
            return false;
        }
        let since = &mut self.memory.fits_without_levels_since;
        let since = *since.entry(uid.to_owned()).or_insert(now);
        self.context.due(since, IN_VAIN)
    }

    fn fits_without_levels(&self, at: usize) -> bool {
        let (context, gang) = (&self.context, &self.gangs[at]);
        let mut levels = gang.input.group.topology.iter();
        if !levels.any(|level| level.mode == TopologyMode::Required) {
            return false;
        }
        let Ok(mut request) = placement_request(context, self.memory, gang, Request::Required)
        else {
            return false;
        };
        request
            .topology
            .retain(|level| level.mode != TopologyMode::Required);
        let Ok(demand) = request.demand(context.cluster) else {
            return false;
        };
        let free = capacity_for(context, &self.capacity, gang);
        let ahead = self.queue.ahead.iter().take_while(|r| r.gang != at);
        let ahead: Vec<QueueReservation> = ahead.cloned().collect();
        let attempt = attempt(context, &gang.input, &request, &demand, &ahead);
        attempt.in_free_capacity(&free).is_ok()
    }
}

/// End of the time in which the gang prefers new nodes to preemption, if it has not passed.
pub(super) fn prefers_new_nodes(context: &Context<'_>, gang: &GangState) -> Option<DateTime<Utc>> {
    let settings = context.settings;
    let wait = settings.scale_up_before_preemption;
    if settings.autoscaler == AutoscalerMode::Off || wait.is_zero() || gang.assigned.is_some() {
        return None;
    }
    let since = match &gang.status.demand {
        Some(demand) => demand.is_open().then_some(demand.requested_at)?,
        None => gang.status.queued_at?,
    };
    let until = since + TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
    (!context.due(since, wait)).then_some(until)
}

/// Start of the open try. The gang may keep nodes that were created later.
pub(super) fn open_since(context: &Context<'_>, gang: &GangState) -> Option<DateTime<Utc>> {
    let demand = gang.status.demand.as_ref().filter(|d| d.is_open())?;
    (context.settings.autoscaler != AutoscalerMode::Off).then_some(demand.since)
}

/// True if nodes would help the gang, and it awaits neither an eviction nor an object.
pub(super) fn lacks_nodes(gang: &GangState, pending: &Pending) -> bool {
    let Pending::NoPreemption { why, .. } = pending else {
        return matches!(
            pending,
            Pending::Capacity(_) | Pending::NoVictims { .. } | Pending::Held(Hold::Misfit(_))
        );
    };
    match &**why {
        NoPreemption::Disabled | NoPreemption::PrefersNewNodes { .. } => true,
        NoPreemption::NotModelled(what) => what != CLAIM_IN_USE,
        // Otherwise a preemption was withdrawn, and is soon decided again.
        NoPreemption::Failed { .. } => {
            let last = gang.status.last_preemption.as_ref();
            last.is_some_and(LastPreemption::has_failed)
        }
        _ => false,
    }
}

/// True while nodes that a request has provided wait for the gang's pods. A request that the index does
/// not have, for example after a restart, may be such a request. A signal pod beside the bound pod of
/// its member would cause another purchase.
fn is_kept_by_placed(context: &Context<'_>, gang: &GangState, demand: &NodeDemand) -> bool {
    context.settings.autoscaler == AutoscalerMode::ProvisioningRequest
        && demand.is_open()
        && state_of(gang, demand).is_none_or(|s| s.phase == ProvisioningPhase::Provisioned)
        && !gang.unbound().is_empty()
}

/// The failed try, or the next one if it is due.
fn next_try(context: &Context<'_>, demand: NodeDemand, want: Want) -> NodeDemand {
    let Some(at) = next_try_at(&demand) else {
        return demand;
    };
    if !context.due(at, Duration::ZERO) || want != Want::Nodes {
        return demand;
    }
    NodeDemand {
        number: demand.number + 1,
        since: context.now,
        failed_at: None,
        message: String::new(),
        ..demand
    }
}

/// State of the request of this try.
fn state_of<'g>(gang: &'g GangState, demand: &NodeDemand) -> Option<&'g ProvisioningState> {
    let name = provisioning_request_name(&gang.input.key.name, demand.number, demand.since);
    gang.input.provisioning.as_ref().filter(|s| s.name == name)
}

/// Whether the request of this try provides no nodes for the gang, and what the autoscaler reports.
fn report(context: &Context<'_>, gang: &GangState, demand: &NodeDemand) -> Option<(bool, String)> {
    let state = state_of(gang, demand)?;
    let continues = |what: &str| (false, format!("{} {what}", state.name));
    let fails = |what: &str| (true, what.to_owned());
    let (failed, what) = match state.phase {
        ProvisioningPhase::Created => continues("is created"),
        ProvisioningPhase::Accepted => continues("is accepted"),
        ProvisioningPhase::Provisioned if context.due(state.since, BOOKED) => {
            fails(messages::PROVISIONED_IN_VAIN)
        }
        ProvisioningPhase::Provisioned => continues("is provisioned"),
        ProvisioningPhase::Failed => fails(messages::REQUEST_FAILED),
        ProvisioningPhase::BookingExpired => fails(messages::BOOKING_EXPIRED),
        ProvisioningPhase::CapacityRevoked => fails(messages::CAPACITY_REVOKED),
    };
    Some((failed, messages::with_words(&what, &state.message)))
}
