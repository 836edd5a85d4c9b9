//! Builds the objects from the files that kustomize applies.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::api::flowcontrol::v1::PolicyRulesWithSubjects;
use kube::api::DynamicObject;
use kube::{Resource, ResourceExt};
use thiserror::Error;

const POLICIES: [&str; 3] = [
    include_str!("../../../../config/policies/members.yaml"),
    include_str!("../../../../config/policies/node_agents.yaml"),
    include_str!("../../../../config/policies/operator_objects.yaml"),
];
const FLOW_CONTROL: [&str; 2] = [
    include_str!("../../../../config/manager/flow_control.yaml"),
    include_str!("../../../../config/components/agent/flow_control.yaml"),
];
const AGENT: &str = include_str!("../../../../config/components/agent/daemonset.yaml");

pub const DAEMON_SET: &str = "lockstep-agent";
/// Volume of the folder that contains the runtime's socket.
const RUNTIME: &str = "runtime";
const ENDPOINT: &str = "--runtime-endpoint=";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSettings {
    pub image: String,
    pub runtime: RuntimeEndpoint,
}

/// Socket of a container runtime, such as `unix:///run/containerd/containerd.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeEndpoint {
    folder: String,
    file: String,
}

/// The text is not a socket endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no socket in a folder: expected unix:///FOLDER/FILE, such as unix:///run/containerd/containerd.sock"
)]
pub struct NoEndpoint(String);

impl FromStr for RuntimeEndpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        let path = text.strip_prefix("unix://");
        let parts = path.and_then(|p| p.rsplit_once('/'));
        match parts {
            Some((folder, file))
                if folder.len() > 1 && folder.starts_with('/') && !file.is_empty() =>
            {
                Ok(Self {
                    folder: folder.to_owned(),
                    file: file.to_owned(),
                })
            }
            _ => Err(NoEndpoint(text.to_owned())),
        }
    }
}

impl std::fmt::Display for RuntimeEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unix://{}/{}", self.folder, self.file)
    }
}

/// The admission policies and their bindings, which do not depend on the namespace.
pub fn policies() -> Result<Vec<DynamicObject>> {
    let documents = POLICIES.iter().flat_map(|file| file.split("\n---\n"));
    documents
        .map(|text| serde_saphyr::from_str(text).context("a policy"))
        .collect()
}

/// Priority levels and flow schemas for the service accounts of this namespace.
pub fn flow_control(namespace: &str) -> Result<Vec<DynamicObject>> {
    let documents = FLOW_CONTROL.iter().flat_map(|file| file.split("\n---\n"));
    let objects = documents.map(|text| {
        let mut object: DynamicObject = serde_saphyr::from_str(text).context("flow control")?;
        if let Some(rules) = object.data.pointer_mut("/spec/rules") {
            let mut typed: Vec<PolicyRulesWithSubjects> = serde_json::from_value(rules.take())?;
            let subjects = typed.iter_mut().flat_map(|rule| &mut rule.subjects);
            for account in subjects.filter_map(|s| s.service_account.as_mut()) {
                namespace.clone_into(&mut account.namespace);
            }
            *rules = serde_json::to_value(typed)?;
        }
        Ok(object)
    });
    objects.collect()
}

/// DaemonSet of the node agents, in this namespace and owned by this Deployment.
pub fn daemon_set(
    settings: &AgentSettings,
    namespace: &str,
    owner: &Deployment,
) -> Result<DynamicObject> {
    let mut set: DynamicObject = serde_saphyr::from_str(AGENT).context("the DaemonSet")?;
    set.metadata.namespace = Some(namespace.to_owned());
    let owner = owner.owner_ref(&()).context("the Deployment has a UID")?;
    set.owner_references_mut().push(owner);
    let spec = set
        .data
        .pointer_mut("/spec/template/spec")
        .context("a pod spec")?;
    // From JSON, which the program needs for pods anyway. YAML would add a second deserializer of
    // every pod type.
    let mut pod: PodSpec = serde_json::from_value(spec.take())?;
    let container = pod.containers.first_mut().context("a container")?;
    container.image = Some(settings.image.clone());
    point_at(container, &settings.runtime)?;
    mount(&mut pod, &settings.runtime)?;
    *spec = serde_json::to_value(pod)?;
    Ok(set)
}

fn point_at(container: &mut Container, runtime: &RuntimeEndpoint) -> Result<()> {
    let mut args = container.args.iter_mut().flatten();
    let arg = args.find(|a| a.starts_with(ENDPOINT));
    *arg.context("the argument with the endpoint")? = format!("{ENDPOINT}{runtime}");
    let mut mounts = container.volume_mounts.iter_mut().flatten();
    let mount = mounts
        .find(|m| m.name == RUNTIME)
        .context("the mount of the runtime's folder")?;
    mount.mount_path.clone_from(&runtime.folder);
    Ok(())
}

fn mount(pod: &mut PodSpec, runtime: &RuntimeEndpoint) -> Result<()> {
    let mut volumes = pod.volumes.iter_mut().flatten();
    let volume = volumes.find(|v| v.name == RUNTIME);
    let source = volume
        .and_then(|v| v.host_path.as_mut())
        .context("the volume of the runtime's folder")?;
    ensure!(source.type_.as_deref() == Some("Directory"), "a folder");
    source.path.clone_from(&runtime.folder);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owner() -> Deployment {
        let owner = json!({"metadata": {"name": "lockstep-components", "namespace": "ops", "uid": "u"},
            "spec": {"selector": {}, "template": {}}});
        serde_json::from_value(owner).unwrap()
    }

    #[test]
    fn a_socket_is_a_file_in_a_folder() {
        let crio: RuntimeEndpoint = "unix:///run/crio/crio.sock".parse().unwrap();
        assert_eq!(crio.to_string(), "unix:///run/crio/crio.sock");
        assert_eq!(crio.folder, "/run/crio");
        for text in [
            "",
            "/run/crio/crio.sock",
            "unix:///crio.sock",
            "unix:///run/crio/",
            "unix://run/crio.sock",
            "tcp://h:1",
        ] {
            let refused = text.parse::<RuntimeEndpoint>().unwrap_err().to_string();
            assert!(refused.contains("unix:///FOLDER/FILE"), "{text}: {refused}");
        }
    }

    #[test]
    fn every_policy_comes_with_its_binding_and_names_no_namespace() {
        let objects = policies().unwrap();
        let kinds: Vec<&str> = objects
            .iter()
            .map(|o| o.types.as_ref().unwrap().kind.as_str())
            .collect();
        let pair = [
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ];
        assert_eq!(kinds, [pair, pair, pair].concat());
        let text = POLICIES.concat();
        assert!(!text.contains("lockstep-system") && !text.contains(":lockstep-agent:"));
    }

    #[test]
    fn flow_control_is_for_the_accounts_of_the_installation() {
        let objects = flow_control("ops").unwrap();
        let names: Vec<String> = objects.iter().map(ResourceExt::name_any).collect();
        let expected = [
            "lockstep-leader-election",
            "lockstep-decisions",
            "lockstep-decisions",
            "lockstep-manager",
            "lockstep-agents",
            "lockstep-agents",
        ];
        assert_eq!(names, expected);
        let text = serde_json::to_string(&objects).unwrap();
        let accounts = [
            r#"{"name":"lockstep-manager","namespace":"ops"}"#,
            r#"{"name":"lockstep-agent","namespace":"ops"}"#,
        ];
        assert_eq!(accounts.map(|a| text.matches(a).count()), [3, 1], "{text}");
        assert!(!text.contains("lockstep-system"), "{text}");
    }

    #[test]
    fn the_agents_take_image_runtime_and_owner_from_the_installation() {
        let settings = AgentSettings {
            image: "registry.example/agent@sha256:00".into(),
            runtime: "unix:///run/crio/crio.sock".parse().unwrap(),
        };
        let object = serde_json::to_value(daemon_set(&settings, "ops", &owner()).unwrap()).unwrap();
        assert_eq!(object["kind"], "DaemonSet");
        assert_eq!(object["metadata"]["namespace"], "ops");
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "u");
        let pod = &object["spec"]["template"]["spec"];
        assert_eq!(
            pod["containers"][0]["image"],
            "registry.example/agent@sha256:00"
        );
        let text = pod.to_string();
        assert!(text.contains("--runtime-endpoint=unix:///run/crio/crio.sock"));
        assert!(!text.contains("containerd"), "{text}");
        assert_eq!(
            text.matches("\"/run/crio\"").count(),
            2,
            "volume and mount: {text}"
        );
    }
}
