use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use lockstep_api::condition::{is_true, types};
use lockstep_api::gangs::{Gang, gangs};
use lockstep_api::ids::{GangKey, Uid};
use lockstep_api::key::Key;
use lockstep_api::names::{DEFAULT_SCHEDULER, MANAGED_BY, annotations, pod_group_name};
use lockstep_api::template::{DEFAULT_GRACE, grace_seconds};
use lockstep_api::workload::{CheckpointOccasion, DisruptionMode, TrainingProgress};
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_model::cluster::neighbours::{apart_from, keeps_from_other_gangs, neighbours};
use lockstep_model::pods::pod::{checkpoint, foreign_gate};
use lockstep_model::volumes::MissingVolume;
use lockstep_model::{
    AdmittedPods, PriorityClass, QuotaCharge, Storage, Template, VolumeCheck, VolumeNeeds,
};

use super::{GangEnd, GangInput, PodGroupInput, TemplateInput, TemplateNodes, WorkloadInput};
use crate::input::hold::{GangPhase, Hold};
use crate::input::members::MembersInput;

/// Message for pods without a dry run.
const NO_DRY_RUN: &str = "no dry run yet";

/// Constraint of a claim that several pods mount.
const ONE_POD: &str = "ReadWriteOncePod claim that several members mount";

/// Source of the pods of a workload.
#[derive(Clone, Copy, Debug)]
pub enum PodSource<'a> {
    /// Its templates, without an API server. No volume claim counts as missing.
    Templates,
    Cluster {
        /// The pods as admitted. `None`: no dry run yet.
        admitted: Option<&'a AdmittedPods>,
        storage: &'a Storage,
    },
}

impl GangInput {
    /// Reads a gang with its priority class. `None` if the pod group is not the workload's: its name would differ. Shares unchanged parts
    /// with `previous`.
    pub fn read(
        group: &PodGroup,
        workload: &TrainingWorkload,
        class: Option<&PriorityClass>,
        pods: PodSource<'_>,
        previous: Option<&Self>,
    ) -> Option<Self> {
        if !is_named_by(group, workload) {
            return None;
        }
        let (key, meta) = (Key::of(group), &workload.metadata);
        let uid = Uid::read(meta.uid.as_deref())?;
        let previous = previous.filter(|p| uid == p.workload.uid);
        let unchanged_spec = previous.filter(|p| {
            meta.generation == Some(p.workload.generation) && p.gang.key == *group.spec.gang_key
        });
        let gang = match unchanged_spec {
            Some(previous) => Arc::clone(&previous.gang),
            None => Arc::new(read_gang(group, workload)?),
        };
        let quota = workload.status.as_ref().and_then(|s| s.kueue.as_ref());
        let templates = match unchanged_spec.filter(|p| p.workload.quota.as_ref() == quota) {
            Some(previous) if pods.matches_previous(&gang, previous) => {
                Arc::clone(&previous.workload.templates)
            }
            _ => pods.templates(&key.namespace, workload, &gang),
        };
        let status = workload.status.as_ref();
        let ledger = status.and_then(|s| s.gangs.iter().find(|g| gang.key == *g.key));
        let declared = meta
            .annotations
            .as_ref()
            .and_then(|a| a.get(annotations::LAST_CHECKPOINT))
            .and_then(|text| checkpoint(text));
        let progress = status.and_then(|s| s.progress.as_ref());
        let reported = progress.and_then(|p| p.checkpoint_time);
        let on_request = workload.spec.checkpoint.as_ref().map(|c| &c.on_request);
        let interval = progress.and_then(TrainingProgress::usual_checkpoint_interval);
        let workload = WorkloadInput {
            uid,
            name: meta.name.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            phase: phase(workload, &gang),
            checkpoint: declared.max(reported),
            on_request: on_request
                .filter(|c| c.occasions.contains(&CheckpointOccasion::Preemption))
                .map(|c| TimeDelta::seconds(c.timeout_seconds)),
            checkpoint_interval: interval.filter(|_| on_request.is_none()),
            backend: workload.spec.scheduling.backend,
            templates,
            admitted: pods.revision(),
            released: ledger.and_then(|l| l.released.clone()),
            node_lost: TimeDelta::seconds(workload.spec.failure_policy.node_lost_seconds),
            avoid: ledger.map(|l| l.avoid.clone()).unwrap_or_default(),
            moving: ledger.and_then(|l| l.moving.clone()),
            placement_tries: ledger.map_or(0, |l| l.placement_tries),
            ends: ends(workload),
            quota: quota.cloned(),
            members: MembersInput::read(&gang, &workload.spec, status),
        };
        Some(Self {
            key,
            group: PodGroupInput::read(group, previous.map(|p| &p.group))?,
            workload: Arc::new(workload),
            gang,
            preemption_priority: class.and_then(|c| c.preemption_priority),
            checkpoint_wait: class.and_then(|c| c.checkpoint_wait),
            provisioning: None,
        })
    }
}

impl<'a> PodSource<'a> {
    fn admitted(self) -> Option<&'a AdmittedPods> {
        match self {
            Self::Templates => None,
            Self::Cluster { admitted, .. } => admitted,
        }
    }

    fn storage(self) -> Option<&'a Storage> {
        match self {
            Self::Templates => None,
            Self::Cluster { storage, .. } => Some(storage),
        }
    }

    /// Revision of the admission result; 0: none.
    fn revision(self) -> u64 {
        self.admitted().map_or(0, |pods| pods.revision)
    }

    fn why_not(self, group: &str) -> Option<String> {
        let Self::Cluster { admitted, .. } = self else {
            return None;
        };
        match admitted.and_then(|pods| pods.groups.get(group)) {
            Some(admission) => admission.why_not().map(str::to_owned),
            None => Some(NO_DRY_RUN.to_owned()),
        }
    }

    fn templates(
        self,
        namespace: &str,
        workload: &TrainingWorkload,
        gang: &Gang,
    ) -> Arc<[TemplateInput]> {
        let spec = &workload.spec;
        let neighbours = neighbours(workload, self.admitted());
        let needs: Vec<VolumeNeeds> = neighbours
            .iter()
            .map(|pods| VolumeNeeds::from(pods.spec))
            .collect();
        let needs_by_group = spec.groups.iter().map(|g| g.name.as_str()).zip(&needs);
        let results = self.storage_checks(namespace, gang, needs_by_group);
        let groups = spec.groups.iter().zip(&neighbours);
        let templates = groups.zip(needs.into_iter().zip(results)).map(
            |((group, pods), (volumes, storage))| {
                let quota = workload.status.as_ref().and_then(|s| s.kueue.as_ref());
                let flavored = quota.and_then(|q| q.pod_set(&group.name)).map(|set| {
                    let mut spec = pods.spec.clone();
                    set.apply(&mut spec);
                    spec
                });
                let Template {
                    requests,
                    constraints,
                } = Template::from(flavored.as_ref().unwrap_or(pods.spec));
                let charge = QuotaCharge::new(pods.spec, spec.priority_class_name.as_deref());
                let not_modelled = pods.not_modelled(&neighbours);
                TemplateInput {
                    group: group.name.clone(),
                    labels: pods.labels.clone(),
                    grace: Duration::from_secs(grace_seconds(&group.template.0).unsigned_abs()),
                    requests,
                    nodes: TemplateNodes::Satisfying(
                        constraints.with_volumes(storage.nodes.clone()),
                    ),
                    not_modelled: not_modelled
                        .or_else(|| keeps_from_other_gangs(pods, gangs(spec).len()))
                        .map(str::to_owned)
                        .or_else(|| storage.not_modelled.clone()),
                    volumes,
                    storage,
                    charge: charge.ok().map(Arc::new),
                    apart: apart_from(pods, &neighbours),
                    avoids: pods.avoided(),
                    pods_preempt: pods.spec.preemption_policy.as_deref() != Some("Never"),
                    scheduler_name: pods
                        .spec
                        .scheduler_name
                        .clone()
                        .unwrap_or_else(|| DEFAULT_SCHEDULER.to_owned()),
                    foreign_gate: pods
                        .spec
                        .scheduling_gates
                        .as_deref()
                        .and_then(foreign_gate)
                        .map(str::to_owned),
                    not_admitted: self.why_not(&group.name),
                }
            },
        );
        templates.collect()
    }

    fn storage_checks<'n>(
        self,
        namespace: &str,
        gang: &Gang,
        needs_by_group: impl Iterator<Item = (&'n str, &'n VolumeNeeds)>,
    ) -> Vec<VolumeCheck> {
        let mut checks: Vec<_> = needs_by_group
            .map(|(group, needs)| (group, self.storage_check(namespace, needs)))
            .collect();
        one_pod_claims(gang, &mut checks);
        checks.into_iter().map(|(_, check)| check).collect()
    }

    fn storage_check(self, namespace: &str, needs: &VolumeNeeds) -> VolumeCheck {
        let storage = self.storage().filter(|_| !needs.is_empty());
        let check = storage.map(|storage| storage.check(namespace, needs));
        check.unwrap_or_default()
    }

    /// True if storage and admission answer as before.
    fn matches_previous(self, gang: &Gang, previous: &GangInput) -> bool {
        if previous.workload.admitted != self.revision() {
            return false;
        }
        let templates = &previous.workload.templates;
        let needs_by_group = templates.iter().map(|t| (t.group.as_str(), &t.volumes));
        templates.iter().all(|t| t.volumes.is_empty())
            || templates
                .iter()
                .map(|t| &t.storage)
                .eq(&self.storage_checks(&previous.key.namespace, gang, needs_by_group))
    }
}

fn is_named_by(group: &PodGroup, workload: &TrainingWorkload) -> bool {
    let (spec, meta) = (&group.spec, &workload.metadata);
    let (Some(name), Some(uid)) = (&meta.name, &meta.uid) else {
        return false;
    };
    workload.spec.managed_by == MANAGED_BY
        && meta.namespace == group.metadata.namespace
        && group.metadata.name.as_ref() == Some(&pod_group_name(name, uid, &spec.gang_key))
}

/// Members of the gang; empty if the spec has no such gang. `None` without a key.
fn read_gang(group: &PodGroup, workload: &TrainingWorkload) -> Option<Gang> {
    let key = GangKey::read(Some(&group.spec.gang_key))?;
    let mut all = gangs(&workload.spec).into_iter();
    let found = all.find(|g| g.key == key);
    Some(found.unwrap_or_else(|| Gang {
        key,
        template: group.spec.workload_ref.template_name.clone(),
        basic: true,
        min_count: 0,
        disruption: DisruptionMode::Single,
        domains: Vec::new(),
    }))
}

fn ends(workload: &TrainingWorkload) -> Option<GangEnd> {
    let (spec, status) = (&workload.spec, workload.status.as_ref()?);
    let graces = spec.groups.iter().map(|g| grace_seconds(&g.template.0));
    let longest = graces.max();
    let grace = longest.unwrap_or(DEFAULT_GRACE);
    let left = spec.active_deadline_seconds? - status.active_seconds;
    let left = TimeDelta::try_seconds(left.checked_add(grace)?)?;
    match status.start_time {
        Some(start) => start.checked_add_signed(left).map(GangEnd::At),
        None => Some(GangEnd::After(left)),
    }
}

fn phase(workload: &TrainingWorkload, gang: &Gang) -> GangPhase {
    let status = workload.status.as_ref();
    let conditions = status.map_or(&[][..], |s| &s.conditions);
    let ended = is_true(conditions, types::COMPLETE) || is_true(conditions, types::FAILED);
    if gang.domains.is_empty() || workload.metadata.deletion_timestamp.is_some() || ended {
        return GangPhase::Finished;
    }
    if workload.spec.suspend {
        return GangPhase::Held(Hold::Suspended);
    }
    if status
        .and_then(|s| s.kueue.as_ref())
        .is_some_and(|kueue| !kueue.admitted)
    {
        return GangPhase::Held(Hold::NotAdmitted);
    }
    let ledger = status.and_then(|s| s.gangs.iter().find(|g| gang.key == *g.key));
    match ledger.map(|ledger| (&ledger.backoff, ledger.started)) {
        Some((Some(backoff), _)) => GangPhase::Held(Hold::BackingOff {
            until: backoff.until,
        }),
        Some((None, true)) => GangPhase::Active,
        _ => GangPhase::Held(Hold::Dependency),
    }
}

/// Handles `ReadWriteOncePod` claims of several members. A gang that needs more than one of these
/// members cannot run. Otherwise kube-scheduler decides which member mounts the claim.
fn one_pod_claims(gang: &Gang, checks: &mut [(&str, VolumeCheck)]) {
    let claims: BTreeSet<String> = checks
        .iter()
        .flat_map(|(_, check)| check.one_pod.iter().cloned())
        .collect();
    for claim in claims {
        let mounting: BTreeSet<&str> = checks
            .iter()
            .filter(|(_, a)| a.one_pod.contains(&claim))
            .map(|(group, _)| *group)
            .collect();
        let members = gang
            .members()
            .filter(|m| mounting.contains(&*m.group))
            .count();
        let dispensable = gang.size().saturating_sub(gang.min_count.max(0) as usize);
        let needed = members.saturating_sub(if gang.basic { members } else { dispensable });
        for (_, check) in checks.iter_mut() {
            if !check.one_pod.contains(&claim) {
                continue;
            }
            if needed > 1 {
                check.missing.push(MissingVolume::OnePod {
                    claim: claim.clone(),
                    members,
                });
            } else if members > 1 {
                check.not_modelled = Some(ONE_POD.to_owned());
            }
        }
    }
}
