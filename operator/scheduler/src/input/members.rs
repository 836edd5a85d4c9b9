//! Ledger entries for the members of a gang.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::gangs::Gang;
use lockstep_api::ids::DomainKey;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::membership::Membership;
use lockstep_api::workload::{
    CheckpointRequest, DomainStatus, Group, TrainingWorkloadSpec, TrainingWorkloadStatus,
};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct MembersInput {
    pub completed: BTreeSet<Member>,
    /// Members that need no more capacity: they, or all present members of their group, have
    /// succeeded.
    pub finished: BTreeSet<Member>,
    pub absent: BTreeSet<Member>,
    /// Restart domains in the order of the gang, without domains that have no ledger entry.
    pub domains: Vec<DomainInput>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DomainInput {
    pub key: DomainKey,
    /// Pods replaced by the open incident and by the open replacement of single pods. `None` if
    /// neither is open.
    pub incident: Option<Replacement>,
    /// Since when all members of the domain run.
    pub healthy_since: Option<DateTime<Utc>>,
    /// The open request for a checkpoint, otherwise the last one.
    pub request: Option<CheckpointRequest>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replacement {
    pub members: BTreeSet<Member>,
    pub old_pods: BTreeSet<String>,
}

impl Replacement {
    fn of(ledger: &DomainStatus) -> Option<Self> {
        let incident = ledger.incident.iter().map(|i| (&i.replace, &i.old_pods));
        let alone = ledger.replacement.iter();
        let mut all = ledger.is_restarting().then(Self::default)?;
        for (members, old_pods) in incident.chain(alone.map(|r| (&r.members, &r.old_pods))) {
            // An invalid range names no member. The workload controller owns the ledger and
            // repairs it.
            all.members
                .extend(MemberSet::parse(members).unwrap_or_default());
            all.old_pods.extend(old_pods.iter().cloned());
        }
        Some(all)
    }
}

impl MembersInput {
    /// Reads the workload's status for a gang of its spec.
    pub fn read(
        gang: &Gang,
        spec: &TrainingWorkloadSpec,
        status: Option<&TrainingWorkloadStatus>,
    ) -> Self {
        let Some(status) = status else {
            return Self::default();
        };
        let membership = Membership::of(spec, status);
        let completed = spec.completed(status);
        let mut finished = completed.clone();
        for group in &spec.groups {
            let partial = membership.size_of(&group.name) < spec.members_of(group);
            if partial && membership.complete(&group.name, &completed) {
                finished.extend(all_members(spec, group));
            }
        }
        let ours: BTreeSet<&Member> = gang.members().collect();
        let of_gang = |m: &&Member| ours.contains(*m);
        let domains = gang.domains.iter().filter_map(|domain| {
            let ledger = status.domains.iter().find(|s| domain.key == *s.key)?;
            Some(DomainInput {
                key: domain.key.clone(),
                incident: Replacement::of(ledger),
                healthy_since: ledger.healthy_since,
                request: ledger.checkpoint_request.clone(),
            })
        });
        Self {
            domains: domains.collect(),
            absent: gang
                .members()
                .filter(|m| !membership.contains(m))
                .cloned()
                .collect(),
            completed: completed.iter().filter(of_gang).cloned().collect(),
            finished: finished.iter().filter(of_gang).cloned().collect(),
        }
    }

    /// Restart domains with at least one member in the current membership.
    pub(crate) fn domains_in_use<'s>(
        &'s self,
        gang: &'s Gang,
    ) -> impl Iterator<Item = &'s DomainInput> {
        let in_use = gang
            .domains
            .iter()
            .filter(|d| d.members.iter().any(|m| !self.absent.contains(m)));
        in_use.filter_map(|d| self.domains.iter().find(|l| l.key == d.key))
    }
}

fn all_members<'g>(
    spec: &TrainingWorkloadSpec,
    group: &'g Group,
) -> impl Iterator<Item = Member> + use<'g> {
    let replicas = 0..spec.replicas_of(group);
    let numbers = replicas.flat_map(|r| (0..group.size).map(move |i| (r, i)));
    numbers.map(|(replica, index)| Member::new(group.name.as_str(), replica, index))
}
