//! Volcano Job.

use serde_json::{Value, json};

use crate::draft::{Draft, int, list, text};
use crate::error::{ConvertError, Result};
use crate::field::{Field, FieldsAt, copied, mapped, noted, omitted, part, refused};
use crate::hosts::{hosts, rename, roles};
use crate::job::Reaction;
use crate::kubeflow::{OBJECT, add_ranks, add_tf_config, add_to_all};
use crate::mpi::{self, Mpi};
use crate::template::{self, append, mount, show_files};

const POLICY: &str = "TaskCompleted with CompleteJob: `spec.successPolicy.groups`. RestartJob and RestartTask after failures and evictions: the default. RestartPod: a rule with RestartPod. AbortJob, TerminateJob, CompleteJob after failures: a rule with FailWorkload. Others: a comment";

const FIELDS: &[Field] = &[
    omitted(
        "schedulerName",
        "Lockstep places the gang, and kube-scheduler binds its pods",
    ),
    mapped(
        "minAvailable",
        "`spec.scheduling.gang.minCount` if it is at least 1 and less than all members",
    ),
    mapped("volumes[].mountPath", "a mount in all containers"),
    mapped("volumes[].volumeClaimName", "a volume of all pods"),
    noted(
        "volumes[].volumeClaim",
        "/spec/groups",
        "not converted. Create the claim yourself, and add it under volumes and volumeMounts of the templates.",
    ),
    mapped(
        "tasks[].name",
        "`spec.groups[].name`; hostnames `<job>-<task>-<n>.<job>` in the templates become those of Lockstep",
    ),
    mapped("tasks[].replicas", "`spec.groups[].replicas`"),
    mapped("tasks[].minAvailable", "a comment if less than replicas"),
    noted(
        "tasks[].topologyPolicy",
        "/template",
        "not converted. The policy of the kubelet's topology manager decides about NUMA nodes.",
    ),
    noted(
        "tasks[].maxRetry",
        "",
        "not converted. The restart budget is that of the workload, spec.failurePolicy.limits.",
    ),
    mapped(
        "tasks[].dependsOn.name",
        "`dependsOn`, with `gang.scope: Group`",
    ),
    mapped(
        "tasks[].dependsOn.iteration",
        "any gives a comment: groups wait for all",
    ),
    noted(
        "tasks[].partitionPolicy",
        "",
        "not converted. Use replicas of several members (size), scheduling.gang.scope: Replica and scheduling.topology.",
    ),
    mapped(
        "plugins.env",
        "variables `VC_TASK_INDEX` and `VK_TASK_INDEX`",
    ),
    mapped(
        "plugins.svc",
        "variables `VC_<TASK>_HOSTS` and `VC_<TASK>_NUM`; files `/etc/volcano/<task>.host` if a container names that folder. The plugins mpi, pytorch and tensorflow include it",
    ),
    mapped(
        "plugins.ssh",
        "as for MPIJob if there is the plugin mpi, else a comment",
    ),
    mapped(
        "plugins.pytorch",
        "one world of all members, with the variables of Lockstep; `--port`: `spec.network.port`. `RANK` and `WORLD_SIZE` are set if a command refers to them and it has several accelerators",
    ),
    mapped(
        "plugins.tensorflow",
        "variable `TF_CONFIG`; `--port` is its port",
    ),
    mapped(
        "plugins.mpi",
        "as for MPIJob: hostfile and keys; `--master` and `--worker` name the tasks",
    ),
    refused(
        "plugins.ray",
        "Ray needs a head and its own cluster state; use KubeRay for this job",
    ),
    noted(
        "runningEstimate",
        "/spec",
        "not converted. spec.activeDeadlineSeconds ends a workload, and lets other gangs use its reserved nodes until then.",
    ),
    noted(
        "queue",
        "/spec",
        "not converted. Lockstep has one queue, ordered by priority and by the share of the namespace; set spec.priorityClassName.",
    ),
    mapped(
        "maxRetry",
        "`spec.failurePolicy.limits`, at most 100; absent or 0: 3",
    ),
    copied("ttlSecondsAfterFinished", "/spec/ttlSecondsAfterFinished"),
    mapped("priorityClassName", "`spec.priorityClassName`"),
    noted(
        "minSuccess",
        "/spec",
        "not converted. A group succeeds if all its members succeed; see spec.successPolicy.",
    ),
    noted(
        "networkTopology",
        "/spec",
        "not converted. Set spec.scheduling.topology.levels to the node labels of the switches, outermost first.",
    ),
];

pub const POLICIES: &[Field] = &[
    mapped("action", POLICY),
    mapped("event", POLICY),
    mapped("events", POLICY),
    mapped("exitCode", "`match.exitCodes` of a rule"),
    noted(
        "timeout",
        "/spec/failurePolicy",
        "not converted. Lockstep reacts at once.",
    ),
];

pub const TABLE: &[FieldsAt] = &[
    part("spec.tasks[].template", template::FIELDS),
    part("spec.tasks[].policies[]", POLICIES),
    part("spec.policies[]", POLICIES),
    part("spec", FIELDS),
    part(
        "spec.plugins",
        &[noted("*", "/spec", "unknown plugin, not converted.")],
    ),
    part("", OBJECT),
];

/// Restart of one member.
const ONE: Reaction = Reaction::new("RestartPod", true);
/// Plugins to which Volcano adds svc.
const INCLUDE_SVC: [&str; 3] = ["mpi", "pytorch", "tensorflow"];
/// Folder of the files of plugin svc.
const FOLDER: &str = "/etc/volcano";
/// Retries of a job that sets no limit, or 0.
const MAX_RETRY: i64 = 3;

pub fn convert(draft: &mut Draft) -> Result<()> {
    let mut spec = draft.origin["spec"].clone();
    let tasks = spec["tasks"].as_array_mut().into_iter().flatten();
    for (n, task) in tasks.enumerate() {
        if text(task, "name").is_none() && task.is_object() {
            task["name"] = json!(format!("default{n}"));
        }
    }
    let tasks = in_order(list(&spec, "spec", "tasks")?);
    if tasks.is_empty() {
        return Err(ConvertError::missing("spec.tasks"));
    }
    if let Some(class) = text(&spec, "priorityClassName") {
        draft.prioritize("spec.priorityClassName", class);
    }
    for (path, task) in &tasks {
        add_task(draft, path, task)?;
    }
    let limit = int(&spec, "spec", "maxRetry")?.filter(|limit| *limit != 0);
    let limit = limit.unwrap_or(MAX_RETRY);
    draft.limit_restarts("spec.maxRetry", limit);
    if let Some(minimum) = int(&spec, "spec", "minAvailable")?
        && draft
            .workload
            .pointer("/spec/scheduling/gang/scope")
            .is_none()
    {
        draft.elastic("spec.minAvailable", minimum);
    }
    for (path, task) in &tasks {
        add_policies(draft, task, path, Some(name_of(task)))?;
    }
    add_policies(draft, &spec, "spec", None)?;
    add_volumes(draft, &spec)?;
    add_plugins(draft, &spec["plugins"])
}

fn name_of(task: &Value) -> &str {
    text(task, "name").unwrap_or_default()
}

/// Tasks with each task behind those it depends on.
fn in_order<'v>(mut tasks: Vec<(String, &'v Value)>) -> Vec<(String, &'v Value)> {
    let mut out: Vec<(String, &'v Value)> = Vec::new();
    while !tasks.is_empty() {
        let free = tasks.iter().position(|(_, task)| {
            let names = dependencies(task);
            names
                .iter()
                .all(|n| !tasks.iter().any(|(_, t)| name_of(t) == *n))
        });
        // A circle of dependencies keeps its order; the API server refuses it.
        out.push(tasks.remove(free.unwrap_or(0)));
    }
    out
}

fn dependencies(task: &Value) -> Vec<&str> {
    let names = task["dependsOn"]["name"].as_array();
    names
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn add_task(draft: &mut Draft, path: &str, task: &Value) -> Result<()> {
    let at = format!("/spec/groups/{}", draft.groups().len());
    let replicas = int(task, path, "replicas")?.unwrap_or(1);
    let source = format!("{path}.template");
    let template = template::convert(draft, &task["template"], &source, &at, "")?;
    let mut group = json!({"name": name_of(task), "replicas": replicas, "template": template});
    let names = dependencies(task);
    if !names.is_empty() {
        group["dependsOn"] = names.iter().map(|name| json!({"group": name})).collect();
        let scope = "/spec/scheduling/gang/scope";
        draft.set(scope, json!("Group"));
        draft.note(
            scope,
            &format!("{path}.dependsOn"),
            "each group is a gang of its own, because a gang cannot wait for itself.",
        );
    }
    if text(task, "dependsOn.iteration") == Some("any") && names.len() > 1 {
        draft.note(
            &at,
            &format!("{path}.dependsOn.iteration: any"),
            "the group waits for all of these groups.",
        );
    }
    if let Some(minimum) = int(task, path, "minAvailable")?.filter(|m| *m < replicas) {
        draft.note(
            &at,
            &format!("{path}.minAvailable: {minimum}"),
            "not converted. A minimum for each group needs spec.scheduling.gang.scope: Group, and minCount of the group.",
        );
    }
    draft.add_group(path, group)?;
    Ok(())
}

fn add_policies(draft: &mut Draft, owner: &Value, path: &str, task: Option<&str>) -> Result<()> {
    for (path, policy) in list(owner, path, "policies")? {
        let action = text(&policy.clone(), "action")
            .unwrap_or_default()
            .to_owned();
        let many = policy["events"].as_array().into_iter().flatten();
        let mut events: Vec<&str> = many.filter_map(Value::as_str).collect();
        events.extend(text(policy, "event"));
        let code = int(policy, &path, "exitCode")?;
        if events.is_empty() && code.is_none() {
            continue;
        }
        let completes = events.contains(&"TaskCompleted") && action == "CompleteJob";
        let fails = ["AbortJob", "TerminateJob", "CompleteJob"].contains(&action.as_str());
        let restarts = action.starts_with("Restart");
        let failure = code.is_some()
            || events
                .iter()
                .all(|e| ["PodFailed", "PodEvicted", "*"].contains(e));
        let failed = json!({"groups": task.into_iter().collect::<Vec<_>>()});
        let mut matches = if task.is_some() { failed } else { json!({}) };
        if let Some(code) = code {
            matches["exitCodes"] = json!({"operator": "In", "values": [code]});
        }
        match task {
            Some(task) if completes => {
                draft.push("/spec/successPolicy/groups", json!(task));
            }
            _ if failure && (fails || action == "RestartPod") => {
                let reaction = if fails { Reaction::FAIL } else { ONE };
                let name = format!("policy-{}", draft.rules());
                draft.push("/spec/failurePolicy/rules", reaction.rule(&name, matches));
            }
            // Failures and evictions restart all members without a rule.
            _ if failure && restarts => {}
            _ => draft.note(
                "/spec",
                &format!("{path}: {} {action}", events.join(", ")),
                "not converted. Failures restart all members, a workload is complete when its groups have succeeded; see spec.failurePolicy and spec.successPolicy.",
            ),
        }
    }
    Ok(())
}

fn add_volumes(draft: &mut Draft, spec: &Value) -> Result<()> {
    for (n, (path, volume)) in list(spec, "spec", "volumes")?.into_iter().enumerate() {
        let (Some(mount_path), Some(claim)) =
            (text(volume, "mountPath"), text(volume, "volumeClaimName"))
        else {
            if volume["volumeClaim"].is_null() {
                draft.note(
                    "/spec/groups",
                    &path,
                    "not converted. It needs mountPath and volumeClaimName.",
                );
            }
            continue;
        };
        let volume =
            json!({"name": format!("volume-{n}"), "persistentVolumeClaim": {"claimName": claim}});
        for group in draft.groups_mut()? {
            mount(&mut group["template"], &volume, mount_path);
        }
    }
    Ok(())
}

/// Value of a plugin's argument `--NAME=VALUE`.
fn argument<'v>(plugin: &'v Value, name: &str) -> Option<&'v str> {
    let arguments = plugin.as_array()?.iter().filter_map(Value::as_str);
    let mut values = arguments.filter_map(|a| {
        let (key, value) = a.trim_start_matches('-').split_once('=')?;
        (key == name).then_some(value)
    });
    values.next()
}

fn add_plugins(draft: &mut Draft, plugins: &Value) -> Result<()> {
    let has = |name: &str| !plugins[name].is_null();
    if has("env") {
        let index = "$(LOCKSTEP_REPLICA)".to_owned();
        add_to_all(
            draft,
            &[("VC_TASK_INDEX", index.clone()), ("VK_TASK_INDEX", index)],
        )?;
    }
    rename(draft, &roles(draft), false)?;
    let uses_svc = |group: &Value| {
        let template = group["template"].to_string();
        template.contains(FOLDER) || template.contains("VC_")
    };
    let brings_svc = INCLUDE_SVC.iter().any(|name| has(name));
    if has("svc") || (brings_svc && draft.groups().iter().any(uses_svc)) {
        add_hosts(draft)?;
    }
    if has("pytorch") {
        draft.set("/spec/network/world", json!("Workload"));
        if let Some(port) =
            argument(&plugins["pytorch"], "port").and_then(|p| p.parse::<i64>().ok())
        {
            draft.set("/spec/network/port", json!(port));
        }
        add_ranks(draft, 1)?;
    }
    if has("tensorflow") {
        let port = argument(&plugins["tensorflow"], "port").and_then(|p| p.parse().ok());
        add_tf_config(draft, port.unwrap_or(2222))?;
    }
    if has("mpi") {
        let word = |name, default: &str| {
            argument(&plugins["mpi"], name)
                .unwrap_or(default)
                .to_owned()
        };
        let succeeds = draft.workload.pointer("/spec/successPolicy").cloned();
        mpi::connect(
            draft,
            &Mpi {
                launcher: word("master", "master"),
                workers: vec![word("worker", "worker")],
                slots: 1,
                implementation: "OpenMPI".to_owned(),
                keys: "/root/.ssh".to_owned(),
            },
        )?;
        if let Some(succeeds) = succeeds {
            draft.set("/spec/successPolicy", succeeds);
        }
    } else if has("ssh") {
        draft.note("/spec", "spec.plugins.ssh", "not converted. Create a Secret with SSH keys and mount it at /root/.ssh of the templates.");
    }
    Ok(())
}

fn add_hosts(draft: &mut Draft) -> Result<()> {
    let mut variables = Vec::new();
    let mut files = Vec::new();
    for group in draft.groups() {
        let name = group["name"].as_str().unwrap_or_default();
        let hosts = hosts(draft, group);
        files.push((format!("{name}.host"), hosts.join("\n")));
        let name = name.to_uppercase().replace('-', "_");
        variables.push((format!("VC_{name}_HOSTS"), hosts.join(",")));
        variables.push((format!("VC_{name}_NUM"), hosts.len().to_string()));
    }
    let variables: Vec<(&str, String)> = variables
        .iter()
        .map(|(n, v)| (n.as_str(), v.clone()))
        .collect();
    add_to_all(draft, &variables)?;
    for group in draft.groups_mut()? {
        let template = &mut group["template"];
        if !template.to_string().contains(FOLDER) {
            continue;
        }
        show_files(template, "volcano-hosts", "volcano-", &files);
        for list in ["/spec/initContainers", "/spec/containers"] {
            let found = template.pointer_mut(list).and_then(Value::as_array_mut);
            for container in found.into_iter().flatten() {
                let mount = json!({"name": "volcano-hosts", "mountPath": FOLDER});
                append(container, "volumeMounts", mount);
            }
        }
    }
    Ok(())
}
