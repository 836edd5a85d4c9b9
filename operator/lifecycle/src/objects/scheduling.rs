use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use lockstep_api::gangs::Gang;
use lockstep_api::names::{labels, pod_group_name};
use lockstep_api::scheduling::{ControllerRef, GangSpec, PodGroupTemplate, WorkloadRef};
use lockstep_api::{
    PodGroup, PodGroupSpec, RestartOrder, RestartOrderSpec, TRAINING_GROUP, Workload, WorkloadSpec,
};

use super::metadata::metadata;
use crate::observed::Observed;
use crate::view::{Priority, ServiceContent};

pub(crate) fn service_content(view: Observed<'_>) -> ServiceContent {
    ServiceContent {
        selector: BTreeMap::from([(labels::PUBLISHED.to_owned(), view.uid().to_owned())]),
        publish_not_ready_addresses: view.spec().network.publish_not_ready_addresses,
    }
}

pub(crate) fn service(view: Observed<'_>) -> Service {
    let content = service_content(view);
    Service {
        metadata: metadata(view, view.subdomain().to_owned()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            selector: Some(content.selector),
            publish_not_ready_addresses: Some(content.publish_not_ready_addresses),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Shared by a Workload's template and its pod group.
fn gang_spec(view: Observed<'_>, gang: &Gang) -> GangSpec {
    let (priority, preemption) = match *view.priority() {
        Priority::Resolved { value, preemption } => (value, Some(preemption)),
        Priority::ClassMissing => (0, None),
    };
    gang.spec(view.spec(), priority, preemption)
}

/// One template for each kind of gang.
fn workload_spec(view: Observed<'_>, gangs: &[Gang]) -> WorkloadSpec {
    let mut templates: Vec<PodGroupTemplate> = Vec::new();
    for gang in gangs {
        if templates.iter().all(|t| t.name != gang.template) {
            templates.push(PodGroupTemplate {
                name: gang.template.clone(),
                gang: gang_spec(view, gang),
            });
        }
    }
    WorkloadSpec {
        controller_ref: ControllerRef {
            api_group: TRAINING_GROUP.into(),
            kind: "TrainingWorkload".into(),
            name: view.name().to_owned(),
        },
        pod_group_templates: templates,
    }
}

pub(crate) fn workload(view: Observed<'_>, gangs: &[Gang]) -> Workload {
    let mut object = Workload::new(view.name(), workload_spec(view, gangs));
    object.metadata = metadata(view, view.name().to_owned());
    object
}

pub(crate) fn pod_group(view: Observed<'_>, gang: &Gang) -> PodGroup {
    let name = pod_group_name(view.name(), view.uid(), gang.key.as_str());
    let spec = PodGroupSpec {
        workload_ref: WorkloadRef {
            workload_name: view.name().to_owned(),
            template_name: gang.template.clone(),
        },
        gang_key: gang.key.to_string(),
        gang: gang_spec(view, gang),
    };
    let mut object = PodGroup::new(&name, spec);
    object.metadata = metadata(view, name);
    object
}

pub(crate) fn restart_order(view: Observed<'_>, spec: RestartOrderSpec) -> RestartOrder {
    let mut object = RestartOrder::new(view.name(), spec);
    object.metadata = metadata(view, view.name().to_owned());
    object
}
