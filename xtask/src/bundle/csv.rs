//! The ClusterServiceVersion: `config/olm/csv.yaml` with images, examples, descriptions of
//! definitions, deployments and rights.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Images, VERSION, read, without_namespace};

/// Samples that consoles offer.
const EXAMPLES: [&str; 3] = ["01-minimal", "02-topology", "03-failure-policy"];
/// Prefix of descriptions of ledger fields.
const LEDGER: &str = "Ledger: ";

pub fn csv(root: &Path, images: &Images, crds: &[Value]) -> Result<Value> {
    let olm = root.join("config/olm");
    let mut text = fs::read_to_string(olm.join("csv.yaml"))?;
    for (name, value) in [
        ("${VERSION}", VERSION),
        ("${MANAGER}", &images.manager),
        ("${AGENT}", &images.agent),
        ("${SUPERVISOR}", &images.supervisor),
    ] {
        text = text.replace(name, value);
    }
    let mut csv: Value = serde_saphyr::from_str(&text).context("config/olm/csv.yaml")?;
    let metadata = &mut csv["metadata"];
    metadata["annotations"]["alm-examples"] = json!(examples(root)?);
    for architecture in &images.architectures {
        let label = format!("operatorframework.io/arch.{architecture}");
        metadata["labels"][label] = json!("supported");
    }
    let spec = &mut csv["spec"];
    spec["description"] = json!(fs::read_to_string(olm.join("description.md"))?);
    let owned = spec["customresourcedefinitions"]["owned"].as_array_mut();
    describe(owned.context("owned definitions")?, crds)?;
    spec["install"] = json!({"strategy": "deployment", "spec": install(root, images)?});
    Ok(csv)
}

/// The samples as JSON. Consoles take a status from the first.
fn examples(root: &Path) -> Result<String> {
    let mut examples = Vec::new();
    for name in EXAMPLES {
        let path = root.join("samples").join(format!("{name}.yaml"));
        examples.push(read(&path, "TrainingWorkload")?);
    }
    examples[0]["status"] = json!({"phase": "Running"});
    Ok(serde_json::to_string_pretty(&examples)?)
}

/// Adds version, descriptions and fields to the owned kinds, which are those of the definitions.
fn describe(owned: &mut [Value], crds: &[Value]) -> Result<()> {
    ensure!(owned.len() == crds.len(), "{} owned kinds", owned.len());
    for entry in owned {
        let crd = crds
            .iter()
            .find(|crd| crd["metadata"]["name"] == entry["name"]);
        let crd = crd.with_context(|| format!("no definition {}", entry["name"]))?;
        let version = &crd["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        entry["version"] = version["name"].clone();
        entry["description"] = schema["description"].clone();
        entry["specDescriptors"] = descriptors(&schema["properties"]["spec"]);
        entry["statusDescriptors"] = descriptors(&schema["properties"]["status"]);
    }
    Ok(())
}

/// One descriptor per field of the first level.
fn descriptors(schema: &Value) -> Value {
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
    for c in field.chars() {
        if out.is_empty() {
            out.extend(c.to_uppercase());
        } else {
            if c.is_uppercase() && out.ends_with(char::is_lowercase) {
                out.push(' ');
            }
            out.push(c);
        }
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
    pod["volumes"][0]["configMap"]["optional"] = json!(true);
    let defaults = json!({"agents": {"namespace": ""}, "supervisor": {"image": images.supervisor}});
    let args = pod["containers"][0]["args"].as_array_mut();
    let args = args.context("arguments of the manager")?;
    args.push(json!(format!("--defaults={defaults}")));
    Ok(deployment)
}

fn deployment(path: &Path, images: &Images) -> Result<Value> {
    let mut object = without_namespace(read(path, "Deployment")?);
    let container = &mut object["spec"]["template"]["spec"]["containers"][0];
    container["image"] = json!(images.manager);
    for env in container["env"].as_array_mut().into_iter().flatten() {
        if env["name"] == "RELATED_IMAGE_AGENT" {
            env["value"] = json!(images.agent);
        }
    }
    Ok(json!({
        "name": object["metadata"]["name"],
        "label": object["metadata"]["labels"],
        "spec": object["spec"],
    }))
}
