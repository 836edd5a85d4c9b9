//! The gangs that a manifest would create.

use anyhow::{Context, Result, anyhow};
use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::gangs::{Gang, gangs};
use lockstep_api::ids::GangKey;
use lockstep_api::names::{MANAGED_BY, pod_group_name};
use lockstep_api::scheduling::{PodGroupSpec, PodGroupStatus, WorkloadRef};
use lockstep_api::workload::GangStatus;
use lockstep_api::{PodGroup, TrainingWorkload, TrainingWorkloadStatus};
use lockstep_model::PriorityClass;
use lockstep_model::snapshot::PriorityClassRecord;
use lockstep_scheduler::{GangInput, PodSource};

/// UID of the workload in the manifest.
const NO_UID: &str = "asked";

#[derive(Clone, Debug)]
pub struct ProposedGang {
    pub key: GangKey,
    pub input: GangInput,
}

/// The gangs that a manifest would create with these priority classes. They are new, and last in
/// the queue among equals.
pub fn proposed(
    workload: &TrainingWorkload,
    classes: &[PriorityClassRecord],
    now: DateTime<Utc>,
) -> Result<Vec<ProposedGang>> {
    let classes: Vec<PriorityClass> = classes.iter().map(PriorityClass::from).collect();
    let name = workload.spec.priority_class_name.as_deref();
    let class = PriorityClass::resolve(name, classes.iter())
        .map_err(|none| anyhow!("spec.priorityClassName: {none}"))?;
    let gangs = gangs(&workload.spec);
    let workload = ready(workload, &gangs, now);
    let mut out = Vec::new();
    for (number, gang) in gangs.iter().enumerate() {
        let group = pod_group(&workload, gang, class, number, now);
        let input = GangInput::read(&group, &workload, class, PodSource::Templates, None);
        let Some(input) = input else {
            continue;
        };
        for (at, template) in input.workload.templates.iter().enumerate() {
            let requests = template.requests.as_ref().map_err(Clone::clone);
            requests.with_context(|| format!("spec.groups[{at}].template"))?;
        }
        out.push(ProposedGang {
            key: gang.key.clone(),
            input,
        });
    }
    Ok(out)
}

/// The workload in the state in which its gangs request capacity. Its deadline starts now.
fn ready(workload: &TrainingWorkload, gangs: &[Gang], now: DateTime<Utc>) -> TrainingWorkload {
    let mut workload = workload.clone();
    workload.metadata.uid = Some(NO_UID.to_owned());
    MANAGED_BY.clone_into(&mut workload.spec.managed_by);
    workload.spec.suspend = false;
    let started = gangs.iter().map(|gang| GangStatus {
        key: gang.key.to_string(),
        started: true,
        ..GangStatus::default()
    });
    workload.status = Some(TrainingWorkloadStatus {
        gangs: started.collect(),
        start_time: Some(now),
        ..TrainingWorkloadStatus::default()
    });
    workload
}

/// The pod group that the manager would create.
fn pod_group(
    workload: &TrainingWorkload,
    gang: &Gang,
    class: Option<&PriorityClass>,
    number: usize,
    now: DateTime<Utc>,
) -> PodGroup {
    let name = workload.metadata.name.clone().unwrap_or_default();
    PodGroup {
        metadata: ObjectMeta {
            name: Some(pod_group_name(&name, NO_UID, gang.key.as_str())),
            namespace: workload.metadata.namespace.clone(),
            // Sorts after every real UID: last among equals.
            uid: Some(format!("~{NO_UID}-{number:06}")),
            ..ObjectMeta::default()
        },
        spec: PodGroupSpec {
            workload_ref: WorkloadRef {
                workload_name: name,
                template_name: gang.template.clone(),
            },
            gang_key: gang.key.to_string(),
            gang: gang.spec(
                &workload.spec,
                class.map_or(0, |c| c.value),
                class.map(|c| c.preemption),
            ),
        },
        status: Some(PodGroupStatus {
            queued_at: Some(now),
            ..PodGroupStatus::default()
        }),
    }
}
