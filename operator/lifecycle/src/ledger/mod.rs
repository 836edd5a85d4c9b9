//! The ledger: what the operator must remember to finish what it began, and the only part of a
//! status that decisions read.
//!
//! It is parsed once (`read`) and written in one place (`status`). In between, it consists of
//! identities, maps and sets. The rest of a status is the summary, which decisions cannot read.

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

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ledger {
    /// Spec values from which the running pods were created.
    pub applied: Option<AppliedSpec>,
    pub gangs: BTreeMap<GangKey, GangLedger>,
    pub domains: BTreeMap<DomainKey, DomainLedger>,
    pub completed: BTreeSet<Member>,
    /// Members that run together, if an elastic gang has capacity for some only.
    pub running: RunningIndexes,
    /// Highest attempt of all past and current restart domains. It never decreases.
    pub highest_attempt: i64,
    pub budget: RestartBudget,
    /// Number of preemptions of the workload.
    pub preemptions: i64,
    /// Finished incidents, newest first.
    pub history: Vec<HistoryEntry>,
    /// Progress that the training processes report.
    pub progress: Option<TrainingProgress>,
    pub spent: Spent,
    /// When the workload was first processed, or last resumed.
    pub started_at: Option<DateTime<Utc>>,
    /// Seconds of activity before the last suspension.
    pub active_seconds: i64,
    pub ended: Option<End>,
}

/// State of a gang.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GangLedger {
    /// True if its dependencies were met once.
    pub started: bool,
    /// Id of the placement that it has released.
    pub released: Option<String>,
    /// Why it backs off before it queues again.
    pub backoff: Option<Backoff>,
    /// Consecutive placements that ended before all members ran.
    pub placement_tries: i32,
    /// Consecutive starts that failed because of the template.
    pub start_tries: i32,
    pub held_since: Option<DateTime<Utc>>,
    pub avoid: BTreeMap<NodeName, Avoidance>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Avoidance {
    /// Reason from the table of condition reasons.
    pub reason: String,
    pub until: DateTime<Utc>,
}

/// State of a restart domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DomainLedger {
    pub attempt: i64,
    pub incident: Option<OpenIncident>,
    /// Consecutive restarts for failures that use budget, reset after `healthyReset`.
    pub tries: i32,
    /// Consecutive restarts for failures that use none.
    pub uncounted_tries: i32,
    pub healthy_since: Option<DateTime<Utc>>,
    /// Restarts of training containers that are accounted for.
    pub restarts_seen: i64,
    /// How often all of its pods were replaced together.
    pub recreations: i64,
    /// End of the lost accelerator time that has been counted.
    pub lost_until: Option<DateTime<Utc>>,
}

/// An incident being handled. Its key consists of workload UID, domain and attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenIncident {
    /// Attempt that follows the incident.
    pub attempt: i64,
    /// First cause of the incident.
    pub cause: Cause,
    pub action: FailureAction,
    /// True if it used a unit of the budget.
    pub counted: bool,
    pub stage: IncidentStage,
    pub replace: MemberSet,
    /// Pods to replace that existed when the incident began.
    pub old_pods: BTreeSet<Uid>,
    /// No action starts before this time.
    pub not_before: Option<DateTime<Utc>>,
    /// When the manager observed the failure.
    pub detected_at: DateTime<Utc>,
    /// When the action was recorded.
    pub decided_at: DateTime<Utc>,
    /// When the restart order was written.
    pub ordered_at: Option<DateTime<Utc>>,
    /// When all members had stopped and arrived.
    pub arrived_at: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestartBudget {
    /// Incidents handled by a restart.
    pub total: i64,
    /// Incidents of `total` in which no pod was replaced.
    pub in_place: i64,
    /// Pods replaced in all incidents.
    pub recreated: i64,
    /// Incidents that used a unit.
    pub counted: i64,
    /// Times of the counted incidents in the current window.
    pub counted_at: Vec<DateTime<Utc>>,
}

/// The end of a workload, which is final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub outcome: Outcome,
    /// Reason of the terminal condition.
    pub reason: String,
    /// Message of the terminal condition.
    pub message: String,
    /// Generation of the spec at the end.
    pub observed_generation: i64,
    /// When the terminal condition became True.
    pub at: DateTime<Utc>,
    /// `status.completionTime`, from which the time to live counts.
    pub completed_at: Option<DateTime<Utc>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Complete,
    Failed,
}

impl Ledger {
    pub fn gang(&self, key: &GangKey) -> Option<&GangLedger> {
        self.gangs.get(key)
    }

    pub fn domain(&self, key: &DomainKey) -> Option<&DomainLedger> {
        self.domains.get(key)
    }

    /// True if members of a gang have all run at the current placement, or are being restarted.
    pub fn is_under_way(&self, gang: &Gang) -> bool {
        let domains = gang.domains.iter();
        domains
            .filter_map(|d| self.domain(&d.key))
            .any(DomainLedger::under_way)
    }

    /// True if all members of a gang have succeeded, so that it needs no capacity.
    pub fn is_done(&self, gang: &Gang) -> bool {
        gang.members().all(|m| self.completed.contains(m))
    }

    pub fn incident(&self, domain: &DomainKey) -> Option<&OpenIncident> {
        self.domain(domain)?.incident.as_ref()
    }

    pub fn membership<'s>(&self, spec: &'s TrainingWorkloadSpec) -> Membership<'s> {
        let replicas: Vec<i32> = spec.groups.iter().map(|g| g.replicas).collect();
        Membership::new(spec, &replicas, &self.running)
    }

    /// The members that ran together when the groups had these numbers of replicas.
    pub fn membership_before<'s>(
        &self,
        spec: &'s TrainingWorkloadSpec,
        replicas: &[i32],
    ) -> Membership<'s> {
        Membership::new(spec, replicas, &self.running)
    }
}

impl DomainLedger {
    /// True if all members have run at this placement, or are being restarted.
    pub fn under_way(&self) -> bool {
        self.incident.is_some() || self.healthy_since.is_some()
    }

    /// The open incident, if it does not concern single pods only.
    pub fn domain_incident(&self) -> Option<&OpenIncident> {
        self.incident.as_ref().filter(|i| !i.affects_single_pods())
    }
}

impl OpenIncident {
    /// True if the incident concerns single pods only. The domain then keeps its attempt.
    pub fn affects_single_pods(&self) -> bool {
        self.action.affects_single_pod()
    }
}
