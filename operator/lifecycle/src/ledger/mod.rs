//! What the operator must remember to finish what it began, and all that its decisions read of a
//! status.
//!
//! It is read once, at the border, and written in one place (`status`); inside there are
//! identities, maps and sets. The rest of a status is a summary, which no decision can read,
//! because it is not in here.

mod budget;
mod read;
#[cfg(test)]
mod sizes;
mod spent;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::gangs::Gang;
use lockstep_api::ids::{DomainKey, GangKey, NodeName, Uid};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::membership::{Membership, RunningIndexes};
use lockstep_api::workload::{
    AppliedSpec, Backoff, Cause, FailureAction, HistoryEntry, IncidentStage, TrainingProgress,
    TrainingWorkloadSpec,
};

pub(crate) use spent::Spent;

/// The ledger of one workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ledger {
    /// What the running pods were made from.
    pub applied: Option<AppliedSpec>,
    /// One entry for each gang.
    pub gangs: BTreeMap<GangKey, GangLedger>,
    /// One entry for each restart domain.
    pub domains: BTreeMap<DomainKey, DomainLedger>,
    /// Members that have succeeded.
    pub completed: BTreeSet<Member>,
    /// Members that run together, where an elastic gang has capacity for some only.
    pub running: RunningIndexes,
    /// Highest attempt over all restart domains that there ever were: it never goes back.
    pub highest_attempt: i64,
    /// The restart budget and its counters.
    pub budget: RestartBudget,
    /// How often the workload was preempted.
    pub preemptions: i64,
    /// Finished incidents, newest first.
    pub history: Vec<HistoryEntry>,
    /// How far training has come, by what its processes tell.
    pub progress: Option<TrainingProgress>,
    /// Accelerator time held and lost, and time without capacity.
    pub spent: Spent,
    /// When the workload was first acted on, or last resumed.
    pub started_at: Option<DateTime<Utc>>,
    /// Seconds of activity before the last suspension.
    pub active_seconds: i64,
    /// How the workload ended.
    pub ended: Option<End>,
}

/// What is remembered of a gang.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GangLedger {
    /// Whether its dependencies were met once.
    pub started: bool,
    /// Id of the placement that it has released.
    pub released: Option<String>,
    /// Why it waits before it queues again.
    pub backoff: Option<Backoff>,
    /// Placements in a row that ended before all members ran.
    pub placement_tries: i32,
    /// Starts in a row that failed because of the template.
    pub start_tries: i32,
    /// Since when it holds accelerators.
    pub held_since: Option<DateTime<Utc>>,
    /// Nodes that it stays away from.
    pub avoid: BTreeMap<NodeName, Avoidance>,
}

/// Why a gang stays away from a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Avoidance {
    /// Reason, from the table of condition reasons.
    pub reason: String,
    /// Until when.
    pub until: DateTime<Utc>,
}

/// What is remembered of a restart domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DomainLedger {
    /// Current attempt.
    pub attempt: i64,
    /// The incident being handled.
    pub incident: Option<OpenIncident>,
    /// Restarts in a row for failures that take budget, without ten healthy minutes between them.
    pub tries: i32,
    /// The same for failures that take none.
    pub uncounted_tries: i32,
    /// Since when all members run.
    pub healthy_since: Option<DateTime<Utc>>,
    /// Restarts of training containers that are accounted for.
    pub restarts_seen: i64,
    /// How often all of its pods were replaced together.
    pub recreations: i64,
    /// Up to when its lost accelerator time has been counted.
    pub lost_until: Option<DateTime<Utc>>,
}

/// An incident being handled. Its key is workload UID, domain and attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenIncident {
    /// Attempt that it leads to.
    pub attempt: i64,
    /// What happened first.
    pub cause: Cause,
    /// What is done.
    pub action: FailureAction,
    /// Whether it took a unit of the budget.
    pub counted: bool,
    /// How far it is.
    pub stage: IncidentStage,
    /// Members whose pods are replaced.
    pub replace: MemberSet,
    /// Pods that were there when the incident began and are being replaced.
    pub old_pods: BTreeSet<Uid>,
    /// Nothing is done before this time.
    pub not_before: Option<DateTime<Utc>>,
    /// When the failure was seen.
    pub detected_at: DateTime<Utc>,
    /// When the action was recorded.
    pub decided_at: DateTime<Utc>,
    /// When the order was written.
    pub ordered_at: Option<DateTime<Utc>>,
    /// When all members had stopped and arrived.
    pub arrived_at: Option<DateTime<Utc>>,
}

/// The restart budget and its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestartBudget {
    /// Incidents handled by a restart.
    pub total: i64,
    /// Of these, those in which no pod was replaced.
    pub in_place: i64,
    /// Pods replaced over all incidents.
    pub recreated: i64,
    /// Incidents that took a unit.
    pub counted: i64,
    /// When the counted incidents of the present window happened.
    pub counted_at: Vec<DateTime<Utc>>,
}

/// The end of a workload. Terminal is final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// How.
    pub outcome: Outcome,
    /// Reason of the terminal condition.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Generation of the spec at the end.
    pub observed_generation: i64,
    /// When the terminal condition became True.
    pub at: DateTime<Utc>,
    /// `status.completionTime`, from which the time to live counts.
    pub completed_at: Option<DateTime<Utc>>,
}

/// How a workload ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The success policy is met.
    Complete,
    /// It failed.
    Failed,
}

impl Ledger {
    /// The entry of a gang.
    pub fn gang(&self, key: &GangKey) -> Option<&GangLedger> {
        self.gangs.get(key)
    }

    /// The entry of a restart domain.
    pub fn domain(&self, key: &DomainKey) -> Option<&DomainLedger> {
        self.domains.get(key)
    }

    /// Whether members of a gang have all run at the present placement, or are being restarted.
    pub fn is_under_way(&self, gang: &Gang) -> bool {
        let domains = gang.domains.iter();
        domains
            .filter_map(|d| self.domain(&d.key))
            .any(DomainLedger::under_way)
    }

    /// Whether all members of a gang have succeeded: it needs no capacity any more.
    pub fn is_done(&self, gang: &Gang) -> bool {
        gang.members().all(|m| self.completed.contains(m))
    }

    /// The incident that a restart domain handles.
    pub fn incident(&self, domain: &DomainKey) -> Option<&OpenIncident> {
        self.domain(domain)?.incident.as_ref()
    }

    /// The members that run together.
    pub fn membership<'s>(&self, spec: &'s TrainingWorkloadSpec) -> Membership<'s> {
        let replicas: Vec<i32> = spec.groups.iter().map(|g| g.replicas).collect();
        Membership::new(spec, &replicas, &self.running)
    }

    /// The members that ran together when the groups had that many replicas.
    pub fn membership_before<'s>(
        &self,
        spec: &'s TrainingWorkloadSpec,
        replicas: &[i32],
    ) -> Membership<'s> {
        Membership::new(spec, replicas, &self.running)
    }
}

impl DomainLedger {
    /// Whether its members have all run at this placement, or are being restarted.
    pub fn under_way(&self) -> bool {
        self.incident.is_some() || self.healthy_since.is_some()
    }

    /// The open incident, if it restarts more than single pods.
    pub fn domain_incident(&self) -> Option<&OpenIncident> {
        self.incident.as_ref().filter(|i| !i.affects_single_pods())
    }
}

impl OpenIncident {
    /// Whether it concerns single pods only; the attempt of the domain then stays.
    pub fn affects_single_pods(&self) -> bool {
        self.action.affects_single_pod()
    }
}
