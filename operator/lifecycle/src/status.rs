//! Converts ledger and summary to a status: the only place that writes the ledger.

use std::collections::BTreeMap;

use lockstep_api::condition::{Condition, ConditionStatus};
use lockstep_api::gangs::Gang;
use lockstep_api::ids::{DomainKey, GangKey};
use lockstep_api::member::format_indexes;
use lockstep_api::membership::completion_index;
use lockstep_api::workload::{
    Accounting, AvoidedNode, Backoff, Cause, DomainStatus, GangStatus, Group, GroupStatus,
    HistoryEntry, Incident, PodReplacement, Restarts, TrainingWorkloadSpec, TrainingWorkloadStatus,
};

use crate::ledger::{
    DomainLedger, End, GangLedger, Ledger, OpenIncident, OpenReplacement, RestartBudget, Spent,
};
use crate::messages::shortened;
use crate::summary::Summary;
use crate::summary::counts::Counts;

/// Bytes. Up to 500 domains can have a cause, and programs can write 4 kB to
/// `terminationMessagePath`.
const CAUSE_MESSAGE: usize = 256;
/// Bytes. Each gang can have a back-off, and then has no incident.
const BACKOFF_MESSAGE: usize = 512;

fn short_cause(cause: Cause) -> Cause {
    Cause {
        message: shortened(cause.message, CAUSE_MESSAGE),
        ..cause
    }
}

fn short_entry(entry: HistoryEntry) -> HistoryEntry {
    HistoryEntry {
        cause: short_cause(entry.cause),
        ..entry
    }
}

fn accounting(spent: &Spent) -> Accounting {
    Accounting {
        goodput: spent.goodput(),
        accelerators: spent.accelerators,
        held_accelerator_seconds: spent.held,
        until: spent.until,
        lost_accelerator_seconds: spent.loss.work,
        restart_accelerator_seconds: spent.loss.restart,
        waited_seconds: spent.waited,
        waiting_since: spent.waiting_since,
    }
}

/// Entries without a counterpart in the spec are last.
fn in_order_of_spec(
    gangs: &[Gang],
    mut gang_entries: BTreeMap<GangKey, GangLedger>,
    mut domain_entries: BTreeMap<DomainKey, DomainLedger>,
) -> (Vec<GangStatus>, Vec<DomainStatus>) {
    let mut gang_list = Vec::new();
    let mut domain_list = Vec::new();
    for gang in gangs {
        if let Some((key, entry)) = gang_entries.remove_entry(gang.key.as_str()) {
            gang_list.push(gang_status(key, entry));
        }
        for domain in &gang.domains {
            if let Some((key, entry)) = domain_entries.remove_entry(domain.key.as_str()) {
                domain_list.push(domain_status(key, entry));
            }
        }
    }
    gang_list.extend(gang_entries.into_iter().map(|(k, e)| gang_status(k, e)));
    domain_list.extend(domain_entries.into_iter().map(|(k, e)| domain_status(k, e)));
    (gang_list, domain_list)
}

impl Ledger {
    /// Entries follow the order of the spec. Entries outside the spec whose pods still exist come
    /// last.
    pub fn into_status(
        self,
        spec: &TrainingWorkloadSpec,
        gangs: &[Gang],
        summary: Summary,
    ) -> TrainingWorkloadStatus {
        let replicas = spec.scaled_group().map(|group| {
            let counts = summary.groups.get(&group.name);
            counts.copied().unwrap_or_default().replicas
        });
        let groups = spec
            .groups
            .iter()
            .map(|g| group_status(&self, g, summary.groups.get(&g.name)))
            .collect();
        // Exhaustive: a new field must be written.
        let Self {
            applied,
            gangs: gang_entries,
            domains: domain_entries,
            completed: _,
            running: _,
            highest_attempt,
            budget,
            preemptions,
            history,
            progress,
            spent,
            user_request,
            started_at,
            active_seconds,
            kueue,
            ended,
        } = self;
        let Summary {
            observed_generation,
            phase,
            reason,
            message,
            ready,
            backend,
            mut conditions,
            groups: _,
            arrivals,
            selector,
            scheduled_time,
            phases,
        } = summary;
        let (gangs, mut domains) = in_order_of_spec(gangs, gang_entries, domain_entries);
        for domain in &mut domains {
            if let Some(incident) = &mut domain.incident {
                incident.arrivals = arrivals.get(domain.key.as_str()).cloned();
            }
        }
        let completion_time = ended.as_ref().and_then(|e| e.completed_at);
        conditions.extend(ended.map(terminal_condition));
        TrainingWorkloadStatus {
            observed_generation,
            phase: Some(phase),
            reason,
            message,
            ready,
            attempt: highest_attempt,
            backend,
            conditions,
            applied,
            gangs,
            domains,
            restarts: restarts(budget),
            preemptions,
            groups,
            replicas,
            selector,
            start_time: started_at,
            scheduled_time,
            completion_time,
            history: history.into_iter().map(short_entry).collect(),
            phases,
            progress,
            user_checkpoint_request: user_request,
            accounting: accounting(&spent),
            active_seconds,
            kueue,
        }
    }
}

fn gang_status(key: GangKey, entry: GangLedger) -> GangStatus {
    let GangLedger {
        started,
        released,
        backoff,
        placement_tries,
        start_tries,
        held_since,
        avoid,
        moving,
    } = entry;
    let avoid = avoid.into_iter().map(|(node, avoidance)| AvoidedNode {
        node: node.into(),
        reason: avoidance.reason,
        until: avoidance.until,
        machine: avoidance.machine,
        boot: avoidance.boot,
        exit_code: avoidance.exit_code,
    });
    GangStatus {
        key: key.into(),
        started,
        released,
        backoff: backoff.map(|b| Backoff {
            message: shortened(b.message, BACKOFF_MESSAGE),
            ..b
        }),
        placement_tries,
        start_tries,
        held_since,
        avoid: avoid.collect(),
        moving,
    }
}

fn domain_status(key: DomainKey, entry: DomainLedger) -> DomainStatus {
    let DomainLedger {
        attempt,
        incident,
        replacement,
        tries,
        uncounted_tries,
        healthy_since,
        restarts_seen,
        request,
        recreations,
        lost_until,
    } = entry;
    DomainStatus {
        key: key.into(),
        attempt,
        incident: incident.map(incident_status),
        replacement: replacement.map(replacement_status),
        in_place_tries: tries,
        uncounted_tries,
        healthy_since,
        restarts_seen,
        checkpoint_request: request,
        recreations,
        lost_until,
    }
}

fn incident_status(incident: OpenIncident) -> Incident {
    let OpenIncident {
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
    } = incident;
    Incident {
        attempt,
        cause: short_cause(cause),
        action,
        counted,
        stage,
        replace: replace.to_ranges(),
        old_pods: old_pods.into_iter().map(String::from).collect(),
        not_before,
        detected_at,
        decided_at,
        ordered_at,
        arrived_at,
        arrivals: None,
    }
}

fn replacement_status(replacement: OpenReplacement) -> PodReplacement {
    let OpenReplacement {
        cause,
        counted,
        members,
        old_pods,
        not_before,
        detected_at,
    } = replacement;
    PodReplacement {
        cause: short_cause(cause),
        counted,
        members: members.to_ranges(),
        old_pods: old_pods.into_iter().map(String::from).collect(),
        not_before,
        detected_at,
    }
}

fn group_status(ledger: &Ledger, group: &Group, counts: Option<&Counts>) -> GroupStatus {
    let Counts {
        desired,
        created,
        ready,
        active,
        succeeded,
        failed,
        replicas: _,
    } = counts.copied().unwrap_or_default();
    let completed = ledger.completed.iter().filter(|m| m.group == group.name);
    let mut indexes: Vec<i32> = completed.map(|m| completion_index(group, m)).collect();
    indexes.sort_unstable();
    let running = ledger.running.get(&group.name);
    GroupStatus {
        name: group.name.clone(),
        desired,
        created,
        ready,
        active,
        succeeded,
        failed,
        completed_indexes: format_indexes(&indexes),
        world_indexes: running
            .map(|indexes| format_indexes(&indexes.iter().copied().collect::<Vec<i32>>())),
    }
}

fn restarts(budget: RestartBudget) -> Restarts {
    let RestartBudget {
        total,
        in_place,
        recreated,
        counted,
        counted_at,
    } = budget;
    Restarts {
        total,
        in_place,
        recreated,
        counted,
        counted_at,
    }
}

fn terminal_condition(end: End) -> Condition {
    Condition {
        type_: end.outcome.condition().into(),
        status: ConditionStatus::True,
        reason: end.reason,
        message: end.message,
        last_transition_time: end.at,
        observed_generation: end.observed_generation,
    }
}
