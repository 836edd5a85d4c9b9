//! Complete input of a scheduling cycle.
//!
//! The index keeps one [`GangInput`] per pod group and wakes the scheduler when it changes. A cycle
//! reads no other input, so it misses no relevant change.

pub mod hold;
pub(crate) mod intent_id;
pub mod members;
mod moves;
pub mod snapshot;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::PodGroup;
use lockstep_api::gangs::{Assignments, Gang};
use lockstep_api::ids::{ResourceVersion, Uid};
use lockstep_api::key::Key;
use lockstep_api::scheduling::{
    Placement, PodGroupStatus, PreemptionPolicy, ProvisioningState, TopologyLevel,
};
use lockstep_api::workload::{AvoidedNode, Backend, GangMove, KueueStatus};
use lockstep_model::cluster::neighbours::LabelSelector;
use lockstep_model::common::quantity::InvalidQuantity;
use lockstep_model::pods::slots::is_slot;
use lockstep_model::{
    Budget, Constraints, Node, Quota, QuotaCharge, Resources, Snapshot, VolumeCheck, VolumeNeeds,
    Weights,
};

use self::members::MembersInput;
pub use self::sources::PodSource;
use crate::input::hold::GangPhase;

#[derive(Clone, Debug)]
pub struct SchedulingInput {
    pub cluster: Snapshot,
    /// Gangs of Lockstep, ordered by key.
    pub gangs: Vec<Arc<GangInput>>,
    pub budgets: Vec<Arc<Budget>>,
    pub quotas: Vec<Arc<Quota>>,
    /// Queue weights of namespaces.
    pub weights: Arc<Weights>,
}

/// One gang: fields of its pod group and of the workload that controls it.
#[derive(Clone, Debug, PartialEq)]
pub struct GangInput {
    pub key: Key,
    pub group: PodGroupInput,
    pub workload: Arc<WorkloadInput>,
    pub gang: Arc<Gang>,
    /// Priority of the running gang as a victim, from its priority class.
    pub preemption_priority: Option<i32>,
    /// Longest wait for checkpoints of victims, from its priority class.
    pub checkpoint_wait: Option<Duration>,
    /// State of the `ProvisioningRequest` for the current try of the gang's node demand. `None`: none
    /// is seen.
    pub provisioning: Option<ProvisioningState>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PodGroupInput {
    pub uid: Uid,
    /// Precondition of writes.
    pub resource_version: Option<ResourceVersion>,
    pub generation: i64,
    pub deleting: bool,
    pub priority: i32,
    pub preempts: bool,
    /// True if preemption evicts the whole gang or no pod.
    pub whole: bool,
    /// Levels of the topology, outermost first.
    pub topology: Vec<TopologyLevel>,
    pub status: Arc<PodGroupStatus>,
    pub assigned: Option<Arc<Assignments>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadInput {
    pub uid: Uid,
    pub name: String,
    pub generation: i64,
    pub phase: GangPhase,
    pub checkpoint: Option<DateTime<Utc>>,
    /// Longest time of a checkpoint on request before a preemption. `None`: none is requested.
    pub on_request: Option<TimeDelta>,
    /// Usual time between checkpoints, without `spec.checkpoint`. `None`: unknown.
    pub checkpoint_interval: Option<TimeDelta>,
    /// Backend that the spec names.
    pub backend: Option<Backend>,
    /// Pod templates in the order of the groups in the spec.
    pub templates: Arc<[TemplateInput]>,
    /// Revision of the admission result behind the templates; 0: none.
    pub admitted: u64,
    /// Id of the released placement.
    pub released: Option<String>,
    /// How long a node may be silent before it is lost (`failurePolicy.nodeLostSeconds`).
    pub node_lost: TimeDelta,
    pub avoid: Vec<AvoidedNode>,
    /// The open move away from nodes with signals, otherwise the last one.
    pub moving: Option<GangMove>,
    /// Consecutive placements that ended before all members ran.
    pub placement_tries: i32,
    /// Latest end of the gang: the workload's deadline plus the pods' grace period. `None`:
    /// unknown.
    pub ends: Option<GangEnd>,
    /// Quota from Kueue. `None`: Kueue does not manage the workload.
    pub quota: Option<KueueStatus>,
    /// Ledger entries for the gang's members.
    pub members: MembersInput,
}

/// Latest end of a gang. The deadline of its workload counts while the workload holds nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangEnd {
    At(DateTime<Utc>),
    /// This long after the placement of a queued workload.
    After(TimeDelta),
}

impl GangEnd {
    /// The end of a gang, if an unplaced gang were placed now.
    pub(crate) fn from(self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::At(end) => Some(end),
            Self::After(time) => now.checked_add_signed(time),
        }
    }
}

/// Fields of a group's pods, from the template or as admitted.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateInput {
    pub group: String,
    /// Labels, for budgets, anti-affinity of other pods, and the opt-out from preemption.
    pub labels: BTreeMap<String, String>,
    /// Resources of one pod, or the quantity that is invalid.
    pub requests: Result<Arc<Resources>, InvalidQuantity>,
    pub grace: Duration,
    pub nodes: TemplateNodes,
    pub volumes: VolumeNeeds,
    pub storage: VolumeCheck,
    /// Quota that one pod uses. `None`: unknown.
    pub charge: Option<Arc<QuotaCharge>>,
    /// Slot that each pod takes on its node, if anti-affinity separates members of the gang.
    pub apart: Option<String>,
    /// Pods in the namespace with which the pods must not share a node.
    pub avoids: Vec<LabelSelector>,
    /// True if kube-scheduler preempts for the pods.
    pub pods_preempt: bool,
    /// Node constraint of the pods that only kube-scheduler evaluates.
    pub not_modelled: Option<String>,
    pub scheduler_name: String,
    /// First scheduling gate of another controller on the admitted pods.
    pub foreign_gate: Option<String>,
    /// Why the result of admission is unknown, so that the template is used. `None`: known.
    pub not_admitted: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TemplateNodes {
    Satisfying(Constraints),
    /// Nodes by name, from a snapshot.
    Recorded(BTreeSet<String>),
}

impl TemplateNodes {
    pub(crate) fn admit(&self, node: &Node) -> bool {
        match self {
            Self::Satisfying(constraints) => constraints.admit(node),
            Self::Recorded(names) => names.contains(node.name.as_str()),
        }
    }
}

impl WorkloadInput {
    fn alike(&self, other: &Self) -> bool {
        let Self {
            uid,
            name,
            generation,
            phase,
            checkpoint: _,
            on_request: _,
            checkpoint_interval: _,
            backend,
            templates,
            admitted: _,
            released,
            node_lost,
            avoid,
            moving,
            placement_tries,
            ends,
            quota,
            members,
        } = self;
        *uid == other.uid
            && *name == other.name
            && *generation == other.generation
            && *phase == other.phase
            && *backend == other.backend
            && (Arc::ptr_eq(templates, &other.templates) || *templates == other.templates)
            && *released == other.released
            && *node_lost == other.node_lost
            && *avoid == other.avoid
            && *moving == other.moving
            && *placement_tries == other.placement_tries
            && *ends == other.ends
            && *quota == other.quota
            && *members == other.members
    }
}

impl PodGroupInput {
    fn alike(&self, other: &Self) -> bool {
        let Self {
            uid,
            resource_version: _,
            generation,
            deleting,
            priority,
            preempts,
            whole,
            topology,
            status: _,
            assigned,
        } = self;
        *uid == other.uid
            && *generation == other.generation
            && *deleting == other.deleting
            && *priority == other.priority
            && *preempts == other.preempts
            && *whole == other.whole
            && *topology == other.topology
            && *assigned == other.assigned
    }

    /// Resource version as a number, comparable for one object; 0 if it is no number.
    pub(crate) fn version_number(&self) -> u64 {
        let version = self.resource_version.as_ref();
        version.map_or(0, |v| v.as_str().parse().unwrap_or(0))
    }

    /// `None` without a UID. Reuses the parsed placement of `previous` if the placement is equal.
    pub fn read(group: &PodGroup, previous: Option<&Self>) -> Option<Self> {
        let meta = &group.metadata;
        let spec = &group.spec.gang;
        let status = group.status.clone().unwrap_or_default();
        let assigned = match previous {
            Some(previous) if previous.status.placement == status.placement => {
                previous.assigned.clone()
            }
            _ => status
                .placement
                .as_ref()
                .map(Placement::assignments)
                .map(Arc::new),
        };
        Some(Self {
            uid: Uid::read(meta.uid.as_deref())?,
            resource_version: ResourceVersion::read(meta.resource_version.as_deref()),
            generation: meta.generation.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            priority: spec.priority,
            preempts: spec.preemption_policy != Some(PreemptionPolicy::Never),
            whole: spec.disruption_mode.all.is_some(),
            topology: spec
                .scheduling_constraints
                .iter()
                .flat_map(|c| &c.topology)
                .cloned()
                .collect(),
            status: Arc::new(status),
            assigned,
        })
    }
}

impl GangInput {
    /// True if both differ at most in status, resource version and what is known about checkpoints,
    /// which do not decide where a gang may go.
    pub(crate) fn alike(&self, other: &Self) -> bool {
        self.key == other.key
            && self.preemption_priority == other.preemption_priority
            && self.provisioning == other.provisioning
            && (Arc::ptr_eq(&self.gang, &other.gang) || self.gang == other.gang)
            && self.group.alike(&other.group)
            && (Arc::ptr_eq(&self.workload, &other.workload)
                || self.workload.alike(&other.workload))
    }

    pub fn phase(&self) -> &GangPhase {
        if self.group.deleting {
            &GangPhase::Finished
        } else {
            &self.workload.phase
        }
    }

    pub fn released(&self) -> bool {
        let id = self.group.status.placement.as_ref().map(|p| &p.id);
        id.is_some() && self.workload.released.as_ref() == id
    }

    /// True if preemption evicts the whole gang or no pod. False for basic groups.
    pub fn whole(&self) -> bool {
        self.group.whole && !self.gang.basic
    }

    /// End of the last incident of its restart domains. Earlier work cannot be lost again.
    pub fn resumed(&self) -> Option<DateTime<Utc>> {
        let domains = &self.workload.members.domains;
        domains.iter().filter_map(|d| d.healthy_since).max()
    }

    pub fn slots(&self) -> impl Iterator<Item = &str> {
        self.workload.templates.iter().flat_map(|template| {
            let requests = template.requests.iter();
            let ports = requests.flat_map(|r| r.iter()).map(|(name, _)| name);
            ports
                .filter(|name| is_slot(name))
                .chain(template.apart.as_deref())
        })
    }

    pub fn requests(&self, group: &str) -> Option<&Arc<Resources>> {
        let template = self.workload.templates.iter().find(|t| t.group == group)?;
        template.requests.as_ref().ok()
    }
}
