//! Pod templates: kept as written, but for what Lockstep sets.

use lockstep_api::TrainingWorkload;
use lockstep_api::names::ACCELERATORS;
use lockstep_lifecycle::{LifecycleSettings, obstacle};
use serde_json::{Map, Value, json};

use crate::draft::{Draft, text};
use crate::error::{ConvertError, Result};
use crate::field::{Field, mapped, noted, omitted};

/// Annotation that names the training container.
pub const TRAINING: &str = "kubectl.kubernetes.io/default-container";

/// Resource of TPUs.
const TPU: &str = "google.com/tpu";

/// Fields of a pod template.
pub const FIELDS: &[Field] = &[
    mapped(
        "metadata.labels",
        "kept, but for those of the Job controller, and of Kueue with a comment",
    ),
    mapped(
        "metadata.annotations",
        "kept. Kueue's `podset-required-topology`, `podset-preferred-topology` and `podset-slice-required-topology`: `spec.scheduling.topology.levels`, and replicas of the size of a slice. `kubectl.kubernetes.io/default-container` names the training container, and is added if the container with the framework's name is not the first",
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
        "kept as written. Environment variables that read labels of the origin's controller get the value of a `LOCKSTEP_` variable; volumes that show such labels give a comment, and so does a training container that cannot restart in place",
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

const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Labels and annotations of other controllers, and the variable with the same value.
const VARIABLES: [(&str, &str); 8] = [
    (INDEX, "$(LOCKSTEP_INDEX)"),
    ("jobset.sigs.k8s.io/job-index", "$(LOCKSTEP_REPLICA)"),
    ("jobset.sigs.k8s.io/jobset-name", "$(LOCKSTEP_WORKLOAD)"),
    ("jobset.sigs.k8s.io/replicatedjob-name", "$(LOCKSTEP_GROUP)"),
    ("training.kubeflow.org/job-name", "$(LOCKSTEP_WORKLOAD)"),
    ("training.kubeflow.org/replica-index", "$(LOCKSTEP_REPLICA)"),
    // The PodGroup of Volcano and Kubeflow, of which a job has one.
    ("scheduling.k8s.io/group-name", "$(LOCKSTEP_WORKLOAD)"),
    ("volcano.sh/job-name", "$(LOCKSTEP_WORKLOAD)"),
];

/// Prefixes of labels that only the origin's controller sets.
const CONTROLLERS: [&str; 8] = [
    "batch.kubernetes.io/",
    "kueue.x-k8s.io/",
    "scheduling.k8s.io/",
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
        let path = path.to_owned();
        return Err(ConvertError::NoContainers { path });
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
    note_volumes(draft, &spec, path, &at);
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
        let Some(key) = text(variable, "valueFrom.fieldRef.fieldPath").and_then(label) else {
            continue;
        };
        if key == INDEX && draft.origin["apiVersion"] == "batch/v1" {
            // The members of a Job are replicas.
            *variable = json!({"name": variable["name"], "value": "$(JOB_COMPLETION_INDEX)"});
        } else if let Some((_, value)) = VARIABLES.iter().find(|(label, _)| *label == key) {
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

/// Names the volumes that show a label of another controller.
fn note_volumes(draft: &mut Draft, spec: &Map<String, Value>, path: &str, at: &str) {
    let volumes = spec.get("volumes").and_then(Value::as_array);
    for volume in volumes.into_iter().flatten() {
        let projected = volume["projected"]["sources"].as_array();
        let sources = projected.into_iter().flatten().chain([volume]);
        let items = sources.filter_map(|source| source["downwardAPI"]["items"].as_array());
        for item in items.flatten() {
            let key = text(item, "fieldRef.fieldPath").and_then(label);
            let Some(key) = key.filter(|k| CONTROLLERS.iter().any(|c| k.starts_with(c))) else {
                continue;
            };
            let volume = text(volume, "name").unwrap_or_default();
            draft.note(
                at,
                &format!("{path}.spec.volumes, {volume}"),
                &format!("Lockstep does not set {key}, so that the file is empty. Read one of the variables in docs/environment.md."),
            );
        }
    }
}

/// Key of the label or annotation that a field path names.
fn label(field: &str) -> Option<String> {
    let key = field
        .strip_prefix("metadata.labels['")
        .or_else(|| field.strip_prefix("metadata.annotations['"))?;
    Some(key.strip_suffix("']")?.to_owned())
}

/// Names what a template loses although all of its fields are kept.
pub fn review(draft: &mut Draft, workload: &TrainingWorkload) {
    for (n, group) in workload.spec.groups.iter().enumerate() {
        let at = format!("/spec/groups/{n}/template");
        if let Some(why) = obstacle(&LifecycleSettings::default(), group) {
            let template = draft.workload.pointer_mut(&at);
            let container = template.and_then(training_container);
            let advice = if container.is_some_and(|c| c["command"].is_null()) {
                "Write the entry point of the image as its command"
            } else {
                "Change that if restarts in place matter"
            };
            let text = format!(
                "not possible for the training container, since {why}: a failed gang gets new pods. {advice}."
            );
            draft.note(&at, "restart in place", &text);
        }
        let tpu = format!("{:?}", group.template.0.spec).contains(TPU);
        if tpu && draft.origin["kind"] == "JobSet" {
            draft.note(
                &at,
                TPU,
                "GKE sets TPU_WORKER_ID and TPU_WORKER_HOSTNAMES for pods with labels of JobSet. Check that the program has them.",
            );
        }
    }
}

/// Sum of the accelerators of a container.
pub fn accelerators(container: &Value) -> i64 {
    let limit = |name: &str| {
        let limit = &container["resources"]["limits"][name];
        limit.as_i64().or_else(|| limit.as_str()?.parse().ok())
    };
    ACCELERATORS.iter().filter_map(|name| limit(name)).sum()
}

/// True if the command, the arguments or the variables of a container use a variable, either of
/// Kubernetes or of a shell.
pub fn refers_to(container: &Value, name: &str) -> bool {
    let parts = ["command", "args", "env"].map(|field| container[field].to_string());
    parts.iter().any(|text| {
        let mut found = text.match_indices(name);
        found.any(|(at, _)| {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let ends = !text[at + name.len()..].starts_with(word);
            let before = text[..at].trim_end_matches(['(', '{']);
            ends && before.ends_with('$')
        })
    })
}

/// Adds a variable before those that may refer to it, unless the container has it.
pub fn prepend_variable(container: &mut Value, name: &str, value: &str) {
    let variable = json!({"name": name, "value": value});
    match container["env"].as_array_mut() {
        Some(env) if env.iter().any(|v| v["name"] == name) => {}
        Some(env) => env.insert(0, variable),
        None => container["env"] = json!([variable]),
    }
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
        let existing = container["env"].as_array();
        if !existing.is_some_and(|env| env.iter().any(|v| v["name"] == **name)) {
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

/// Shows files as a volume: downward API of annotations, whose names are a prefix and the file's.
pub fn show_files(template: &mut Value, volume: &str, prefix: &str, files: &[(String, String)]) {
    if template["metadata"]["annotations"].is_null() {
        template["metadata"]["annotations"] = json!({});
    }
    let mut items = Vec::new();
    for (file, content) in files {
        let annotation = format!("{prefix}{file}");
        let field = json!({"fieldPath": format!("metadata.annotations['{annotation}']")});
        items.push(json!({"path": file, "fieldRef": field}));
        template["metadata"]["annotations"][annotation] = json!(content);
    }
    let volume = json!({"name": volume, "downwardAPI": {"items": items}});
    append(&mut template["spec"], "volumes", volume);
}
