//! What a scheduling cycle reads, and nothing else.
//!
//! The index keeps a [`GangInput`] per pod group and wakes the scheduler when it differs: what is
//! not in it cannot be read, so no change that matters can be missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::{is_true, reasons, types};
use lockstep_api::gangs::{Gang, gangs};
use lockstep_api::ids::Uid;
use lockstep_api::key::Key;
use lockstep_api::names::{DEFAULT_SCHEDULER, MANAGED_BY, annotations, pod_group_name};
use lockstep_api::scheduling::{PodGroupStatus, PreemptionPolicy, TopologyConstraint};
use lockstep_api::workload::{AvoidedNode, DisruptionMode, Group};
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_model::gang::assignments;
use lockstep_model::neighbours::{apart_from, keeps_from_other_gangs, neighbours};
use lockstep_model::pod::{DEFAULT_GRACE, checkpoint};
use lockstep_model::quantity::InvalidQuantity;
use lockstep_model::slots::is_slot;
use lockstep_model::{
    AdmittedPods, Assignments, Budget, Constraints, GangPhase, Quota, QuotaCharge, Resources,
    Snapshot, Storage, Template, VolumeAnswer, VolumeNeeds, Weights,
};

use crate::growth::MemberLedger;

/// What is said of pods that were not sent to the API server yet.
const NOT_ASKED: &str = "it has not been asked yet";

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
    pub resource_version: String,
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
    pub members: MemberLedger,
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

/// What the pods of a workload are taken to be.
#[derive(Clone, Copy, Debug)]
pub enum PodSource<'a> {
    /// What its templates say: nobody can be asked.
    Templates,
    /// What the API server makes of them; `None`: it has not been asked yet.
    Admitted(Option<&'a AdmittedPods>),
}

/// The objects that a gang is read from.
#[derive(Clone, Copy, Debug)]
pub struct GangSources<'a> {
    /// Namespace and name of the pod group.
    pub key: &'a Key,
    /// The pod group.
    pub group: &'a PodGroup,
    /// The workload that controls it.
    pub workload: &'a TrainingWorkload,
    /// Priority as a victim, from its priority class.
    pub preemption_priority: Option<i32>,
    /// Claims, volumes and storage classes; `None`: not known, so that nothing is missing.
    pub storage: Option<&'a Storage>,
    /// The pods of the workload.
    pub pods: PodSource<'a>,
}

impl<'a> PodSource<'a> {
    fn admitted(self) -> Option<&'a AdmittedPods> {
        match self {
            Self::Templates => None,
            Self::Admitted(pods) => pods,
        }
    }

    /// Which answer of the API server counts; 0: none.
    fn revision(self) -> u64 {
        self.admitted().map_or(0, |pods| pods.revision)
    }

    /// Why it is not known what the API server makes of the pods of a group.
    fn why_not(self, group: &str) -> Option<String> {
        let Self::Admitted(pods) = self else {
            return None;
        };
        match pods.and_then(|pods| pods.groups.get(group)) {
            Some(admission) => admission.why_not().map(str::to_owned),
            None => Some(NOT_ASKED.to_owned()),
        }
    }
}

impl GangSources<'_> {
    /// Reads a gang. `None` for a pod group that its workload has not made: it counts only under
    /// the name that the workload gives it. `previous` is the same gang as read before; what has
    /// not changed is shared with it.
    pub fn read(&self, previous: Option<&GangInput>) -> Option<GangInput> {
        if !self.named_by_workload() {
            return None;
        }
        let previous = previous.filter(|p| self.workload_uid() == Some(p.workload.uid.clone()));
        let unchanged_spec = previous.filter(|p| {
            self.workload.metadata.generation == Some(p.workload.generation)
                && p.gang.key == self.group.spec.gang_key
        });
        let gang = match unchanged_spec {
            Some(previous) => Arc::clone(&previous.gang),
            None => Arc::new(self.gang()),
        };
        let templates = match unchanged_spec {
            Some(previous) if self.answers_are_the_same(previous) => {
                Arc::clone(&previous.workload.templates)
            }
            _ => self.templates(),
        };
        Some(GangInput {
            key: self.key.clone(),
            group: PodGroupInput::read(self.group, previous.map(|p| &p.group))?,
            workload: Arc::new(self.workload(&gang, templates)?),
            gang,
            preemption_priority: self.preemption_priority,
        })
    }

    fn workload_uid(&self) -> Option<Uid> {
        Uid::read(self.workload.metadata.uid.as_deref())
    }

    fn named_by_workload(&self) -> bool {
        let (group, meta) = (&self.group.metadata, &self.workload.metadata);
        let (Some(name), Some(uid)) = (&meta.name, &meta.uid) else {
            return false;
        };
        self.workload.spec.managed_by == MANAGED_BY
            && meta.namespace == group.namespace
            && group.name.as_ref() == Some(&pod_group_name(name, uid, &self.group.spec.gang_key))
    }

    /// The gang's members; none when the spec has no such gang any more.
    fn gang(&self) -> Gang {
        let key = &self.group.spec.gang_key;
        let found = gangs(&self.workload.spec)
            .into_iter()
            .find(|g| g.key == *key);
        found.unwrap_or_else(|| Gang {
            key: key.clone(),
            template: self.group.spec.workload_ref.template_name.clone(),
            basic: true,
            min_count: 0,
            disruption: DisruptionMode::Single,
            domains: Vec::new(),
        })
    }

    fn templates(&self) -> Arc<[TemplateInput]> {
        let spec = &self.workload.spec;
        let neighbours = neighbours(self.workload, self.pods.admitted());
        let templates = spec.groups.iter().zip(&neighbours).map(|(group, pods)| {
            let Template {
                requests,
                constraints,
            } = Template::from(pods.spec);
            let volumes = VolumeNeeds::from(pods.spec);
            let storage = self.storage_answer(&volumes);
            let charge = QuotaCharge::new(pods.spec, spec.priority_class_name.as_deref());
            let not_modelled = pods.not_modelled(&neighbours);
            TemplateInput {
                group: group.name.clone(),
                labels: self.labels(group),
                requests,
                nodes: TemplateNodes::Satisfying(constraints.with_volumes(storage.nodes.clone())),
                volumes,
                storage,
                charge: charge.ok().map(Arc::new),
                apart: apart_from(pods, &neighbours),
                not_modelled: not_modelled
                    .or_else(|| keeps_from_other_gangs(pods, gangs(spec).len()))
                    .map(str::to_owned),
                scheduler_name: pods
                    .spec
                    .scheduler_name
                    .clone()
                    .unwrap_or_else(|| DEFAULT_SCHEDULER.to_owned()),
                not_admitted: self.pods.why_not(&group.name),
            }
        });
        templates.collect()
    }

    fn labels(&self, group: &Group) -> BTreeMap<String, String> {
        let admitted = self.pods.admitted();
        let admitted = admitted.and_then(|all| all.groups.get(&group.name)?.pod());
        let template = group.template.0.metadata.as_ref();
        let labels = admitted
            .map(|pod| &pod.labels)
            .or_else(|| template?.labels.as_ref());
        labels.cloned().unwrap_or_default()
    }

    fn storage_answer(&self, needs: &VolumeNeeds) -> VolumeAnswer {
        let storage = self.storage.filter(|_| !needs.is_empty());
        storage.map_or_else(VolumeAnswer::default, |storage| {
            storage.answer(&self.key.namespace, needs)
        })
    }

    /// Whether storage and the API server say of the templates what they said before.
    fn answers_are_the_same(&self, previous: &GangInput) -> bool {
        let mut templates = previous.workload.templates.iter();
        previous.workload.admitted == self.pods.revision()
            && templates
                .all(|t| t.volumes.is_empty() || t.storage == self.storage_answer(&t.volumes))
    }

    fn workload(&self, gang: &Gang, templates: Arc<[TemplateInput]>) -> Option<WorkloadInput> {
        let meta = &self.workload.metadata;
        let status = self.workload.status.as_ref();
        let ledger = status.and_then(|s| s.gangs.iter().find(|g| g.key == gang.key));
        let declared = meta.annotations.as_ref();
        let declared = declared
            .and_then(|a| a.get(annotations::LAST_CHECKPOINT))
            .and_then(|text| checkpoint(text));
        let told = status
            .and_then(|s| s.progress.as_ref())
            .and_then(|p| p.checkpoint_time);
        Some(WorkloadInput {
            uid: self.workload_uid()?,
            name: meta.name.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            phase: self.phase(gang),
            checkpoint: declared.max(told),
            templates,
            admitted: self.pods.revision(),
            released: ledger.and_then(|l| l.released.clone()),
            avoid: ledger.map(|l| l.avoid.clone()).unwrap_or_default(),
            placement_tries: ledger.map_or(0, |l| l.placement_tries),
            backs_off_until: ledger.and_then(|l| Some(l.backoff.as_ref()?.until)),
            ends: self.ends(),
            members: MemberLedger::read(gang, &self.workload.spec, status),
        })
    }

    fn ends(&self) -> Option<DateTime<Utc>> {
        let (spec, status) = (&self.workload.spec, self.workload.status.as_ref()?);
        let grace = |group: &Group| {
            let pod = group.template.0.spec.as_ref();
            pod.and_then(|p| p.termination_grace_period_seconds)
                .unwrap_or(DEFAULT_GRACE)
        };
        let grace = spec.groups.iter().map(grace).max().unwrap_or(DEFAULT_GRACE);
        let left = spec.active_deadline_seconds? - status.active_seconds;
        let seconds = TimeDelta::try_seconds(left.checked_add(grace)?)?;
        status.start_time?.checked_add_signed(seconds)
    }

    fn phase(&self, gang: &Gang) -> GangPhase {
        let status = self.workload.status.as_ref();
        let conditions = status.map_or(&[][..], |s| &s.conditions);
        let ended = is_true(conditions, types::COMPLETE) || is_true(conditions, types::FAILED);
        if gang.domains.is_empty() || self.workload.metadata.deletion_timestamp.is_some() || ended {
            return GangPhase::Finished;
        }
        if self.workload.spec.suspend {
            return GangPhase::Held(reasons::SUSPENDED);
        }
        match status.and_then(|s| s.gangs.iter().find(|g| g.key == gang.key)) {
            Some(ledger) if ledger.backoff.is_some() => GangPhase::Held(reasons::BACKING_OFF),
            Some(ledger) if ledger.started => GangPhase::Active,
            _ => GangPhase::Held(reasons::WAITING_FOR_DEPENDENCY),
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
            resource_version: meta.resource_version.clone().unwrap_or_default(),
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
