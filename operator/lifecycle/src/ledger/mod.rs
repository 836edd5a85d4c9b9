//! The ledger: what the operator must remember, and the only part of a status that decisions read.
//!
//! `read` parses it and `status` writes it. In between, it has only identities, maps and sets.

mod read;
mod restart_budget;
mod spent;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::ids::{DomainKey, GangKey, NodeName, Uid};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::membership::{Membership, RunningIndexes};
use lockstep_api::workload::{
    AppliedSpec, Backoff, Cause, CheckpointRequest, FailureAction, GangMove, HistoryEntry,
    IncidentStage, KueueStatus, TrainingProgress, TrainingWorkloadSpec,
};

pub(crate) use spent::{Loss, Spent};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ledger {
    /// Spec from which the running pods were created.
    pub applied: Option<AppliedSpec>,
    pub gangs: BTreeMap<GangKey, GangLedger>,
    pub domains: BTreeMap<DomainKey, DomainLedger>,
    pub completed: BTreeSet<Member>,
    /// Members that run together, if an elastic gang has partial capacity.
    pub running: RunningIndexes,
    /// Over past and current domains. Never decreases.
    pub highest_attempt: i64,
    pub budget: RestartBudget,
    pub preemptions: i64,
    /// Newest first.
    pub history: Vec<HistoryEntry>,
    pub progress: Option<TrainingProgress>,
    pub spent: Spent,
    /// Id of the last handled request for a checkpoint by a user.
    pub user_request: Option<String>,
    /// Since when a gang holds its nodes. `None`: no gang does.
    pub started_at: Option<DateTime<Utc>>,
    /// Activity before `started_at`.
    pub active_seconds: i64,
    /// Quota from Kueue. `None`: Kueue does not manage the workload.
    pub kueue: Option<KueueStatus>,
    pub ended: Option<End>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GangLedger {
    /// True if its dependencies were met and none has been broken since.
    pub started: bool,
    /// Id of a released placement.
    pub released: Option<String>,
    pub backoff: Option<Backoff>,
    /// Consecutive placements that ended before all members ran.
    pub placement_tries: i32,
    /// Consecutive starts that failed because of the template.
    pub start_tries: i32,
    pub held_since: Option<DateTime<Utc>>,
    pub avoid: BTreeMap<NodeName, Avoidance>,
    /// The open move away from nodes with signals, otherwise the last one while its signals stand.
    pub moving: Option<GangMove>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Avoidance {
    pub reason: String,
    pub until: DateTime<Utc>,
    /// `providerID` of a node with a signal.
    pub machine: String,
    /// `bootID` of a node that was announced to leave.
    pub boot: String,
    /// Exit code of an init container that judged the node.
    pub exit_code: Option<i32>,
}

impl Avoidance {
    pub fn new(reason: &str, until: DateTime<Utc>) -> Self {
        Self {
            reason: reason.to_owned(),
            until,
            machine: String::new(),
            boot: String::new(),
            exit_code: None,
        }
    }

    /// True if the gang has left the node because of a signal.
    pub fn is_for_signal(&self) -> bool {
        [reasons::NODE_LEAVING, reasons::NODE_FAULTY].contains(&self.reason.as_str())
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DomainLedger {
    pub attempt: i64,
    /// All members restart.
    pub incident: Option<OpenIncident>,
    /// Single pods are replaced. It can be open during an incident.
    pub replacement: Option<OpenReplacement>,
    /// Consecutive charged restarts, reset after `healthyReset`.
    pub tries: i32,
    /// Consecutive restarts without a charge.
    pub uncounted_tries: i32,
    pub healthy_since: Option<DateTime<Utc>>,
    /// Accounted restarts of training containers.
    pub restarts_seen: i64,
    /// The open request for a checkpoint, otherwise the last one.
    pub request: Option<CheckpointRequest>,
    /// How often all pods were replaced together.
    pub recreations: i64,
    /// End of the accelerator time whose loss is counted. In an incident of a gang that has run,
    /// at least the time since which its members ran.
    pub lost_until: Option<DateTime<Utc>>,
}

/// An incident of a whole domain. The key consists of workload UID, domain and attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenIncident {
    /// Attempt that follows the incident.
    pub attempt: i64,
    pub cause: Cause,
    pub action: FailureAction,
    /// True if a unit of the budget was charged.
    pub counted: bool,
    pub stage: IncidentStage,
    pub replace: MemberSet,
    /// Pods to replace that existed when the incident began.
    pub old_pods: BTreeSet<Uid>,
    pub not_before: Option<DateTime<Utc>>,
    pub detected_at: DateTime<Utc>,
    pub decided_at: DateTime<Utc>,
    pub ordered_at: Option<DateTime<Utc>>,
    /// When all members had stopped and arrived.
    pub arrived_at: Option<DateTime<Utc>>,
}

/// Pods that are replaced while the other members of their domain continue to run. The attempt
/// stays.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenReplacement {
    pub cause: Cause,
    /// True if a unit of the budget was charged.
    pub counted: bool,
    pub members: MemberSet,
    /// Pods to replace that existed when the replacement began.
    pub old_pods: BTreeSet<Uid>,
    pub not_before: Option<DateTime<Utc>>,
    pub detected_at: DateTime<Utc>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestartBudget {
    pub total: i64,
    /// Without a replaced pod.
    pub in_place: i64,
    pub recreated: i64,
    pub counted: i64,
    /// Charges in the current window.
    pub counted_at: Vec<DateTime<Utc>>,
}

/// The final end of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub outcome: Outcome,
    pub reason: String,
    pub message: String,
    pub observed_generation: i64,
    pub at: DateTime<Utc>,
    /// The time to live counts from it.
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

    /// The entry of a domain of the applied spec; an empty entry for any other domain.
    pub fn domain_or_empty(&self, key: &DomainKey) -> &DomainLedger {
        static EMPTY: LazyLock<DomainLedger> = LazyLock::new(DomainLedger::default);
        self.domain(key).unwrap_or(&EMPTY)
    }

    /// True if the members of a domain have all run at the current placement, or are being restarted.
    /// Other domains may not have run yet.
    pub fn is_under_way(&self, gang: &Gang) -> bool {
        let domains = gang.domains.iter();
        domains
            .filter_map(|d| self.domain(&d.key))
            .any(DomainLedger::under_way)
    }

    /// True while Kueue has not admitted the workload: it is stopped as if suspended.
    pub fn lacks_quota(&self) -> bool {
        self.kueue.as_ref().is_some_and(|kueue| !kueue.admitted)
    }

    /// True if no member may run: by `spec.suspend`, or for want of quota.
    pub fn is_suspended(&self, spec: &TrainingWorkloadSpec) -> bool {
        spec.suspend || self.lacks_quota()
    }

    /// When `activeDeadlineSeconds` ends the workload.
    pub fn active_deadline(&self, spec: &TrainingWorkloadSpec) -> Option<DateTime<Utc>> {
        let left = spec.active_deadline_seconds? - self.active_seconds;
        Some(self.started_at? + TimeDelta::seconds(left))
    }

    /// True if all members have succeeded, so that no capacity is needed.
    pub fn is_done(&self, gang: &Gang) -> bool {
        gang.members().all(|m| self.completed.contains(m))
    }

    pub fn membership<'s>(&self, spec: &'s TrainingWorkloadSpec) -> Membership<'s> {
        Membership::new(spec, &spec.replica_counts(), &self.running)
    }

    /// The running members when the groups had these numbers of replicas.
    pub fn membership_before<'s>(
        &self,
        spec: &'s TrainingWorkloadSpec,
        replicas: &[i32],
    ) -> Membership<'s> {
        Membership::new(spec, replicas, &self.running)
    }
}

impl GangLedger {
    /// True if pods may be created on the gang's nodes.
    pub fn may_have_pods(&self) -> bool {
        self.started && self.backoff.is_none()
    }
}

impl DomainLedger {
    /// True if all members have run at this placement, or are being restarted.
    pub fn under_way(&self) -> bool {
        self.is_restarting() || self.healthy_since.is_some()
    }

    /// True if an incident or a replacement is open.
    pub fn is_restarting(&self) -> bool {
        self.incident.is_some() || self.replacement.is_some()
    }

    /// Counts lost work from the time since which all members ran.
    pub fn count_from_start(&mut self) {
        self.lost_until = self.lost_until.max(self.healthy_since);
    }

    /// True if the member gets a new pod.
    pub fn replaces(&self, member: &Member) -> bool {
        let in_incident = self.incident.as_ref().map(|i| &i.replace);
        let alone = self.replacement.as_ref().map(|r| &r.members);
        let mut replaced = in_incident.into_iter().chain(alone);
        replaced.any(|members| members.contains(member))
    }

    /// The incident in which the member restarts in its pod.
    pub fn restart_in_place(&self, member: &Member) -> Option<&OpenIncident> {
        self.incident.as_ref().filter(|_| !self.replaces(member))
    }

    /// Cause of each open incident and replacement, its time of detection, and whether it is
    /// charged.
    pub fn open_causes(&self) -> impl Iterator<Item = (&Cause, DateTime<Utc>, bool)> {
        let incident = self
            .incident
            .iter()
            .map(|i| (&i.cause, i.detected_at, i.counted));
        let replacement = self.replacement.iter();
        incident.chain(replacement.map(|r| (&r.cause, r.detected_at, r.counted)))
    }
}
