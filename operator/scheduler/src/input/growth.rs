//! Members of a gang to place now. An elastic gang starts with the members that fit, and grows
//! later.
//!
//! A change of membership costs a restart. So a gang takes free capacity when it is placed, and
//! keeps its size while it starts and while an incident is open. It grows only after it has run for
//! some time without incident, and never preempts to grow.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::gangs::{Assignments, Gang};
use lockstep_api::ids::DomainKey;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::membership::Membership;
use lockstep_api::workload::{Group, TrainingWorkloadSpec, TrainingWorkloadStatus};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembersToPlace {
    /// `None`: all members.
    pub only: Option<BTreeSet<Member>>,
    /// True if the gang runs without the missing members. They take free capacity only.
    pub growing: bool,
    /// Time of the growth, if the gang only waits for that time.
    pub grows_at: Option<DateTime<Utc>>,
}

/// Ledger entries for the members of one gang, parsed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MembersInput {
    pub completed: BTreeSet<Member>,
    /// Members that need no more capacity: succeeded, or all present members of their group have.
    pub finished: BTreeSet<Member>,
    /// Members outside the current membership.
    pub absent: BTreeSet<Member>,
    /// Restart domains in the order of the gang, without domains that have no ledger entry.
    pub domains: Vec<DomainInput>,
}

/// Ledger entry of a restart domain.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainInput {
    pub key: DomainKey,
    /// Pods replaced by the open incident. `None` without an incident.
    pub incident: Option<Replacement>,
    /// Since when all members of the domain run.
    pub healthy_since: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replacement {
    /// Members that get a new pod.
    pub members: BTreeSet<Member>,
    pub old_pods: BTreeSet<String>,
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
        let completed = status.completed(&spec.groups);
        let mut finished = completed.clone();
        for group in &spec.groups {
            let partial = membership.size_of(&group.name) < group.members();
            if partial && membership.complete(&group.name, &completed) {
                finished.extend(all_members(group));
            }
        }
        let ours: BTreeSet<&Member> = gang.members().collect();
        let of_gang = |m: &&Member| ours.contains(*m);
        let domains = gang.domains.iter().filter_map(|domain| {
            let ledger = status.domains.iter().find(|s| domain.key == *s.key)?;
            Some(DomainInput {
                key: domain.key.clone(),
                // An invalid range names no member. The workload controller owns the ledger and
                // repairs it.
                incident: ledger.incident.as_ref().map(|incident| Replacement {
                    members: MemberSet::parse(&incident.replace)
                        .unwrap_or_default()
                        .into_iter()
                        .collect(),
                    old_pods: incident.old_pods.iter().cloned().collect(),
                }),
                healthy_since: ledger.healthy_since,
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
    fn domains_in_use<'s>(&'s self, gang: &'s Gang) -> impl Iterator<Item = &'s DomainInput> {
        let in_use = gang
            .domains
            .iter()
            .filter(|d| d.members.iter().any(|m| !self.absent.contains(m)));
        in_use.filter_map(|d| self.domains.iter().find(|l| l.key == d.key))
    }
}

/// Members to place of a gang with these nodes (`None`: no placement). The gang grows after
/// `grow_after` without incident, or at the first opportunity if its minimum was raised.
pub fn members_to_place(
    gang: &Gang,
    ledger: &MembersInput,
    assigned: Option<&Assignments>,
    now: DateTime<Utc>,
    grow_after: TimeDelta,
) -> MembersToPlace {
    let Some(assigned) = assigned.filter(|_| !gang.basic) else {
        return MembersToPlace::default();
    };
    let completed = &ledger.completed;
    let placed = |m: &Member| assigned.contains_key(m) || completed.contains(m);
    let min_count = gang.min_count.max(0) as usize;
    let never_ran = |d: &DomainInput| d.incident.is_none() && d.healthy_since.is_none();
    if ledger.domains_in_use(gang).all(never_ran) {
        let enough = gang.members().filter(|m| placed(m)).count() >= min_count;
        return if enough {
            MembersToPlace::only(gang, placed)
        } else {
            MembersToPlace::default()
        };
    }
    let running = MembersToPlace::only(gang, |m| !ledger.absent.contains(m) || placed(m));
    let healthy: Option<Vec<DateTime<Utc>>> = ledger
        .domains_in_use(gang)
        .map(|d| d.healthy_since.filter(|_| d.incident.is_none()))
        .collect();
    let Some(healthy_since) = healthy.and_then(|all| all.into_iter().max()) else {
        return running;
    };
    if running.only.is_none() {
        return MembersToPlace {
            growing: true,
            ..running
        };
    }
    // A restart would rerun members that have succeeded.
    if gang.members().any(|m| completed.contains(m)) {
        return running;
    }
    // Below its minimum, `replicas` or `minCount` was raised, and the gang grows without delay.
    let present = gang.members().filter(|m| !ledger.absent.contains(*m));
    let grows_at = if present.count() < min_count {
        healthy_since
    } else {
        healthy_since + grow_after
    };
    if now >= grows_at {
        return MembersToPlace {
            growing: true,
            ..MembersToPlace::default()
        };
    }
    MembersToPlace {
        growing: true,
        grows_at: Some(grows_at),
        ..running
    }
}

impl MembersToPlace {
    pub fn contains(&self, member: &Member) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(member))
    }

    fn only(gang: &Gang, wanted: impl Fn(&Member) -> bool) -> Self {
        let all = gang.members().all(&wanted);
        let only = (!all).then(|| gang.members().filter(|m| wanted(m)).cloned().collect());
        Self {
            only,
            ..Self::default()
        }
    }
}

fn all_members(group: &Group) -> impl Iterator<Item = Member> {
    let numbers = (0..group.replicas).flat_map(|r| (0..group.size).map(move |i| (r, i)));
    numbers.map(|(replica, index)| Member::new(group.name.as_str(), replica, index))
}
