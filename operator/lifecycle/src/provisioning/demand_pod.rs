//! What a node must offer for a member.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, PodSpec, PodTemplateSpec, SeccompProfile, SecurityContext, Volume,
};
use lockstep_api::names::labels;
use lockstep_api::workload::Group;

use super::input::DemandingGang;

/// Labels that other controllers would act on.
const ACTED_ON: &str = "kueue.x-k8s.io/";

/// Spec of the pods of a group, reduced to what decides on their nodes: as admitted, because
/// plugins and webhooks of the workload's namespace add requests and tolerations.
pub(super) fn spec_of(gang: &DemandingGang, group: &Group) -> PodSpec {
    let none = PodSpec::default();
    let template = group.template.0.spec.as_ref().unwrap_or(&none);
    let admitted = gang.admitted.get(&group.name).map(|a| &a.spec);
    let from = admitted.unwrap_or(template);
    let images = Images::of(template);
    let containers = |all: &[Container]| all.iter().map(|c| images.reduced(c)).collect();
    let inits = from.init_containers.as_deref().map(containers);
    let claims = from.volumes.iter().flatten().filter(|v| needs_claim(v));
    PodSpec {
        containers: containers(&from.containers),
        init_containers: inits,
        affinity: from.affinity.clone(),
        host_network: from.host_network,
        node_selector: from.node_selector.clone(),
        os: template.os.clone(),
        overhead: from.overhead.clone(),
        priority_class_name: gang.workload.spec.priority_class_name.clone(),
        resource_claims: from.resource_claims.clone(),
        resources: from.resources.clone(),
        restart_policy: from.restart_policy.clone(),
        runtime_class_name: template.runtime_class_name.clone(),
        tolerations: from.tolerations.clone(),
        topology_spread_constraints: from.topology_spread_constraints.clone(),
        volumes: Some(claims.cloned().collect()),
        ..PodSpec::default()
    }
}

/// The spec for a pod outside of the workload's namespace, which is never started: without volumes,
/// claims, ports and credentials. It satisfies Pod Security `restricted`.
pub(super) fn detached(mut spec: PodSpec) -> PodSpec {
    let windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    let inits = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(inits) {
        if let Some(resources) = &mut container.resources {
            resources.claims = None;
        }
        container.ports = None;
        container.security_context = (!windows).then(harmless);
    }
    PodSpec {
        automount_service_account_token: Some(false),
        host_network: None,
        resource_claims: None,
        restart_policy: None,
        termination_grace_period_seconds: Some(0),
        volumes: None,
        ..spec
    }
}

fn harmless() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".into()]),
            ..Capabilities::default()
        }),
        run_as_non_root: Some(true),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".into(),
            ..SeccompProfile::default()
        }),
        ..SecurityContext::default()
    }
}

/// Labels of the pods of a group, for affinity and spreading among them.
pub(super) fn labels_of(gang: &DemandingGang, group: &Group) -> BTreeMap<String, String> {
    let template = || template_labels(&group.template.0);
    let admitted = gang.admitted.get(&group.name).map(|a| a.labels.clone());
    let mut all = admitted.or_else(template).unwrap_or_default();
    all.retain(|key, _| !key.starts_with(ACTED_ON) && key != labels::PUBLISHED);
    for (key, value) in [
        (labels::WORKLOAD, &*gang.id.name),
        (labels::WORKLOAD_UID, gang.id.uid.as_str()),
        (labels::POD_GROUP, &*gang.pod_group),
        (labels::GROUP, &*group.name),
    ] {
        all.insert(key.to_owned(), value.to_owned());
    }
    all
}

fn template_labels(template: &PodTemplateSpec) -> Option<BTreeMap<String, String>> {
    template.metadata.as_ref()?.labels.clone()
}

fn needs_claim(volume: &Volume) -> bool {
    volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
}

/// Images of the template by container. Injected containers get the first one.
struct Images<'t>(Vec<(&'t str, Option<&'t String>)>);

impl<'t> Images<'t> {
    fn of(template: &'t PodSpec) -> Self {
        let inits = template.init_containers.iter().flatten();
        let all = template.containers.iter().chain(inits);
        Self(all.map(|c| (&*c.name, c.image.as_ref())).collect())
    }

    fn reduced(&self, container: &Container) -> Container {
        let mut named = self.0.iter().filter(|(name, _)| *name == container.name);
        let image = named
            .next()
            .or(self.0.first())
            .and_then(|(_, image)| *image);
        Container {
            name: container.name.clone(),
            image: image.cloned(),
            ports: container.ports.clone(),
            resources: container.resources.clone(),
            restart_policy: container.restart_policy.clone(),
            ..Container::default()
        }
    }
}
