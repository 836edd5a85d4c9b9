//! Native groups of kube-scheduler (`scheduling.k8s.io`), beside Lockstep's own scheduling objects.
//!
//! Priority and preemption policy are left to admission, which reads them from the class as it does
//! for pods: kube-scheduler schedules no member whose values differ from those of its group.

use k8s_openapi::api::scheduling::v1beta1::{
    AllDisruptionMode, DisruptionMode, GangSchedulingPolicy, PodGroup, PodGroupSchedulingPolicy,
    PodGroupSpec, PodGroupTemplate, SingleDisruptionMode, TypedLocalObjectReference, Workload,
    WorkloadReference, WorkloadSpec,
};
use lockstep_api::TRAINING_GROUP;
use lockstep_api::gangs::Gang;
use lockstep_api::names::native_workload_name;
use lockstep_api::workload::DisruptionMode as Mode;
use serde_json::json;

use super::metadata::metadata;
use crate::observed::Observed;

/// A native group that a gang needs.
pub(crate) struct NativeGang<'g> {
    pub gang: &'g Gang,
    pub name: String,
    /// Members that kube-scheduler places together.
    pub min_count: i32,
}

fn policy(min_count: i32) -> PodGroupSchedulingPolicy {
    PodGroupSchedulingPolicy {
        basic: None,
        gang: Some(GangSchedulingPolicy { min_count }),
    }
}

fn mode(gang: &Gang) -> DisruptionMode {
    match gang.disruption {
        Mode::All => DisruptionMode {
            all: Some(AllDisruptionMode(json!({}))),
            single: None,
        },
        Mode::Single => DisruptionMode {
            all: None,
            single: Some(SingleDisruptionMode(json!({}))),
        },
    }
}

/// One template for each kind of gang. Without priority: only pod groups get theirs by admission.
pub(crate) fn native_workload<'g>(
    view: Observed<'_>,
    gangs: impl Iterator<Item = &'g Gang>,
) -> Workload {
    let mut templates: Vec<PodGroupTemplate> = Vec::new();
    for gang in gangs {
        if templates.iter().all(|t| t.name != gang.template) {
            templates.push(PodGroupTemplate {
                name: gang.template.clone(),
                scheduling_policy: policy(gang.min_count),
                disruption_mode: Some(mode(gang)),
                priority_class_name: view.spec().priority_class_name.clone(),
                ..PodGroupTemplate::default()
            });
        }
    }
    let content = serde_json::to_string(&templates).unwrap_or_default();
    Workload {
        metadata: metadata(
            view,
            native_workload_name(view.name(), view.uid(), &content),
        ),
        spec: WorkloadSpec {
            composite_pod_group_templates: None,
            controller_ref: Some(TypedLocalObjectReference {
                api_group: Some(TRAINING_GROUP.into()),
                kind: "TrainingWorkload".into(),
                name: view.name().to_owned(),
            }),
            pod_group_templates: Some(templates),
        },
    }
}

pub(crate) fn native_pod_group(
    view: Observed<'_>,
    native: &NativeGang<'_>,
    workload: &str,
) -> PodGroup {
    let spec = PodGroupSpec {
        scheduling_policy: policy(native.min_count),
        disruption_mode: Some(mode(native.gang)),
        priority_class_name: view.spec().priority_class_name.clone(),
        workload_ref: Some(WorkloadReference {
            workload_name: workload.to_owned(),
            template_name: native.gang.template.clone(),
        }),
        ..PodGroupSpec::default()
    };
    PodGroup {
        metadata: metadata(view, native.name.clone()),
        spec,
        status: None,
    }
}
