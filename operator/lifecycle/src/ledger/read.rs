//! Reads the ledger from a status. Drops unparsable values, for example after manual edits.

use lockstep_api::condition::{find, is_true, types};
use lockstep_api::ids::{DomainKey, GangKey, NodeName, Uid};
use lockstep_api::member::MemberSet;
use lockstep_api::membership::{completed_members, running_indexes};
use lockstep_api::workload::{
    Accounting, AvoidedNode, DomainStatus, GangStatus, Incident, PodReplacement, Restarts,
    TrainingWorkloadSpec, TrainingWorkloadStatus,
};

use super::{
    Avoidance, DomainLedger, End, GangLedger, Ledger, Loss, OpenIncident, OpenReplacement, Outcome,
    RestartBudget, Spent,
};

impl Ledger {
    /// The spec maps completion indexes to members.
    pub fn read(status: &TrainingWorkloadStatus, spec: &TrainingWorkloadSpec) -> Self {
        // Exhaustive: a new field must be read or ignored.
        let TrainingWorkloadStatus {
            observed_generation: _,
            phase: _,
            reason: _,
            phases: _,
            replicas: _,
            selector: _,
            message: _,
            ready: _,
            attempt,
            backend: _,
            conditions: _,
            applied,
            gangs,
            domains,
            restarts,
            preemptions,
            groups: _,
            start_time,
            scheduled_time: _,
            completion_time: _,
            history,
            progress,
            user_checkpoint_request,
            accounting:
                Accounting {
                    accelerators,
                    held_accelerator_seconds,
                    until,
                    lost_accelerator_seconds,
                    restart_accelerator_seconds,
                    waited_seconds,
                    waiting_since,
                    goodput: _,
                },
            active_seconds,
            kueue,
        } = status;
        let mut ledger = Self {
            applied: applied.clone(),
            gangs: gangs.iter().filter_map(gang).collect(),
            domains: domains.iter().filter_map(domain).collect(),
            completed: completed_members(status, spec),
            running: running_indexes(status),
            highest_attempt: *attempt,
            budget: budget(restarts),
            preemptions: *preemptions,
            history: history.clone(),
            progress: progress.clone(),
            user_request: user_checkpoint_request.clone(),
            spent: Spent {
                accelerators: *accelerators,
                held: *held_accelerator_seconds,
                until: *until,
                loss: Loss {
                    work: *lost_accelerator_seconds,
                    restart: *restart_accelerator_seconds,
                },
                waited: *waited_seconds,
                waiting_since: *waiting_since,
            },
            started_at: *start_time,
            active_seconds: *active_seconds,
            kueue: kueue.clone(),
            ended: end(status),
        };
        ledger
            .running
            .retain(|name, _| spec.groups.iter().any(|g| g.name == *name));
        for domain in ledger.domains.values() {
            ledger.highest_attempt = ledger.highest_attempt.max(domain.attempt);
        }
        ledger
    }
}

fn gang(status: &GangStatus) -> Option<(GangKey, GangLedger)> {
    let GangStatus {
        key,
        started,
        released,
        backoff,
        placement_tries,
        start_tries,
        held_since,
        avoid,
        moving,
    } = status;
    let ledger = GangLedger {
        started: *started,
        released: released.clone(),
        backoff: backoff.clone(),
        placement_tries: *placement_tries,
        start_tries: *start_tries,
        held_since: *held_since,
        avoid: avoid.iter().filter_map(avoidance).collect(),
        moving: moving.clone(),
    };
    Some((GangKey::read(Some(key))?, ledger))
}

fn avoidance(avoided: &AvoidedNode) -> Option<(NodeName, Avoidance)> {
    let AvoidedNode {
        node,
        reason,
        until,
        machine,
        boot,
        exit_code,
    } = avoided;
    let avoidance = Avoidance {
        reason: reason.clone(),
        until: *until,
        machine: machine.clone(),
        boot: boot.clone(),
        exit_code: *exit_code,
    };
    Some((NodeName::read(Some(node))?, avoidance))
}

fn domain(status: &DomainStatus) -> Option<(DomainKey, DomainLedger)> {
    let DomainStatus {
        key,
        attempt,
        incident,
        replacement,
        in_place_tries,
        uncounted_tries,
        healthy_since,
        restarts_seen,
        checkpoint_request,
        recreations,
        lost_until,
    } = status;
    // Earlier versions wrote replacements of single pods as incidents.
    let (of_pods, of_domain) = match incident.as_ref() {
        Some(i) if i.action.affects_single_pod() => {
            (Some(open_incident(i).into_replacement()), None)
        }
        other => (None, other),
    };
    let ledger = DomainLedger {
        attempt: *attempt,
        incident: of_domain.map(open_incident),
        replacement: replacement.as_ref().map(open_replacement).or(of_pods),
        tries: *in_place_tries,
        uncounted_tries: *uncounted_tries,
        healthy_since: *healthy_since,
        restarts_seen: *restarts_seen,
        request: checkpoint_request.clone(),
        recreations: *recreations,
        lost_until: *lost_until,
    };
    Some((DomainKey::read(Some(key))?, ledger))
}

fn open_incident(status: &Incident) -> OpenIncident {
    let Incident {
        attempt,
        cause,
        action,
        counted,
        stage,
        replace,
        old_pods,
        not_before,
        detected_at,
        decided_at,
        ordered_at,
        arrived_at,
        arrivals: _,
    } = status;
    OpenIncident {
        attempt: *attempt,
        cause: cause.clone(),
        action: *action,
        counted: *counted,
        stage: *stage,
        // If the list is damaged, this incident replaces no further pods.
        replace: MemberSet::parse(replace).unwrap_or_default(),
        old_pods: old_pods.iter().filter_map(|u| Uid::read(Some(u))).collect(),
        not_before: *not_before,
        detected_at: *detected_at,
        decided_at: *decided_at,
        ordered_at: *ordered_at,
        arrived_at: *arrived_at,
    }
}

fn open_replacement(status: &PodReplacement) -> OpenReplacement {
    let PodReplacement {
        cause,
        counted,
        members,
        old_pods,
        not_before,
        detected_at,
    } = status;
    OpenReplacement {
        cause: cause.clone(),
        counted: *counted,
        // If the list is damaged, no further pod is replaced.
        members: MemberSet::parse(members).unwrap_or_default(),
        old_pods: old_pods.iter().filter_map(|u| Uid::read(Some(u))).collect(),
        not_before: *not_before,
        detected_at: *detected_at,
    }
}

impl OpenIncident {
    fn into_replacement(self) -> OpenReplacement {
        OpenReplacement {
            cause: self.cause,
            counted: self.counted,
            members: self.replace,
            old_pods: self.old_pods,
            not_before: self.not_before,
            detected_at: self.detected_at,
        }
    }
}

fn budget(restarts: &Restarts) -> RestartBudget {
    let Restarts {
        total,
        in_place,
        recreated,
        counted,
        counted_at,
    } = restarts;
    RestartBudget {
        total: *total,
        in_place: *in_place,
        recreated: *recreated,
        counted: *counted,
        counted_at: counted_at.clone(),
    }
}

fn end(status: &TrainingWorkloadStatus) -> Option<End> {
    let outcomes = [Outcome::Complete, Outcome::Failed];
    let outcome = outcomes
        .into_iter()
        .find(|o| is_true(&status.conditions, o.condition()))?;
    let condition = find(&status.conditions, outcome.condition())?;
    Some(End {
        outcome,
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        observed_generation: condition.observed_generation,
        at: condition.last_transition_time,
        completed_at: status.completion_time,
    })
}

impl Outcome {
    pub fn condition(self) -> &'static str {
        match self {
            Self::Complete => types::COMPLETE,
            Self::Failed => types::FAILED,
        }
    }
}
