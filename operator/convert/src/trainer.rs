//! TrainJob of Kubeflow Trainer, with its runtime.

use serde_json::{Value, json};

use crate::draft::{Draft, child, int, list, text};
use crate::error::{ConvertError, Result};
use crate::field::{Field, FieldsAt, copied, mapped, noted, omitted, part, refused};
use crate::job::JOB_SPEC;
use crate::jobset::{self, CHILD_JOB, JOBSET_SPEC, REPLICATED_JOB};
use crate::kubeflow::{AUTOSCALER, OBJECT};
use crate::mpi::{self, Mpi};
use crate::template::{self, add_variables, append, training_container};

/// Label of the step of a replicated Job in a runtime.
const STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";
/// Name of the replicated Job and of the container of the nodes.
const NODE: &str = "node";
/// The JobSet in a runtime.
const JOBSET: &str = "spec.template.spec";

const FIELDS: &[Field] = &[
    mapped(
        "runtimeRef.name",
        "the runtime of the input, or of the cluster",
    ),
    mapped(
        "runtimeRef.kind",
        "the runtime of the input, or of the cluster",
    ),
    omitted("runtimeRef.apiGroup", "of the runtime"),
    mapped(
        "initializer.dataset.storageUri",
        "variable `STORAGE_URI` of the dataset initializer",
    ),
    mapped(
        "initializer.dataset.env",
        "added to the dataset initializer",
    ),
    mapped(
        "initializer.dataset.secretRef.name",
        "`envFrom` of the dataset initializer",
    ),
    mapped(
        "initializer.model.storageUri",
        "variable `STORAGE_URI` of the model initializer",
    ),
    mapped("initializer.model.env", "added to the model initializer"),
    mapped(
        "initializer.model.secretRef.name",
        "`envFrom` of the model initializer",
    ),
    mapped("trainer.image", "image of the training container"),
    mapped("trainer.command", "command of the training container"),
    mapped("trainer.args", "arguments of the training container"),
    mapped("trainer.env", "added to the training container"),
    mapped(
        "trainer.numNodes",
        "`spec.groups[].size` of the nodes; `spec.replicas` if they are elastic",
    ),
    mapped(
        "trainer.resourcesPerNode.**",
        "resources of the training container",
    ),
    mapped(
        "trainer.numProcPerNode",
        "variable `PET_NPROC_PER_NODE`, or slots of MPI. Without a number and without a GPU it is the number of CPUs",
    ),
    mapped(
        "runtimePatches[].trainingRuntimeSpec.**",
        "merged into the pod templates, lists by name",
    ),
    omitted("runtimePatches[].manager", "names the writer"),
    omitted("runtimePatches[].time", "names the writer"),
    mapped(
        "podTemplateOverrides[].**",
        "merged into the pod templates, lists by name",
    ),
    mapped(
        "podSpecOverrides[].**",
        "merged into the pod templates, lists by name",
    ),
    omitted("labels.**", "labels of the JobSet"),
    omitted("annotations.**", "annotations of the JobSet"),
    copied("suspend", "/spec/suspend"),
    copied("activeDeadlineSeconds", "/spec/activeDeadlineSeconds"),
    noted(
        "managedBy",
        "/spec",
        "not converted. Set spec.managedBy only for another controller of TrainingWorkloads.",
    ),
];

const RUNTIME_FIELDS: &[Field] = &[
    mapped(
        "mlPolicy.numNodes",
        "`spec.groups[].size` of the nodes, or `spec.replicas` if they are elastic, unless the TrainJob sets it",
    ),
    mapped(
        "mlPolicy.torch.numProcPerNode",
        "variable `PET_NPROC_PER_NODE`, unless the TrainJob sets it",
    ),
    mapped(
        "mlPolicy.torch.elasticPolicy.minNodes",
        "`spec.scheduling.gang.minCount`",
    ),
    mapped(
        "mlPolicy.torch.elasticPolicy.maxNodes",
        "`spec.replicas`, unless the TrainJob or `numNodes` sets it",
    ),
    mapped(
        "mlPolicy.torch.elasticPolicy.maxRestarts",
        "`spec.failurePolicy.limits`",
    ),
    noted(
        "mlPolicy.torch.elasticPolicy.metrics",
        "/spec/replicas",
        AUTOSCALER,
    ),
    mapped("mlPolicy.mpi.numProcPerNode", "slots in the hostfile"),
    mapped("mlPolicy.mpi.mpiImplementation", "form of the hostfile"),
    mapped(
        "mlPolicy.mpi.sshAuthMountPath",
        "mount of the Secret with the SSH keys",
    ),
    mapped(
        "mlPolicy.mpi.runLauncherAsNode",
        "the launcher is in the hostfile, too",
    ),
    omitted("mlPolicy.jax", "Lockstep sets the variables of JAX"),
    refused("mlPolicy.flux", FLUX),
    refused("mlPolicy.xgboost", XGBOOST),
    noted(
        "podGroupPolicy.coscheduling",
        "/spec",
        "not converted. A gang waits in the queue and holds nothing; spec.scheduling.timeoutSeconds limits that wait.",
    ),
    noted(
        "podGroupPolicy.volcano.networkTopology",
        "/spec",
        "not converted. Set spec.scheduling.topology.levels to the node labels of the switches, outermost first.",
    ),
    omitted("podGroupPolicy.volcano", "members are a gang by default"),
    omitted(
        "template.metadata.**",
        "labels and annotations of the JobSet",
    ),
];

const FLUX: &str = "Flux schedules processes itself; write the TrainingWorkload by hand";
const XGBOOST: &str = "the processes need the tracker of XGBoost and its variables; write the TrainingWorkload by hand";

pub const TABLE: &[FieldsAt] = &[part("spec", FIELDS), part("", OBJECT)];

pub const RUNTIME: &[FieldsAt] = &[
    part(
        "spec.template.spec.replicatedJobs[].template.spec.template",
        template::FIELDS,
    ),
    part(
        "spec.template.spec.replicatedJobs[].template.spec",
        CHILD_JOB,
    ),
    part(
        "spec.template.spec.replicatedJobs[].template.spec",
        JOB_SPEC,
    ),
    part("spec.template.spec.replicatedJobs[]", REPLICATED_JOB),
    part("spec.template.spec", JOBSET_SPEC),
    part("spec", RUNTIME_FIELDS),
    part("", OBJECT),
];

/// Kind and name of the runtime of a TrainJob.
pub fn runtime_of(job: &Value) -> (&str, &str) {
    let kind = text(job, "spec.runtimeRef.kind").unwrap_or("ClusterTrainingRuntime");
    (kind, text(job, "spec.runtimeRef.name").unwrap_or_default())
}

/// Converts a TrainJob whose runtime is given.
pub fn convert(draft: &mut Draft, runtime: &Value) -> Result<()> {
    let job = draft.origin["spec"].clone();
    let policy = &runtime["spec"]["mlPolicy"];
    // The report skips empty objects, and these policies may be empty.
    for (name, why) in [("flux", FLUX), ("xgboost", XGBOOST)] {
        if !policy[name].is_null() {
            let field = format!("runtime spec.mlPolicy.{name}");
            return Err(ConvertError::Field { field, why });
        }
    }
    let mut patched = runtime.clone();
    let nodes = number_of_nodes(&job, policy)?;
    let jobs = patched
        .pointer_mut("/spec/template/spec/replicatedJobs")
        .and_then(Value::as_array_mut);
    for replicated in jobs.ok_or(ConvertError::EmptyRuntime)? {
        patch(replicated, &job, policy, nodes)?;
    }
    draft.origin = patched;
    jobset::convert_spec(draft, JOBSET)?;
    if policy["mpi"].is_object() {
        return connect(draft, &job, policy);
    }
    add_processes(draft, &job, policy)?;
    let elastic = &policy["torch"]["elasticPolicy"];
    if let Some(minimum) = int(elastic, "elasticPolicy", "minNodes")? {
        draft.elastic("spec.mlPolicy.torch.elasticPolicy.minNodes", minimum);
    }
    if let Some(restarts) = int(elastic, "elasticPolicy", "maxRestarts")? {
        draft.limit_restarts("spec.mlPolicy.torch.elasticPolicy.maxRestarts", restarts);
    }
    if elastic.is_object() {
        draft.scale_group(NODE)?;
    }
    Ok(())
}

fn number_of_nodes(job: &Value, policy: &Value) -> Result<i64> {
    let of_job = int(job, "spec", "trainer.numNodes")?;
    let of_policy = int(policy, "runtime spec.mlPolicy", "numNodes")?;
    let most = int(
        policy,
        "runtime spec.mlPolicy",
        "torch.elasticPolicy.maxNodes",
    )?;
    Ok(of_job.or(of_policy).or(most).unwrap_or(1))
}

fn step(replicated: &Value) -> &str {
    replicated["template"]["metadata"]["labels"][STEP]
        .as_str()
        .unwrap_or_default()
}

fn name_of(value: &Value) -> &str {
    value["name"].as_str().unwrap_or_default()
}

/// Applies what the TrainJob changes in a replicated Job of its runtime.
fn patch(replicated: &mut Value, job: &Value, policy: &Value, nodes: i64) -> Result<()> {
    let name = name_of(replicated).to_owned();
    let step = step(replicated).to_owned();
    let mpi = policy["mpi"].is_object();
    let launcher_works = policy["mpi"]["runLauncherAsNode"] == true;
    if name == NODE || (!mpi && step == "trainer") {
        let pods = if launcher_works { nodes - 1 } else { nodes };
        if pods < 1 {
            return Err(ConvertError::NoNodeBesideLauncher { nodes });
        }
        let spec = &mut replicated["template"]["spec"];
        spec["parallelism"] = json!(pods);
        spec["completions"] = json!(pods);
    }
    let (source, container) = match step.as_str() {
        "trainer" => (&job["trainer"], NODE),
        "dataset-initializer" => (&job["initializer"]["dataset"], "dataset-initializer"),
        "model-initializer" => (&job["initializer"]["model"], "model-initializer"),
        _ => (&Value::Null, ""),
    };
    let pod = &mut replicated["template"]["spec"]["template"];
    for (path, patches) in [
        (
            "runtimePatches",
            "trainingRuntimeSpec.template.spec.replicatedJobs",
        ),
        ("podTemplateOverrides", ""),
        ("podSpecOverrides", ""),
    ] {
        for (shown, patch) in list(job, "spec", path)? {
            merge_patch(pod, patch, &shown, patches, &name)?;
        }
    }
    let containers = pod["spec"]["containers"].as_array_mut();
    let target = containers
        .into_iter()
        .flatten()
        .find(|c| name_of(c) == container);
    if let Some(target) = target {
        patch_container(target, source);
    }
    Ok(())
}

fn merge_patch(pod: &mut Value, patch: &Value, shown: &str, jobs: &str, name: &str) -> Result<()> {
    if jobs.is_empty() {
        let targets = list(patch, shown, "targetJobs")?;
        if targets.is_empty() || targets.iter().any(|(_, t)| name_of(t) == name) {
            for field in ["metadata", "spec"] {
                merge(&mut pod[field], &patch[field]);
            }
            // The older form has the fields of the pod beside the targets.
            let mut rest = patch.clone();
            if let Some(rest) = rest.as_object_mut() {
                rest.retain(|key, _| !["targetJobs", "metadata", "spec"].contains(&key.as_str()));
            }
            merge(&mut pod["spec"], &rest);
        }
        return Ok(());
    }
    for (_, job) in list(patch, shown, jobs)? {
        if name_of(job) == name {
            merge(
                pod,
                child(job, "template.spec.template").unwrap_or(&Value::Null),
            );
        }
    }
    Ok(())
}

/// Merges a patch into a value: objects by field, lists of named objects by name, others replace.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (_, Value::Null) => {}
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(patch))
            if patch.iter().all(|p| p["name"].is_string()) =>
        {
            for item in patch {
                match into.iter_mut().find(|i| i["name"] == item["name"]) {
                    Some(existing) => merge(existing, item),
                    None => into.push(item.clone()),
                }
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

fn patch_container(container: &mut Value, source: &Value) {
    for field in ["image", "command", "args"] {
        if !source[field].is_null() {
            container[field] = source[field].clone();
        }
    }
    if !source["resourcesPerNode"].is_null() {
        container["resources"] = source["resourcesPerNode"].clone();
    }
    if !source["env"].is_null() {
        merge(&mut container["env"], &source["env"]);
    }
    if let Some(uri) = text(source, "storageUri") {
        add_variables(container, &[("STORAGE_URI", uri.to_owned())]);
    }
    if !source["secretRef"].is_null() {
        append(
            container,
            "envFrom",
            json!({"secretRef": source["secretRef"]}),
        );
    }
}

fn processes_of<'v>(job: &'v Value, policy: &'v Value) -> &'v Value {
    match &job["trainer"]["numProcPerNode"] {
        Value::Null => &policy["torch"]["numProcPerNode"],
        own => own,
    }
}

/// Sets the number of processes of torchrun, unless it is that of the accelerators.
fn add_processes(draft: &mut Draft, job: &Value, policy: &Value) -> Result<()> {
    let processes = match processes_of(job, policy) {
        Value::Number(number) => Some(number.to_string()),
        Value::String(word) if word != "auto" && word != "cpu" => Some(word.clone()),
        _ => None,
    };
    let by_torchrun = Some("cpu".to_owned()).filter(|cpu| processes_of(job, policy) == cpu);
    // Without a torch policy the runtime sets no number of processes.
    if processes.is_none() && !policy["torch"].is_object() {
        return Ok(());
    }
    let jobs = list(&draft.origin, "", &format!("{JOBSET}.replicatedJobs"))?;
    let trainers: Vec<usize> = jobs
        .iter()
        .enumerate()
        .filter(|(_, (_, j))| step(j) == "trainer")
        .map(|(n, _)| n)
        .collect();
    for (n, group) in draft.groups_mut()?.iter_mut().enumerate() {
        if trainers.contains(&n)
            && let Some(container) = training_container(&mut group["template"])
            && let Some(processes) = processes
                .clone()
                .or_else(|| cpus(container))
                .or_else(|| by_torchrun.clone())
        {
            add_variables(container, &[("PET_NPROC_PER_NODE", processes)]);
        }
    }
    Ok(())
}

/// Number of CPUs of a container without a GPU, which is Trainer's number of processes, rounded up.
fn cpus(container: &Value) -> Option<String> {
    let resources = &container["resources"];
    let sides = [&resources["requests"], &resources["limits"]];
    let mut names = sides.iter().filter_map(|side| side.as_object()).flatten();
    if names.any(|(name, _)| name.to_lowercase().contains("gpu")) {
        return None;
    }
    let cpu = sides.iter().find_map(|side| side.get("cpu"))?;
    let cpu = cpu.as_str().map_or_else(|| cpu.to_string(), str::to_owned);
    let cpus = match cpu.strip_suffix('m') {
        Some(milli) => milli.parse::<f64>().ok()? / 1000.0,
        None => cpu.parse().ok()?,
    };
    Some(format!("{:.0}", cpus.ceil())).filter(|cpus| cpus != "0")
}

fn connect(draft: &mut Draft, job: &Value, policy: &Value) -> Result<()> {
    let of_mpi = &policy["mpi"];
    let slots = match int(job, "spec", "trainer.numProcPerNode")? {
        Some(slots) => slots,
        None => int(of_mpi, "runtime spec.mlPolicy.mpi", "numProcPerNode")?.unwrap_or(1),
    };
    let word = |field, default: &str| text(of_mpi, field).unwrap_or(default).to_owned();
    let launcher = "launcher".to_owned();
    let mut workers = vec![NODE.to_owned()];
    if of_mpi["runLauncherAsNode"] == true {
        workers.insert(0, launcher.clone());
    }
    mpi::connect(
        draft,
        &Mpi {
            launcher,
            workers,
            slots,
            implementation: word("mpiImplementation", "OpenMPI"),
            keys: word("sshAuthMountPath", "/root/.ssh"),
        },
    )
}
