//! What a scheduling cycle reads, and nothing else.
//!
//! The index keeps a [`GangInput`] per pod group and wakes the scheduler when it differs: what is
//! not in it cannot be read, so no change that matters can be missed.

mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::PodGroup;
use lockstep_api::gangs::Gang;
use lockstep_api::ids::{ResourceVersion, Uid};
use lockstep_api::key::Key;
use lockstep_api::scheduling::{PodGroupStatus, PreemptionPolicy, TopologyConstraint};
use lockstep_api::workload::AvoidedNode;
use lockstep_model::gang::assignments;
use lockstep_model::quantity::InvalidQuantity;
use lockstep_model::slots::is_slot;
use lockstep_model::{
    Assignments, Budget, Constraints, GangPhase, Node, Quota, QuotaCharge, Resources, Snapshot,
    VolumeAnswer, VolumeNeeds, Weights,
};

pub use self::sources::{GangSources, PodSource};
use crate::growth::MembersInput;

/// The cluster as of one moment.
#[derive(Clone, Debug)]
pub struct SchedulingInput {
    /// Nodes and pods.
    pub cluster: Snapshot,
    /// Our gangs, in the order of their keys.
    pub gangs: Vec<Arc<GangInput>>,
    /// Disruption budgets.
    pub budgets: Vec<Arc<Budget>>,
    /// Resource quotas.
    pub quotas: Vec<Arc<Quota>>,
    /// Weights of namespaces in the queue.
    pub weights: Arc<Weights>,
}

/// One gang: what is read of its pod group and of the workload that controls it.
#[derive(Clone, Debug, PartialEq)]
pub struct GangInput {
    /// Namespace and name of the pod group.
    pub key: Key,
    /// What is read of the pod group.
    pub group: PodGroupInput,
    /// What is read of the workload.
    pub workload: Arc<WorkloadInput>,
    /// Its members.
    pub gang: Arc<Gang>,
    /// Priority that counts when others want its capacity, once it runs; from its priority class.
    pub preemption_priority: Option<i32>,
}

/// What is read of a pod group.
#[derive(Clone, Debug, PartialEq)]
pub struct PodGroupInput {
    /// UID.
    pub uid: Uid,
    /// Version, a precondition of writes.
    pub resource_version: Option<ResourceVersion>,
    /// Generation of the spec.
    pub generation: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Priority.
    pub priority: i32,
    /// Whether it may preempt.
    pub preempts: bool,
    /// Whether preemption takes it whole or not at all.
    pub whole: bool,
    /// Members to be kept together.
    pub topology: Option<TopologyConstraint>,
    /// The status.
    pub status: PodGroupStatus,
    /// The placement in the status, parsed.
    pub assigned: Option<Arc<Assignments>>,
}

/// What is read of a workload, for one of its gangs.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadInput {
    /// UID, the owner of the pods.
    pub uid: Uid,
    /// Name.
    pub name: String,
    /// Generation of the spec.
    pub generation: i64,
    /// Whether the gang may have or get capacity, as far as the workload decides that.
    pub phase: GangPhase,
    /// The last checkpoint.
    pub checkpoint: Option<DateTime<Utc>>,
    /// Pod templates, in the order of the groups in the spec.
    pub templates: Arc<[TemplateInput]>,
    /// Which answer of the API server they were made from; 0: none.
    pub admitted: u64,
    /// Id of the placement that the gang has released.
    pub released: Option<String>,
    /// Nodes that the workload keeps the gang away from.
    pub avoid: Vec<AvoidedNode>,
    /// Placements in a row that ended before all members ran.
    pub placement_tries: i32,
    /// When it asks for capacity again after a back-off.
    pub backs_off_until: Option<DateTime<Utc>>,
    /// When the gang will have ended at the latest, by the deadline of the workload and the grace
    /// period of its pods; `None`: nobody knows.
    pub ends: Option<DateTime<Utc>>,
    /// What the ledger says about the gang's members.
    pub members: MembersInput,
}

/// What is read of a group's pods, from its template or as they were admitted.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateInput {
    /// Name of the group.
    pub group: String,
    /// Labels that put its pods out of reach of preemption, if the configuration says so.
    pub labels: BTreeMap<String, String>,
    /// What one pod holds, where its quantities can be read.
    pub requests: Result<Arc<Resources>, InvalidQuantity>,
    /// Which nodes admit it.
    pub nodes: TemplateNodes,
    /// What it asks of storage.
    pub volumes: VolumeNeeds,
    /// What storage says to that.
    pub storage: VolumeAnswer,
    /// What one pod takes of quotas; `None`: that is not known.
    pub charge: Option<Arc<QuotaCharge>>,
    /// What each pod takes of its node so that no other of the gang gets it, where they keep away from
    /// each other.
    pub apart: Option<String>,
    /// What kube-scheduler asks of a node for its pods and we do not know.
    pub not_modelled: Option<String>,
    /// Who is to bind its pods.
    pub scheduler_name: String,
    /// Why it is not known what the API server makes of its pods, so that they are taken to be as the
    /// template says; `None`: it is known.
    pub not_admitted: Option<String>,
}

/// Which nodes admit a template.
#[derive(Clone, Debug, PartialEq)]
pub enum TemplateNodes {
    /// Those that satisfy these constraints.
    Satisfying(Constraints),
    /// These, by name: as recorded in a snapshot.
    Recorded(BTreeSet<String>),
}

impl TemplateNodes {
    /// Whether a node admits the template.
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
            templates,
            admitted: _,
            released,
            avoid,
            placement_tries,
            backs_off_until,
            ends,
            members,
        } = self;
        *uid == other.uid
            && *name == other.name
            && *generation == other.generation
            && *phase == other.phase
            && (Arc::ptr_eq(templates, &other.templates) || *templates == other.templates)
            && *released == other.released
            && *avoid == other.avoid
            && *placement_tries == other.placement_tries
            && *backs_off_until == other.backs_off_until
            && *ends == other.ends
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

    /// Its version as a number, to be compared with others of its own; 0 for one that is none.
    pub(crate) fn version_number(&self) -> u64 {
        let version = self.resource_version.as_ref();
        version.map_or(0, |v| v.as_str().parse().unwrap_or(0))
    }

    /// Reads a pod group; `None` without a UID. A placement that `previous` has, too, is not parsed
    /// again.
    pub fn read(group: &PodGroup, previous: Option<&Self>) -> Option<Self> {
        let meta = &group.metadata;
        let spec = &group.spec.gang;
        let status = group.status.clone().unwrap_or_default();
        let assigned = match previous {
            Some(previous) if previous.status.placement == status.placement => {
                previous.assigned.clone()
            }
            _ => status.placement.as_ref().map(assignments).map(Arc::new),
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
                .next()
                .cloned(),
            status,
            assigned,
        })
    }
}

impl GangInput {
    /// Whether two differ at most in the status and version of the pod group, and in the last
    /// checkpoint: in nothing that decides where anybody may go.
    pub(crate) fn alike(&self, other: &Self) -> bool {
        self.key == other.key
            && self.preemption_priority == other.preemption_priority
            && (Arc::ptr_eq(&self.gang, &other.gang) || self.gang == other.gang)
            && self.group.alike(&other.group)
            && (Arc::ptr_eq(&self.workload, &other.workload)
                || self.workload.alike(&other.workload))
    }

    /// Whether the gang may have or get capacity.
    pub fn phase(&self) -> GangPhase {
        if self.group.deleting {
            GangPhase::Finished
        } else {
            self.workload.phase
        }
    }

    /// Whether the workload has released the placement that was read.
    pub fn released(&self) -> bool {
        let id = self.group.status.placement.as_ref().map(|p| &p.id);
        id.is_some() && self.workload.released.as_ref() == id
    }

    /// Whether preemption takes it whole or not at all; pods of a basic group are on their own.
    pub fn whole(&self) -> bool {
        self.group.whole && !self.gang.basic
    }

    /// When the last incident in one of its restart domains was closed: work before that is not
    /// lost again.
    pub fn resumed(&self) -> Option<DateTime<Utc>> {
        let domains = &self.workload.members.domains;
        domains.iter().filter_map(|d| d.healthy_since).max()
    }

    /// Slots of a node that its pods take.
    pub fn slots(&self) -> impl Iterator<Item = &str> {
        self.workload.templates.iter().flat_map(|template| {
            let requests = template.requests.iter();
            let ports = requests.flat_map(|r| r.iter()).map(|(name, _)| name);
            ports
                .filter(|name| is_slot(name))
                .chain(template.apart.as_deref())
        })
    }

    /// What one pod of a group holds.
    pub fn requests(&self, group: &str) -> Option<&Arc<Resources>> {
        let template = self.workload.templates.iter().find(|t| t.group == group)?;
        template.requests.as_ref().ok()
    }
}
