use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lockstep_api::condition::{Condition, find, reasons, types, upsert};
use lockstep_api::words::{checkpoint_wait, placed_in_part};
use lockstep_model::unmet_preferences;

use super::checkpoints::request;
use super::demand::lacks_nodes;
use super::moves::write_target;
use super::place::closed_node_count;
use super::state::Cycle;
use crate::capacity::Capacity;
use crate::context::Context;
use crate::gang::pending::Pending;
use crate::gang::state::{GangState, without_words};
use crate::input::hold::GangPhase;
use crate::memory::Memory;
use crate::memory::backoff::next_try_at;
use crate::messages;
use crate::plan::{StatusWrite, Step, Vacated};

/// Delay until the condition reports unbound members.
const REPORTED_AFTER: Duration = Duration::from_mins(1);

impl Cycle<'_> {
    /// Completes the status of each gang. Returns the writes of changed statuses.
    pub(super) fn status_writes(&mut self) -> Vec<Step> {
        let mut requests = self.checkpoint_requests();
        let context = &self.context;
        let mut steps = Vec::new();
        for gang in &mut self.gangs {
            let preemptor = request(gang, &mut requests, context.now);
            compose(context, self.memory, &self.capacity, gang);
            let write = write_of(context, self.memory, gang);
            steps.extend(write.map(|w| {
                let preemptor = w.preemptor.or(preemptor);
                Step::Status(Box::new(StatusWrite { preemptor, ..w }))
            }));
        }
        steps
    }
}

fn compose(context: &Context<'_>, memory: &Memory, capacity: &Capacity, gang: &mut GangState) {
    if gang.phase() == &GangPhase::Finished {
        return;
    }
    gang.assigned = gang.assigned.take().filter(|a| !a.is_empty());
    if !gang.unmoved() {
        gang.status_mut().placement = gang.to_placement(context.now);
    }
    write_target(context, gang);
    // Also without a placement: nothing else reverts the condition, which keeps the gang out of the
    // queue.
    let withdrawn =
        gang.disrupted() && !capacity.evicting.contains(gang.uid()) && !gang.input.released();
    let disruption = if let Some(preempted) = gang.preempted.clone() {
        gang.status_mut().preemptor = Some(preempted.preemptor);
        let text = preempted.message;
        Some((true, reasons::PREEMPTION_BY_SCHEDULER, text))
    } else if withdrawn {
        gang.status_mut().preemptor = None;
        let text = "the preemption was withdrawn".to_owned();
        Some((false, reasons::SCHEDULED, text))
    } else {
        None
    };
    let scheduled = scheduled(context, memory, gang);
    let changes = [
        (types::DISRUPTION_TARGET, disruption),
        (types::POD_GROUP_INITIALLY_SCHEDULED, scheduled),
    ];
    let mut conditions = gang.status.conditions.clone();
    for (type_, change) in changes {
        if let Some((status, reason, text)) = change {
            let condition = Condition {
                type_: type_.to_owned(),
                status: status.into(),
                reason: reason.to_owned(),
                message: text,
                last_transition_time: context.now,
                observed_generation: gang.input.group.generation,
            };
            upsert(&mut conditions, condition);
        }
    }
    if conditions != gang.status.conditions {
        gang.status_mut().conditions = conditions;
    }
}

/// `None` if the status has not changed, or only messages differ and the last write is recent.
fn write_of(context: &Context<'_>, memory: &mut Memory, gang: &GangState) -> Option<StatusWrite> {
    let group = &gang.input.group;
    if Arc::ptr_eq(&gang.status, &group.status) || gang.status == group.status {
        return None;
    }
    let interval = context.settings.message_interval;
    if without_words(&gang.status) == without_words(&group.status)
        && let Some(written) = memory.status_written_at.get(gang.uid()).copied()
        && !context.due(written, interval)
    {
        return None;
    }
    memory
        .status_written_at
        .insert(gang.uid().to_owned(), context.now);
    let vacates = group.status.placement.is_some() && gang.status.placement.is_none();
    Some(StatusWrite {
        key: gang.input.key.clone(),
        uid: group.uid.clone(),
        resource_version: group.resource_version.clone(),
        read: (*group.status).clone(),
        status: (*gang.status).clone(),
        vacated: vacates.then(|| Vacated {
            workload_uid: gang.input.workload.uid.clone(),
            observed: gang.all_pods().map(|p| p.uid.clone()).collect(),
        }),
        preemptor: gang.preempted.as_ref().map(|p| p.by.clone()),
    })
}

/// New state of condition `PodGroupInitiallyScheduled`. `None` keeps it.
fn scheduled(
    context: &Context<'_>,
    memory: &Memory,
    gang: &GangState,
) -> Option<(bool, &'static str, String)> {
    if let Some(intent) = &gang.status.preemption {
        let mut text = messages::preempting(intent);
        if let Some((gangs, end)) = intent.checkpoint_wait()
            && context.now < end
        {
            text = format!("{text}; {}", checkpoint_wait(gangs, end));
        }
        if let Some(progress) = intent.binding
            && context.due(progress.since, REPORTED_AFTER)
        {
            text.push_str(&messages::binding(context, gang, progress));
        }
        if let Some(reached) = &gang.paced {
            text = format!("{text}; {}", messages::paced(reached));
        }
        return Some((false, reasons::PREEMPTING, text));
    }
    let pending = gang.pending.as_ref().map(|p| {
        let text = messages::pending(p, context.cluster.dims());
        let closed = closed_node_count(context, memory, gang);
        let mut text = messages::with_closed_nodes(text, closed);
        if let Some(reservation) = &gang.status.reservation {
            text = messages::holds_reservation(&text, reservation);
        }
        let demand = gang.status.demand.as_ref();
        match demand.filter(|d| d.is_open() || lacks_nodes(gang, p)) {
            Some(demand) => messages::demand::with_demand(&text, demand),
            None => text,
        }
    });
    match (&gang.assigned, gang.phase()) {
        (Some(_), _) if gang.input.released() => None,
        (Some(assigned), _) => {
            let count = || assigned.values().collect::<BTreeSet<_>>().len();
            let bound = gang.fully_bound();
            let nodes = bound.map_or_else(count, |bound| bound.nodes);
            let mut text = messages::placed(assigned.len(), nodes);
            let levels = &gang.input.group.topology;
            if let Some(unmet) = unmet_preferences(levels, assigned, context.cluster) {
                text = format!("{text}; {unmet}");
            }
            if let Some(pending) = pending {
                text = placed_in_part(&text, &pending);
            }
            // The condition stays false until the gang has enough members for the first time.
            let lacks = || gang.unfinished_assigned().count() < gang.min_count() as usize;
            if bound.is_none() && lacks() && !gang.input.gang.basic && !gang.under_way() {
                return Some((false, reasons::UNSCHEDULABLE, text));
            }
            Some((true, reasons::SCHEDULED, text))
        }
        (None, GangPhase::Active) => {
            let text = pending.unwrap_or_else(|| messages::queued_again(gang));
            let reason = gang
                .pending
                .as_ref()
                .map_or(reasons::UNSCHEDULABLE, |p| reason_of(gang, p));
            Some((false, reason, text))
        }
        // No report before the first attempt.
        (None, GangPhase::Held(hold)) => {
            find(
                &gang.status.conditions,
                types::POD_GROUP_INITIALLY_SCHEDULED,
            )?;
            Some((false, hold.reason(), messages::held(hold)))
        }
        (None, GangPhase::Finished) => None,
    }
}

/// Why a gang without nodes waits.
fn reason_of(gang: &GangState, pending: &Pending) -> &'static str {
    let demand = gang.status.demand.as_ref();
    let ended = demand.is_some_and(|d| !d.is_open() && next_try_at(d).is_none());
    if ended && lacks_nodes(gang, pending) {
        reasons::NODES_NOT_PROVIDED
    } else {
        pending.reason()
    }
}
