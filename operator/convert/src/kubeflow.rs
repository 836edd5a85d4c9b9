//! Jobs of training-operator: PyTorchJob, JAXJob, TFJob, and what MPIJob has in common with them.

use serde_json::{Value, json};

use crate::draft::{Draft, int, list, text};
use crate::error::{ConvertError, Result};
use crate::field::{Field, FieldsAt, copied, mapped, noted, omitted, part};
use crate::hosts::{hosts, rename, roles};
use crate::template::{
    self, accelerators, add_variables, prepend_variable, refers_to, training_container,
};

/// Advice for the metrics of an elastic policy.
pub const AUTOSCALER: &str = "not converted. Create a HorizontalPodAutoscaler with these metrics, whose scaleTargetRef names the TrainingWorkload, see docs/how-to/scale.md.";

const KUEUE: &str = "kept, but for the last applied configuration of kubectl and Kueue's: the queue and its priority class give comments, and `spec.suspend: true` of a queue is left out; `max-exec-time-seconds`: `spec.activeDeadlineSeconds`; `job-min-parallelism`: `minCount`";

/// Metadata, status and type of every object.
pub const OBJECT: &[Field] = &[
    omitted("apiVersion", "names the origin"),
    omitted("kind", "names the origin"),
    mapped("metadata.name", "kept"),
    mapped(
        "metadata.generateName",
        "without `metadata.name`: a name without the hyphen at the end, with a comment",
    ),
    mapped("metadata.namespace", "kept"),
    mapped("metadata.labels", KUEUE),
    mapped("metadata.annotations", KUEUE),
    omitted("metadata.**", "set by the API server"),
    omitted("status.**", "belongs to the origin"),
];

/// `runPolicy` of training-operator and mpi-operator.
pub const RUN_POLICY: &[Field] = &[
    noted(
        "cleanPodPolicy",
        "/spec",
        "not converted. At the end of a workload Lockstep terminates the pods that run, as with Running, and keeps finished pods.",
    ),
    copied("ttlSecondsAfterFinished", "/spec/ttlSecondsAfterFinished"),
    copied("activeDeadlineSeconds", "/spec/activeDeadlineSeconds"),
    mapped(
        "backoffLimit",
        "`spec.failurePolicy.limits`: the number of restarts of the whole workload, at most 100",
    ),
    copied("suspend", "/spec/suspend"),
    noted(
        "managedBy",
        "/spec",
        "not converted. Set spec.managedBy only for another controller of TrainingWorkloads.",
    ),
    mapped(
        "schedulingPolicy.minAvailable",
        "`spec.scheduling.gang.minCount` if less than all members; a gang of all members is the default",
    ),
    noted(
        "schedulingPolicy.queue",
        "/spec",
        "not converted. Lockstep has one queue, ordered by priority and by the share of the namespace; set spec.priorityClassName.",
    ),
    omitted(
        "schedulingPolicy.minResources.**",
        "Lockstep adds up the requests of the pods",
    ),
    mapped("schedulingPolicy.priorityClass", "`spec.priorityClassName`"),
    noted(
        "schedulingPolicy.scheduleTimeoutSeconds",
        "/spec",
        "not converted. A gang waits in the queue and holds nothing; spec.scheduling.timeoutSeconds limits that wait.",
    ),
];

/// A replica specification.
pub const REPLICA_SPEC: &[Field] = &[
    mapped(
        "replicas",
        "`spec.groups[].replicas`; `spec.replicas` for the workers of an elastic PyTorchJob",
    ),
    mapped(
        "restartPolicy",
        "`Always`, `OnFailure`: the default, all members restart together. `Never`: a rule with FailWorkload. `ExitCode`: a rule with FailWorkload for codes 1 to 127",
    ),
];

const PYTORCH_FIELDS: &[Field] = &[
    mapped(
        "nprocPerNode",
        "variable `PET_NPROC_PER_NODE` of the training container. `RANK` and `WORLD_SIZE` are set if its command refers to them and it has several accelerators",
    ),
    mapped(
        "elasticPolicy.minReplicas",
        "`spec.scheduling.gang.minCount`",
    ),
    noted(
        "elasticPolicy.maxReplicas",
        "/spec/replicas",
        "not converted. `kubectl scale` raises replicas up to this number. It is maxReplicas of a HorizontalPodAutoscaler, see docs/how-to/scale.md.",
    ),
    mapped(
        "elasticPolicy.rdzvBackend",
        "variable `PET_RDZV_BACKEND`; etcd becomes c10d, with a comment",
    ),
    mapped("elasticPolicy.rdzvPort", "`spec.network.port`"),
    noted(
        "elasticPolicy.rdzvHost",
        "/spec/network",
        "not converted. The rendezvous is at the member with rank 0; spec.network.coordinator chooses another.",
    ),
    omitted("elasticPolicy.rdzvId", "Lockstep sets `PET_RDZV_ID`"),
    mapped("elasticPolicy.rdzvConf[].key", "variable `PET_RDZV_CONF`"),
    mapped("elasticPolicy.rdzvConf[].value", "variable `PET_RDZV_CONF`"),
    noted(
        "elasticPolicy.standalone",
        "/spec",
        "not converted. For a single member, add --standalone to the command of torchrun.",
    ),
    mapped(
        "elasticPolicy.nProcPerNode",
        "variable `PET_NPROC_PER_NODE`",
    ),
    mapped(
        "elasticPolicy.maxRestarts",
        "variable `PET_MAX_RESTARTS`: restarts within torchrun, before Lockstep sees a failure",
    ),
    noted("elasticPolicy.metrics", "/spec/replicas", AUTOSCALER),
];

const TF_FIELDS: &[Field] = &[
    mapped(
        "successPolicy",
        "`spec.successPolicy.groups`: the chief, or the workers without one; `AllWorkers`: the chief and the workers",
    ),
    noted(
        "enableDynamicWorker",
        "/spec",
        "not converted. TF_CONFIG has the number of workers of this manifest.",
    ),
];

pub const PYTORCH: &[FieldsAt] = &[
    part("spec.pytorchReplicaSpecs.*.template", template::FIELDS),
    part("spec.pytorchReplicaSpecs.*", REPLICA_SPEC),
    part("spec.runPolicy", RUN_POLICY),
    part("spec", PYTORCH_FIELDS),
    part("", OBJECT),
];

pub const JAX: &[FieldsAt] = &[
    part("spec.jaxReplicaSpecs.*.template", template::FIELDS),
    part("spec.jaxReplicaSpecs.*", REPLICA_SPEC),
    part("spec.runPolicy", RUN_POLICY),
    part("", OBJECT),
];

pub const TF: &[FieldsAt] = &[
    part("spec.tfReplicaSpecs.*.template", template::FIELDS),
    part("spec.tfReplicaSpecs.*", REPLICA_SPEC),
    part("spec.runPolicy", RUN_POLICY),
    part("spec", TF_FIELDS),
    part("", OBJECT),
];

/// Replica specifications of one kind.
pub struct Roles {
    pub field: &'static str,
    /// Roles in the order of ranks.
    pub names: &'static [&'static str],
    /// Name of the training container and of its port.
    pub container: &'static str,
    pub port: &'static str,
    pub restart_policy: &'static str,
}

/// Adds a group for each role, and the rules of its restart policy.
pub fn add_roles(draft: &mut Draft, roles: &Roles) -> Result<()> {
    let base = format!("spec.{}", roles.field);
    let specs = draft.origin["spec"][roles.field].as_object().cloned();
    let Some(specs) = specs.filter(|s| !s.is_empty()) else {
        return Err(ConvertError::missing(base));
    };
    let is_role = |key: &str| roles.names.iter().any(|n| n.eq_ignore_ascii_case(key));
    if let Some(unknown) = specs.keys().find(|key| !is_role(key)) {
        return Err(ConvertError::UnknownRole {
            path: format!("{base}.{unknown}"),
            roles: roles.names.join(", "),
        });
    }
    let mut ports = Vec::new();
    for role in roles.names {
        let Some((key, spec)) = specs.iter().find(|(k, _)| role.eq_ignore_ascii_case(k)) else {
            continue;
        };
        let path = format!("{base}.{key}");
        let replicas = int(spec, &path, "replicas")?.unwrap_or(1);
        let at = format!("/spec/groups/{}", draft.groups().len());
        let mut template = spec["template"].clone();
        // The policy of the replica specification overrides that of the template.
        if let Some(pod) = template["spec"].as_object_mut() {
            pod.remove("restartPolicy");
        }
        let source = format!("{path}.template");
        let template = template::convert(draft, &template, &source, &at, roles.container)?;
        ports.extend(port(&template, roles.port));
        let name = role.to_lowercase();
        let group = json!({"name": name, "replicas": replicas, "template": template});
        draft.add_group(&path, group)?;
        let policy = text(spec, "restartPolicy").unwrap_or(roles.restart_policy);
        add_restart_policy(draft, &path, policy, &name);
    }
    if let Some(port) = ports.first() {
        draft.set("/spec/network/port", json!(port));
    }
    Ok(())
}

/// Number of the container port with this name.
fn port(template: &Value, name: &str) -> Option<i64> {
    let containers = template["spec"]["containers"].as_array()?;
    let mut ports = containers
        .iter()
        .flat_map(|c| c["ports"].as_array().into_iter().flatten());
    ports.find(|p| p["name"] == name)?["containerPort"].as_i64()
}

fn add_restart_policy(draft: &mut Draft, path: &str, policy: &str, group: &str) {
    let path = format!("{path}.restartPolicy: {policy}");
    let (rule, text) = match policy {
        "Never" => (
            json!({"name": format!("{group}-never-restarts"), "match": {"groups": [group]}, "action": "FailWorkload"}),
            "kept by this rule. Without it, all members restart together.",
        ),
        "ExitCode" => (
            json!({"name": format!("{group}-permanent"),
                "match": {"groups": [group], "exitCodes": {"operator": "In", "values": (1..=127).collect::<Vec<_>>()}},
                "action": "FailWorkload"}),
            "kept by this rule: codes 1 to 127 are permanent. After any other code all members restart together.",
        ),
        _ => return,
    };
    let at = draft.push("/spec/failurePolicy/rules", rule);
    draft.note(&at, &path, text);
}

/// Restart budget, minimum and priority of a run policy.
pub fn apply_run_policy(draft: &mut Draft) -> Result<()> {
    let policy = draft.origin["spec"]["runPolicy"].clone();
    let shown = "spec.runPolicy";
    if let Some(limit) = int(&policy, shown, "backoffLimit")? {
        draft.limit_restarts("spec.runPolicy.backoffLimit", limit);
    }
    if let Some(minimum) = int(&policy, shown, "schedulingPolicy.minAvailable")? {
        draft.elastic("spec.runPolicy.schedulingPolicy.minAvailable", minimum);
    }
    if let Some(class) = text(&policy, "schedulingPolicy.priorityClass") {
        draft.prioritize("spec.runPolicy.schedulingPolicy.priorityClass", class);
    }
    Ok(())
}

/// Adds variables to the training container of each group.
pub fn add_to_all(draft: &mut Draft, variables: &[(&str, String)]) -> Result<()> {
    for group in draft.groups_mut()? {
        if let Some(container) = training_container(&mut group["template"]) {
            add_variables(container, variables);
        }
    }
    Ok(())
}

pub fn convert_pytorch(draft: &mut Draft) -> Result<()> {
    add_roles(
        draft,
        &Roles {
            field: "pytorchReplicaSpecs",
            names: &["Master", "Worker"],
            container: "pytorch",
            port: "pytorchjob-port",
            restart_policy: "OnFailure",
        },
    )?;
    let mut hostnames = roles(draft);
    let masters = draft.groups().first().map_or(0, |g| draft.replicas(g));
    // A rule that names one of the groups keeps them apart.
    if draft
        .workload
        .pointer("/spec/failurePolicy/rules")
        .is_none()
    {
        draft.join_equal_groups("worker")?;
    }
    if draft.groups().len() > 1 {
        draft.set("/spec/network/world", json!("Workload"));
    } else if let [master, worker] = hostnames.as_mut_slice() {
        master.group.clone_from(&worker.group);
        worker.first = masters;
    }
    rename(draft, &hostnames, true)?;
    apply_run_policy(draft)?;
    let processes = apply_elastic_policy(draft)?;
    if draft.origin["spec"]["elasticPolicy"].is_object() {
        draft.scale_group("worker")?;
    }
    add_ranks(draft, processes)
}

/// Sets the variables of the origin that commands refer to and that Lockstep leaves to the launcher
/// of several accelerators. `processes` of each member count in the size of the world.
pub fn add_ranks(draft: &mut Draft, processes: i64) -> Result<()> {
    let world = match processes {
        1 => "$(PET_NNODES)".to_owned(),
        _ => (draft.members() * processes).to_string(),
    };
    let mut changed = Vec::new();
    for (n, group) in draft.groups_mut()?.iter_mut().enumerate() {
        let Some(container) = training_container(&mut group["template"]) else {
            continue;
        };
        if accelerators(container) < 2 {
            continue;
        }
        for (name, value) in [
            ("RANK", "$(PET_NODE_RANK)".to_owned()),
            ("WORLD_SIZE", world.clone()),
        ] {
            if refers_to(container, name) {
                prepend_variable(container, name, &value);
                changed.push((n, name));
            }
        }
    }
    for (n, name) in changed {
        draft.note(
            &format!("/spec/groups/{n}/template"),
            &format!("variable {name}"),
            "set as by the origin, because the command refers to it. Lockstep leaves it to the launcher of several accelerators.",
        );
    }
    Ok(())
}

/// Returns the number of processes of each member.
fn apply_elastic_policy(draft: &mut Draft) -> Result<i64> {
    let spec = draft.origin["spec"].clone();
    let shown = "spec";
    // training-operator sets it, and without it the log of a killed process lacks its last lines.
    let mut variables = vec![("PYTHONUNBUFFERED", "1".to_owned())];
    let processes = match text(&spec, "nprocPerNode") {
        Some(processes) => Some(processes.to_owned()),
        None => int(&spec, shown, "elasticPolicy.nProcPerNode")?.map(|n| n.to_string()),
    };
    let number = processes.as_ref().and_then(|n| n.parse().ok());
    variables.extend(processes.map(|n| ("PET_NPROC_PER_NODE", n)));
    if let Some(minimum) = int(&spec, shown, "elasticPolicy.minReplicas")? {
        draft.elastic("spec.elasticPolicy.minReplicas", minimum);
    }
    if let Some(backend) = text(&spec, "elasticPolicy.rdzvBackend") {
        variables.push(("PET_RDZV_BACKEND", "c10d".to_owned()));
        if backend != "c10d" {
            draft.note(
                "/spec/network",
                &format!("spec.elasticPolicy.rdzvBackend: {backend}"),
                "c10d instead. The member with rank 0 serves the rendezvous; etcd is not needed.",
            );
        }
    }
    if let Some(port) = int(&spec, shown, "elasticPolicy.rdzvPort")? {
        draft.set("/spec/network/port", json!(port));
    }
    let configuration = list(&spec, shown, "elasticPolicy.rdzvConf")?;
    let pairs: Vec<String> = configuration
        .iter()
        .map(|(_, pair)| {
            let of = |field| text(pair, field).unwrap_or_default();
            format!("{}={}", of("key"), of("value"))
        })
        .collect();
    if !pairs.is_empty() {
        variables.push(("PET_RDZV_CONF", pairs.join(",")));
    }
    if let Some(restarts) = int(&spec, shown, "elasticPolicy.maxRestarts")? {
        variables.push(("PET_MAX_RESTARTS", restarts.to_string()));
    }
    add_to_all(draft, &variables)?;
    Ok(number.unwrap_or(1))
}

pub fn convert_jax(draft: &mut Draft) -> Result<()> {
    add_roles(
        draft,
        &Roles {
            field: "jaxReplicaSpecs",
            names: &["Worker"],
            container: "jax",
            port: "jaxjob-port",
            restart_policy: "Never",
        },
    )?;
    rename(draft, &roles(draft), true)?;
    apply_run_policy(draft)?;
    let same = |name, of: &str| (name, format!("$({of})"));
    add_to_all(
        draft,
        &[
            same("COORDINATOR_ADDRESS", "MASTER_ADDR"),
            same("COORDINATOR_PORT", "MASTER_PORT"),
            same("NUM_PROCESSES", "JAX_NUM_PROCESSES"),
            same("PROCESS_ID", "JAX_PROCESS_ID"),
        ],
    )
}

pub fn convert_tf(draft: &mut Draft) -> Result<()> {
    add_roles(
        draft,
        &Roles {
            field: "tfReplicaSpecs",
            names: &["Chief", "Master", "PS", "Worker", "Evaluator"],
            container: "tensorflow",
            port: "tfjob-port",
            restart_policy: "Never",
        },
    )?;
    rename(draft, &roles(draft), true)?;
    apply_run_policy(draft)?;
    let port = draft.workload.pointer("/spec/network/port");
    add_tf_config(draft, port.and_then(Value::as_i64).unwrap_or(2222))?;
    let names: Vec<&str> = ["chief", "master", "worker"]
        .into_iter()
        .filter(|name| draft.groups().iter().any(|g| g["name"] == **name))
        .collect();
    let all = text(&draft.origin, "spec.successPolicy") == Some("AllWorkers");
    let succeed: Vec<&str> = names
        .iter()
        .take(if all { 3 } else { 1 })
        .copied()
        .collect();
    if draft.groups().len() > succeed.len() && !succeed.is_empty() {
        draft.set("/spec/successPolicy/groups", json!(succeed));
    }
    Ok(())
}

/// Sets `TF_CONFIG`: the addresses of all members but evaluators, and the task of the member.
pub fn add_tf_config(draft: &mut Draft, port: i64) -> Result<()> {
    let task = |group: &Value| {
        let name = group["name"].as_str().unwrap_or_default();
        if name == "master" { "chief" } else { name }.to_owned()
    };
    let mut cluster = serde_json::Map::new();
    for group in draft.groups().iter().filter(|g| g["name"] != "evaluator") {
        let addresses = hosts(draft, group)
            .iter()
            .map(|host| format!("{host}:{port}"))
            .collect();
        cluster.insert(task(group), addresses);
    }
    let cluster = Value::Object(cluster).to_string();
    for group in draft.groups_mut()? {
        let task = task(group);
        // The index is a reference to a variable, and no JSON number before the kubelet resolves it.
        let config = format!(
            r#"{{"cluster":{cluster},"task":{{"type":"{task}","index":$(LOCKSTEP_REPLICA)}}}}"#
        );
        if let Some(container) = training_container(&mut group["template"]) {
            add_variables(container, &[("TF_CONFIG", config)]);
        }
    }
    Ok(())
}
