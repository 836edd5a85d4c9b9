//! A gang as its objects describe it: what it asks for, what it has, and whether it may have anything.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::condition::{is_true, reasons, types};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::{MANAGED_BY, annotations, pod_group_name};
use lockstep_api::scheduling::{Placement, PreemptionPolicy, TopologyConstraint};
use lockstep_api::workload::{DomainStatus, GangStatus, Group, TopologyScope};
use lockstep_api::{PodGroup, TrainingWorkload};

use crate::pod::checkpoint;

/// Node of each placed member.
pub type Seats = BTreeMap<Member, String>;

/// One gang as its objects describe it.
#[derive(Clone, Copy, Debug)]
pub struct GangView<'a> {
    /// Its pod group.
    pub group: &'a PodGroup,
    /// The workload that controls the pod group.
    pub workload: &'a TrainingWorkload,
}

/// Whether a gang may have or get room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It ended, or is being deleted: its pods go, and nothing is kept for it.
    Over,
    /// It does not ask for room now, for this reason.
    Held(&'static str),
    /// It asks for room, or has it.
    Active,
}

impl<'a> GangView<'a> {
    /// Whether the pod group has the name that its workload gives it, so that nobody can add one.
    pub fn genuine(&self) -> bool {
        let (group, meta) = (&self.group.metadata, &self.workload.metadata);
        let (Some(name), Some(uid)) = (&meta.name, &meta.uid) else { return false };
        self.workload.spec.managed_by == MANAGED_BY
            && meta.namespace == group.namespace
            && group.name.as_ref() == Some(&pod_group_name(name, uid, &self.group.spec.gang_key))
    }

    /// Whether it may have or get room.
    pub fn standing(&self) -> Standing {
        let conditions = self.workload.status.as_ref().map_or(&[][..], |s| &s.conditions);
        let deleting =
            self.workload.metadata.deletion_timestamp.is_some() || self.group.metadata.deletion_timestamp.is_some();
        if deleting || is_true(conditions, types::COMPLETE) || is_true(conditions, types::FAILED) {
            return Standing::Over;
        }
        if self.workload.spec.suspend {
            return Standing::Held(reasons::SUSPENDED);
        }
        match self.ledger() {
            Some(ledger) if ledger.backoff.is_some() => Standing::Held(reasons::BACKING_OFF),
            Some(ledger) if ledger.started => Standing::Active,
            _ => Standing::Held(reasons::WAITING_FOR_DEPENDENCY),
        }
    }

    /// The workload's ledger of this gang.
    pub fn ledger(&self) -> Option<&'a GangStatus> {
        let gangs = &self.workload.status.as_ref()?.gangs;
        gangs.iter().find(|g| g.key == self.group.spec.gang_key)
    }

    /// The placement as read.
    pub fn placement(&self) -> Option<&'a Placement> {
        self.group.status.as_ref()?.placement.as_ref()
    }

    /// Whether the workload has given this placement back.
    pub fn released(&self) -> bool {
        let id = self.placement().map(|p| &p.id);
        id.is_some() && self.ledger().and_then(|l| l.released.as_ref()) == id
    }

    /// Whether a condition, as read, says that it is being preempted.
    pub fn disrupted(&self) -> bool {
        self.group.status.as_ref().is_some_and(|s| is_true(&s.conditions, types::DISRUPTION_TARGET))
    }

    /// Priority of the gang.
    pub fn priority(&self) -> i32 {
        self.group.spec.gang.priority
    }

    /// Whether it may evict others.
    pub fn preempts(&self) -> bool {
        self.group.spec.gang.preemption_policy != Some(PreemptionPolicy::Never)
    }

    /// Whether preemption takes it whole or not at all; pods of a basic group are on their own.
    pub fn whole(&self, basic: bool) -> bool {
        !basic && self.group.spec.gang.disruption_mode.all.is_some()
    }

    /// Members to be kept together.
    pub fn topology(&self) -> Option<&'a TopologyConstraint> {
        self.group.spec.gang.scheduling_constraints.iter().flat_map(|c| &c.topology).next()
    }

    /// Nodes that the workload stays away from.
    pub fn avoided(&self, now: DateTime<Utc>) -> impl Iterator<Item = &'a str> + use<'a> {
        let avoid = self.ledger().into_iter().flat_map(|l| &l.avoid);
        avoid.filter(move |a| a.until > now).map(|a| a.node.as_str())
    }

    /// When the last incident in one of these restart domains was closed: work before that is not lost again.
    pub fn resumed(&self, domains: &[&str]) -> Option<DateTime<Utc>> {
        let all: &[DomainStatus] = self.workload.status.as_ref().map_or(&[], |s| &s.domains);
        all.iter().filter(|d| domains.contains(&d.key.as_str())).filter_map(|d| d.healthy_since).max()
    }

    /// The last checkpoint of the workload.
    pub fn checkpoint(&self) -> Option<DateTime<Utc>> {
        let annotations = self.workload.metadata.annotations.as_ref()?;
        checkpoint(annotations.get(annotations::LAST_CHECKPOINT)?)
    }
}

/// The placement's node of each member. One that does not parse places nobody: it is not ours, and is written anew.
pub fn seats(placement: &Placement) -> Seats {
    let mut out = Seats::new();
    for at in &placement.nodes {
        for member in MemberSet::parse(&at.members).unwrap_or_default() {
            out.insert(member, at.node.clone());
        }
    }
    out
}

/// The members that a gang asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turnout {
    /// By position of the group in the workload's spec; groups of which nobody is asked for are left out.
    pub by_group: Vec<(usize, Vec<Member>)>,
    /// How many of them the gang needs.
    pub needed: u32,
    /// Whether members that have succeeded are among them.
    pub all: bool,
}

impl Turnout {
    /// Those of a gang's members that have not succeeded. Under replica scope all are asked for: the engine knows replicas
    /// of one size.
    pub fn new(
        groups: &[Group],
        members: &[&Member],
        min_count: i32,
        done: &BTreeSet<Member>,
        topology: Option<&TopologyConstraint>,
    ) -> Self {
        let all = topology.is_some_and(|t| t.scope == TopologyScope::Replica);
        let asked = |name: &str| -> Vec<Member> {
            let of_group = members.iter().filter(|m| m.group == name && (all || !done.contains(**m)));
            of_group.map(|m| (*m).clone()).collect()
        };
        let by_group = groups.iter().enumerate().map(|(ix, group)| (ix, asked(&group.name)));
        let min_count = usize::try_from(min_count).unwrap_or_default();
        let finished = if all { 0 } else { members.iter().filter(|m| done.contains(**m)).count() };
        Self {
            by_group: by_group.filter(|(_, members)| !members.is_empty()).collect(),
            needed: min_count.saturating_sub(finished) as u32,
            all,
        }
    }
}

/// Priority that gangs of a class have as victims once they run (`preemptionPriority` of KEP-5710's future section): an
/// annotation of the `PriorityClass`, since whoever may set it for a workload could make that immune. One that is no number
/// is none.
pub fn preemption_priority(class: &ObjectMeta) -> Option<i32> {
    class.annotations.as_ref()?.get(annotations::PREEMPTION_PRIORITY)?.parse().ok()
}
