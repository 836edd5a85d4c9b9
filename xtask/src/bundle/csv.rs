//! The ClusterServiceVersion.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Images, PACKAGE, VERSION, read, without_namespace};

pub(crate) const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
/// First minor version of Kubernetes with stable admission policies.
pub(crate) const MIN_KUBE_VERSION: &str = "1.30.0";
pub(crate) const KEYWORDS: [&str; 6] = [
    "training",
    "gang scheduling",
    "pytorch",
    "gpu",
    "batch",
    "preemption",
];
pub(crate) const SUMMARY: &str =
    "Gang-scheduled training jobs that restart in place and are preempted by cost.";
/// Placeholder for the publisher's address. The domain is reserved, so no mail is delivered.
pub const NOBODY: &str = "maintainers@lockstep.example";
/// Namespace that consoles suggest. Privileged, because enabled node agents run in it.
const NAMESPACE: &str = "lockstep-system";
/// Samples that consoles offer.
const EXAMPLES: [&str; 3] = ["01-minimal", "02-topology", "03-failure-policy"];

/// Related kind: kind, name of the definition (empty: built in), version.
type Related = (&'static str, &'static str, &'static str);
/// Owned kinds, with their display names and related kinds.
const OWNED: &[(&str, &str, &[Related])] = &[
    ("NodeAgent", "Node Agent", &[("Pod", "", "v1")]),
    (
        "PodGroup",
        "Pod Group",
        &[
            ("Pod", "", "v1"),
            (
                "TrainingWorkload",
                "trainingworkloads.training.lockstep.dev",
                "v1alpha1",
            ),
        ],
    ),
    (
        "RestartOrder",
        "Restart Order",
        &[(
            "TrainingWorkload",
            "trainingworkloads.training.lockstep.dev",
            "v1alpha1",
        )],
    ),
    (
        "TrainingWorkload",
        "Training Workload",
        &[
            ("Pod", "", "v1"),
            ("PodGroup", "podgroups.scheduling.lockstep.dev", "v1alpha1"),
            (
                "RestartOrder",
                "restartorders.training.lockstep.dev",
                "v1alpha1",
            ),
            ("Service", "", "v1"),
            ("Workload", "workloads.scheduling.lockstep.dev", "v1alpha1"),
        ],
    ),
    (
        "Workload",
        "Workload",
        &[("PodGroup", "podgroups.scheduling.lockstep.dev", "v1alpha1")],
    ),
];
/// Prefix of descriptions of ledger fields.
const LEDGER: &str = "Ledger: ";
/// The only kind that people write.
const WRITTEN_BY_PEOPLE: &str = "TrainingWorkload";

pub fn csv(root: &Path, images: &Images, crds: &[Value]) -> Result<Value> {
    let olm = root.join("config/olm");
    let description = fs::read_to_string(olm.join("description.md"))?;
    let icon = STANDARD.encode(fs::read(olm.join("icon.svg"))?);
    Ok(json!({
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": format!("{PACKAGE}.v{VERSION}"),
            "annotations": annotations(root, images, crds)?,
            "labels": labels(images),
        },
        "spec": {
            "displayName": "Lockstep",
            "description": description,
            "version": VERSION,
            "minKubeVersion": MIN_KUBE_VERSION,
            "maturity": "alpha",
            "provider": {"name": "Lockstep", "url": REPOSITORY},
            "maintainers": [{"name": "The Lockstep maintainers", "email": NOBODY}],
            "links": [
                {"name": "Source", "url": REPOSITORY},
                {"name": "Documentation", "url": format!("{REPOSITORY}/tree/main/docs")},
            ],
            "keywords": KEYWORDS,
            "icon": [{"base64data": icon, "mediatype": "image/svg+xml"}],
            "installModes": [
                {"type": "OwnNamespace", "supported": false},
                {"type": "SingleNamespace", "supported": false},
                {"type": "MultiNamespace", "supported": false},
                {"type": "AllNamespaces", "supported": true},
            ],
            "relatedImages": [
                {"name": "lockstep-manager", "image": images.manager},
                {"name": "lockstep-agent", "image": images.agent},
                {"name": "lockstep-run", "image": images.supervisor},
            ],
            "customresourcedefinitions": {"owned": owned(crds)?},
            "install": {"strategy": "deployment", "spec": install(root, images)?},
        },
    }))
}

/// Labels for supported node platforms.
fn labels(images: &Images) -> BTreeMap<String, &'static str> {
    let processors = images.architectures.iter().map(|a| format!("arch.{a}"));
    let kinds = processors.chain(["os.linux".to_owned()]);
    kinds
        .map(|kind| (format!("operatorframework.io/{kind}"), "supported"))
        .collect()
}

fn annotations(root: &Path, images: &Images, crds: &[Value]) -> Result<Value> {
    let mut examples = Vec::new();
    for name in EXAMPLES {
        let path = root.join("samples").join(format!("{name}.yaml"));
        let mut example = read(&path, WRITTEN_BY_PEOPLE)?;
        if examples.is_empty() {
            example["status"] = json!({"phase": "Running"});
        }
        examples.push(example);
    }
    let internal = crds.iter().filter(|c| kind(c) != Some(WRITTEN_BY_PEOPLE));
    let internal: Vec<&Value> = internal.map(|c| &c["metadata"]["name"]).collect();
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
    });
    Ok(json!({
        "alm-examples": serde_json::to_string_pretty(&examples)?,
        "capabilities": "Basic Install",
        "categories": "AI/Machine Learning",
        "containerImage": images.manager,
        "description": SUMMARY,
        "olm.skipRange": format!("<{VERSION}"),
        "operatorframework.io/suggested-namespace": NAMESPACE,
        "operatorframework.io/suggested-namespace-template": namespace.to_string(),
        "operators.operatorframework.io/internal-objects": serde_json::to_string(&internal)?,
        "repository": REPOSITORY,
        "support": format!("{REPOSITORY}/issues"),
    }))
}

fn kind(crd: &Value) -> Option<&str> {
    crd["spec"]["names"]["kind"].as_str()
}

fn owned(crds: &[Value]) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    for crd in crds {
        let kind = kind(crd).context("a kind")?;
        let known = OWNED.iter().find(|(k, ..)| *k == kind);
        let (_, display, resources) =
            known.with_context(|| format!("{kind} is not in the table"))?;
        let version = &crd["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        let resources: Vec<Value> = resources
            .iter()
            .map(|(kind, name, version)| json!({"kind": kind, "name": name, "version": version}))
            .collect();
        out.push(json!({
            "name": crd["metadata"]["name"],
            "kind": kind,
            "version": version["name"],
            "displayName": display,
            "description": schema["description"],
            "resources": resources,
            "specDescriptors": descriptors(&schema["properties"]["spec"]),
            "statusDescriptors": descriptors(&schema["properties"]["status"]),
        }));
    }
    Ok(out)
}

/// One descriptor per field of the first level.
fn descriptors(schema: &Value) -> Vec<Value> {
    let fields = schema["properties"].as_object().into_iter().flatten();
    let descriptor = |(name, field): (&String, &Value)| json!({"path": name, "displayName": words(name), "description": described(&field["description"])});
    fields.map(descriptor).collect()
}

/// Description without the ledger prefix: consoles show single fields, without an explanation of
/// the ledger.
fn described(description: &Value) -> Value {
    let Some(rest) = description.as_str().and_then(|d| d.strip_prefix(LEDGER)) else {
        return description.clone();
    };
    let mut rest = rest.chars();
    let first = rest.next().into_iter().flat_map(char::to_uppercase);
    json!(first.chain(rest).collect::<String>())
}

/// Splits `activeDeadlineSeconds` into `Active Deadline Seconds`.
fn words(field: &str) -> String {
    let mut out = String::new();
    let mut before = ' ';
    for c in field.chars() {
        if out.is_empty() {
            out.extend(c.to_uppercase());
        } else {
            if c.is_uppercase() && before.is_lowercase() {
                out.push(' ');
            }
            out.push(c);
        }
        before = c;
    }
    out
}

fn install(root: &Path, images: &Images) -> Result<Value> {
    let config = root.join("config");
    let rules = |path: &str, kind: &str, account: &str| {
        let role = read(&config.join(path), kind)?;
        anyhow::Ok(json!({"serviceAccountName": account, "rules": role["rules"]}))
    };
    Ok(json!({
        "deployments": [
            manager(&config, images)?,
            deployment(&config.join("olm/components_deployment.yaml"), images)?,
        ],
        "permissions": [
            rules("manager/leader_election_role.yaml", "Role", "lockstep-manager")?,
            rules("olm/components_role.yaml", "Role", "lockstep-components")?,
        ],
        "clusterPermissions": [
            rules("manager/role.yaml", "ClusterRole", "lockstep-manager")?,
            rules("olm/components_role.yaml", "ClusterRole", "lockstep-components")?,
            rules("components/agent/role.yaml", "ClusterRole", "lockstep-agent")?,
        ],
    }))
}

/// The manager's Deployment. The administrator may create its configuration; the bundle only sets
/// defaults. OLM creates no namespace, so the agents run in the manager's.
fn manager(config: &Path, images: &Images) -> Result<Value> {
    let mut deployment = deployment(&config.join("manager/deployment.yaml"), images)?;
    let pod = &mut deployment["spec"]["template"]["spec"];
    for volume in pod["volumes"].as_array_mut().into_iter().flatten() {
        if let Some(map) = volume["configMap"].as_object_mut() {
            map.insert("optional".to_owned(), json!(true));
        }
    }
    let defaults = json!({"agents": {"namespace": ""}, "supervisor": {"image": images.supervisor}});
    let args = pod["containers"][0]["args"].as_array_mut();
    let args = args.context("arguments of the manager")?;
    args.push(json!(format!("--defaults={defaults}")));
    Ok(deployment)
}

fn deployment(path: &Path, images: &Images) -> Result<Value> {
    let object = without_namespace(read(path, "Deployment")?);
    let mut spec = object["spec"].clone();
    let containers = spec["template"]["spec"]["containers"].as_array_mut();
    for container in containers.context("containers")? {
        container["image"] = json!(images.manager);
        for env in container["env"].as_array_mut().into_iter().flatten() {
            if env["name"] == "RELATED_IMAGE_AGENT" {
                env["value"] = json!(images.agent);
            }
        }
    }
    Ok(json!({
        "name": object["metadata"]["name"],
        "label": object["metadata"]["labels"],
        "spec": spec,
    }))
}
