//! Pod templates: kept as written, but for what Lockstep sets.

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use super::draft::{Draft, text};
use super::field::{Field, mapped, noted, omitted};

/// Annotation that names the training container.
pub const TRAINING: &str = "kubectl.kubernetes.io/default-container";

/// Fields of a pod template.
pub const FIELDS: &[Field] = &[
    mapped(
        "metadata.labels",
        "kept, but for those of the Job controller",
    ),
    mapped(
        "metadata.annotations",
        "kept; `kubectl.kubernetes.io/default-container` names the training container, and is added if the container with the framework's name is not the first",
    ),
    omitted("metadata.**", "Lockstep names the pods"),
    noted(
        "spec.hostname",
        "/template",
        "left out. Lockstep sets `<workload>-<group>-<replica>-<index>`.",
    ),
    noted(
        "spec.nodeName",
        "/template",
        "left out. Lockstep chooses the node; use nodeSelector or affinity.",
    ),
    noted(
        "spec.schedulingGates",
        "/template",
        "left out. Set spec.suspend to hold the workload back.",
    ),
    noted(
        "spec.schedulingGroup",
        "/template",
        "left out. Members are one gang; see spec.scheduling.",
    ),
    mapped(
        "spec.schedulerName",
        "left out with a comment: Lockstep places the gang, and kube-scheduler binds its pods",
    ),
    mapped(
        "spec.subdomain",
        "`spec.network.subdomain`, with a comment: Lockstep creates this Service",
    ),
    mapped("spec.priorityClassName", "`spec.priorityClassName`"),
    omitted("spec.priority", "set from the class"),
    mapped(
        "spec.restartPolicy",
        "kept; `Always` is left out, because training ends",
    ),
    mapped(
        "spec.**",
        "kept as written. Environment variables that read labels of the origin's controller get the value of a `LOCKSTEP_` variable",
    ),
];

const LEFT_OUT: [&str; 8] = [
    "hostname",
    "nodeName",
    "schedulingGates",
    "schedulingGroup",
    "schedulerName",
    "subdomain",
    "priorityClassName",
    "priority",
];

/// Labels that the API server adds to the template of a Job.
const JOB_LABELS: [&str; 4] = [
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "controller-uid",
    "job-name",
];

/// Labels and annotations of other controllers, and the variable with the same value.
const VARIABLES: [(&str, &str); 7] = [
    (
        "batch.kubernetes.io/job-completion-index",
        "$(LOCKSTEP_INDEX)",
    ),
    ("jobset.sigs.k8s.io/job-index", "$(LOCKSTEP_REPLICA)"),
    ("jobset.sigs.k8s.io/jobset-name", "$(LOCKSTEP_WORKLOAD)"),
    ("jobset.sigs.k8s.io/replicatedjob-name", "$(LOCKSTEP_GROUP)"),
    ("training.kubeflow.org/job-name", "$(LOCKSTEP_WORKLOAD)"),
    ("training.kubeflow.org/replica-index", "$(LOCKSTEP_REPLICA)"),
    ("volcano.sh/job-name", "$(LOCKSTEP_WORKLOAD)"),
];

/// Prefixes of labels that only the origin's controller sets.
const CONTROLLERS: [&str; 6] = [
    "batch.kubernetes.io/",
    "jobset.sigs.k8s.io/",
    "training.kubeflow.org/",
    "trainer.kubeflow.org/",
    "volcano.sh/",
    "batch.volcano.sh/",
];

/// Fields that are null are absent, but would stay in the workload.
fn without_nulls(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            for field in fields.values_mut() {
                *field = without_nulls(field.take());
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = without_nulls(item.take());
            }
        }
        _ => {}
    }
    value
}

/// Converts a template. `path` is its path in the origin, `at` the pointer to its group, and
/// `container` the framework's name of the training container.
pub fn convert(
    draft: &mut Draft,
    template: &Value,
    path: &str,
    at: &str,
    container: &str,
) -> Result<Value> {
    let template = &without_nulls(template.clone());
    let mut spec = template["spec"].as_object().cloned().unwrap_or_default();
    let containers = spec.get("containers").and_then(Value::as_array);
    if containers.is_none_or(Vec::is_empty) {
        bail!("{path}.spec.containers: missing. A pod template needs at least one container");
    }
    let at = format!("{at}/template");
    if let Some(class) = text(template, "spec.priorityClassName") {
        draft.prioritize(&format!("{path}.spec.priorityClassName"), class);
    }
    if let Some(scheduler) =
        text(template, "spec.schedulerName").filter(|s| *s != "default-scheduler")
    {
        draft.note(
            &at,
            &format!("{path}.spec.schedulerName: {scheduler}"),
            "left out. Lockstep places the gang, and kube-scheduler binds its pods.",
        );
    }
    if let Some(subdomain) = text(template, "spec.subdomain") {
        draft.set("/spec/network/subdomain", json!(subdomain));
        draft.note(
            "/spec/network/subdomain",
            &format!("{path}.spec.subdomain: {subdomain}"),
            "Lockstep creates the headless Service of this name: delete yours. Hostnames are `<workload>-<group>-<replica>-<index>`.",
        );
    }
    for field in LEFT_OUT {
        spec.remove(field);
    }
    if spec.get("restartPolicy") == Some(&json!("Always")) {
        spec.remove("restartPolicy");
        draft.note(
            &at,
            &format!("{path}.spec.restartPolicy: Always"),
            "left out. A member that exits with 0 has succeeded; spec.failurePolicy restarts other members.",
        );
    }
    for list in ["initContainers", "containers"] {
        for found in spec
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            resolve_labels(draft, found, &format!("{path}.spec.{list}"), &at);
        }
    }
    let mut out = Map::new();
    if let Some(metadata) = metadata(template, &spec, container) {
        out.insert("metadata".into(), metadata);
    }
    out.insert("spec".into(), Value::Object(spec));
    Ok(Value::Object(out))
}

fn metadata(template: &Value, spec: &Map<String, Value>, container: &str) -> Option<Value> {
    let mut out = Map::new();
    for field in ["labels", "annotations"] {
        let mut found = template["metadata"][field]
            .as_object()
            .cloned()
            .unwrap_or_default();
        found.retain(|key, _| !JOB_LABELS.contains(&key.as_str()));
        if !found.is_empty() {
            out.insert(field.into(), json!(found));
        }
    }
    let names = spec.get("containers").and_then(Value::as_array);
    let position = names.and_then(|c| c.iter().position(|c| c["name"] == container));
    if position.is_some_and(|n| n > 0) {
        let annotations = out.entry("annotations").or_insert_with(|| json!({}));
        if annotations.get(TRAINING).is_none() {
            annotations[TRAINING] = json!(container);
        }
    }
    (!out.is_empty()).then_some(Value::Object(out))
}

/// Gives variables that read a label of another controller the value of Lockstep's variable.
fn resolve_labels(draft: &mut Draft, container: &mut Value, path: &str, at: &str) {
    let name = container["name"].as_str().unwrap_or_default().to_owned();
    let variables = container.get_mut("env").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        let Some(key) = label(variable) else {
            continue;
        };
        if let Some((_, value)) = VARIABLES.iter().find(|(label, _)| *label == key) {
            *variable = json!({"name": variable["name"], "value": value});
        } else if CONTROLLERS.iter().any(|prefix| key.starts_with(prefix)) {
            let variable = variable["name"].as_str().unwrap_or_default();
            draft.note(
                at,
                &format!("{path}, container {name}, env {variable}"),
                &format!(
                    "Lockstep does not set {key}. Use one of the variables in docs/environment.md."
                ),
            );
        }
    }
}

/// Key of the label or annotation that a variable reads.
fn label(variable: &Value) -> Option<String> {
    let field = text(variable, "valueFrom.fieldRef.fieldPath")?;
    let key = field
        .strip_prefix("metadata.labels['")
        .or_else(|| field.strip_prefix("metadata.annotations['"))?;
    Some(key.strip_suffix("']")?.to_owned())
}

/// The training container of a converted template.
pub fn training_container(template: &mut Value) -> Option<&mut Value> {
    let named = template["metadata"]["annotations"][TRAINING]
        .as_str()
        .map(str::to_owned);
    let containers = template.pointer_mut("/spec/containers")?.as_array_mut()?;
    let index = containers
        .iter()
        .position(|c| named.as_deref().is_some_and(|name| c["name"] == name));
    containers.get_mut(index.unwrap_or(0))
}

/// Adds variables to a container. Variables of the manifest keep their values.
pub fn add_variables(container: &mut Value, variables: &[(&str, String)]) {
    for (name, value) in variables {
        let known = container["env"].as_array();
        if !known.is_some_and(|env| env.iter().any(|v| v["name"] == **name)) {
            append(container, "env", json!({"name": name, "value": value}));
        }
    }
}

/// Appends to a list of an object.
pub fn append(object: &mut Value, field: &str, value: Value) {
    match object[field].as_array_mut() {
        Some(list) => list.push(value),
        None => object[field] = json!([value]),
    }
}

/// Adds a volume to a template, and mounts it in all containers.
pub fn mount(template: &mut Value, volume: &Value, path: &str) {
    append(&mut template["spec"], "volumes", volume.clone());
    let containers = template.pointer_mut("/spec/containers");
    for container in containers
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let mount = json!({"name": volume["name"], "mountPath": path});
        append(container, "volumeMounts", mount);
    }
}
