//! JobSet.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::draft::{Draft, int, list, text};
use super::field::{Field, FieldsAt, copied, mapped, noted, omitted, part};
use super::job::{self, JOB_SPEC};
use super::kubeflow::OBJECT;
use super::template::{self, add_variables, training_container};

/// Annotation for exclusive placement.
const EXCLUSIVE: &str = "alpha.jobset.sigs.k8s.io/exclusive-topology";

/// Fields of a JobSet's spec that mean the same in the template of a runtime.
pub const JOBSET_SPEC: &[Field] = &[
    mapped(
        "network.enableDNSHostnames",
        "hostnames are always set; false gives a comment",
    ),
    copied("network.subdomain", "/spec/network/subdomain"),
    copied(
        "network.publishNotReadyAddresses",
        "/spec/network/publishNotReadyAddresses",
    ),
    copied("successPolicy.operator", "/spec/successPolicy/operator"),
    copied(
        "successPolicy.targetReplicatedJobs",
        "/spec/successPolicy/groups",
    ),
    mapped(
        "failurePolicy.maxRestarts",
        "`spec.failurePolicy.limits`, at most 100",
    ),
    omitted(
        "failurePolicy.restartStrategy",
        "Lockstep restarts in place, and recreates pods if that is impossible",
    ),
    mapped(
        "failurePolicy.rules[].name",
        "name of the rule, as a DNS label",
    ),
    mapped(
        "failurePolicy.rules[].action",
        "FailJobSet: FailWorkload. RestartJobSet: RestartGang. RestartJob: RestartGang with `restartScope: Replica`. `...AndIgnoreMaxRestarts`: uncounted",
    ),
    mapped(
        "failurePolicy.rules[].targetReplicatedJobs",
        "`match.groups`",
    ),
    noted(
        "failurePolicy.rules[].onJobFailureReasons",
        "/spec/failurePolicy",
        "rule not converted. Lockstep sees failures of pods, not of Jobs: match exit codes, reasons or pod conditions in spec.failurePolicy.rules.",
    ),
    noted(
        "failurePolicy.rules[].onJobFailureMessagePatterns",
        "/spec/failurePolicy",
        "rule not converted. Lockstep sees failures of pods, not of Jobs: match exit codes, reasons or pod conditions in spec.failurePolicy.rules.",
    ),
    mapped(
        "startupPolicy.startupPolicyOrder",
        "InOrder: each group depends on the group before it, with `gang.scope: Group`",
    ),
    copied("suspend", "/spec/suspend"),
    mapped(
        "coordinator.replicatedJob",
        "`spec.network.coordinator.group`",
    ),
    mapped("coordinator.jobIndex", "`spec.network.coordinator.replica`"),
    mapped("coordinator.podIndex", "`spec.network.coordinator.index`"),
    noted(
        "managedBy",
        "/spec",
        "not converted. Set spec.managedBy only for another controller of TrainingWorkloads.",
    ),
    copied("ttlSecondsAfterFinished", "/spec/ttlSecondsAfterFinished"),
    noted(
        "volumeClaimPolicies",
        "/spec/groups",
        "not converted. Create the claims yourself, and name them under volumes of the template.",
    ),
];

/// Fields of a replicated Job.
pub const REPLICATED_JOB: &[Field] = &[
    mapped("name", "`spec.groups[].name`"),
    mapped("replicas", "`spec.groups[].replicas`"),
    omitted("groupName", "labels of the JobSet controller"),
    mapped(
        "dependsOn[].name",
        "`dependsOn[].group`, with `gang.scope: Group`",
    ),
    mapped(
        "dependsOn[].status",
        "`dependsOn[].condition`: Complete becomes Succeeded",
    ),
    omitted(
        "template.metadata.labels",
        "labels of the Job; those of its pods are kept",
    ),
    mapped(
        "template.metadata.annotations",
        "exclusive placement becomes `spec.scheduling.topology`; other annotations belong to the Job",
    ),
    omitted("template.metadata.**", "names of Jobs are generated"),
];

/// Fields of the Job in a replicated Job that do not mean the same as in a Job.
pub const CHILD_JOB: &[Field] = &[
    omitted(
        "backoffLimit",
        "a failure of a member restarts all members, and `spec.failurePolicy.limits` counts these restarts",
    ),
    noted(
        "activeDeadlineSeconds",
        "",
        "not converted. spec.activeDeadlineSeconds limits the whole workload.",
    ),
    omitted(
        "ttlSecondsAfterFinished",
        "pods are deleted with the workload",
    ),
    omitted("suspend", "set by the JobSet controller"),
    omitted("managedBy", "set by the JobSet controller"),
];

pub const TABLE: &[FieldsAt] = &[
    part(
        "spec.replicatedJobs[].template.spec.template",
        template::FIELDS,
    ),
    part("spec.replicatedJobs[].template.spec", CHILD_JOB),
    part("spec.replicatedJobs[].template.spec", JOB_SPEC),
    part("spec.replicatedJobs[]", REPLICATED_JOB),
    part("spec", JOBSET_SPEC),
    part("", OBJECT),
];

pub fn convert(draft: &mut Draft) -> Result<()> {
    let annotations = draft.origin["metadata"]["annotations"].clone();
    convert_spec(draft, "spec")?;
    place_exclusively(draft, "metadata.annotations", &annotations);
    if let Some(kept) = draft.workload.pointer_mut("/metadata/annotations") {
        let annotations = kept.as_object_mut();
        annotations.map(|a| a.remove(EXCLUSIVE));
    }
    Ok(())
}

/// Converts the spec of a JobSet, which is at `base` of the origin.
pub fn convert_spec(draft: &mut Draft, base: &str) -> Result<()> {
    let spec = super::draft::child(&draft.origin, base)
        .cloned()
        .unwrap_or_default();
    let jobs = list(&spec, base, "replicatedJobs")?;
    if jobs.is_empty() {
        bail!("{base}.replicatedJobs: missing");
    }
    // Before the groups: hostnames contain the subdomain.
    if let Some(subdomain) = text(&spec, "network.subdomain") {
        draft.set("/spec/network/subdomain", json!(subdomain));
    }
    if spec["network"]["enableDNSHostnames"] == false {
        draft.note(
            "/spec",
            &format!("{base}.network.enableDNSHostnames: false"),
            "not converted. Members always have hostnames.",
        );
    }
    let in_order = text(&spec, "startupPolicy.startupPolicyOrder") == Some("InOrder");
    let mut previous: Option<String> = None;
    for (path, replicated) in &jobs {
        let mut depends: Vec<Value> = Vec::new();
        for (_, dependency) in list(replicated, path, "dependsOn")? {
            depends.push(dependency_on(
                text(dependency, "name").unwrap_or_default(),
                text(dependency, "status"),
            ));
        }
        if let Some(previous) = previous.filter(|_| in_order) {
            depends.push(dependency_on(&previous, None));
        }
        let name = add_group(draft, path, replicated, &depends)?;
        previous = Some(name);
    }
    add_policies(draft, &spec, base)
}

fn dependency_on(group: &str, status: Option<&str>) -> Value {
    match status {
        Some("Complete") => json!({"group": group, "condition": "Succeeded"}),
        _ => json!({"group": group}),
    }
}

fn add_group(
    draft: &mut Draft,
    path: &str,
    replicated: &Value,
    depends: &[Value],
) -> Result<String> {
    let Some(name) = text(replicated, "name") else {
        bail!("{path}.name: missing");
    };
    let replicas = int(replicated, path, "replicas")?.unwrap_or(1);
    let job = &replicated["template"]["spec"];
    let shown = format!("{path}.template.spec");
    let size = job::members(job, &shown)?;
    let at = format!("/spec/groups/{}", draft.groups().len());
    let source = format!("{shown}.template");
    let mut template = template::convert(draft, &job["template"], &source, &at, "")?;
    if replicas > 1
        && let Some(container) = training_container(&mut template)
    {
        // A Job counts its pods from 0, a group those of all replicas.
        add_variables(
            container,
            &[("JOB_COMPLETION_INDEX", "$(LOCKSTEP_INDEX)".to_owned())],
        );
    }
    let mut group = json!({"name": name, "replicas": replicas, "size": size, "template": template});
    if !depends.is_empty() {
        group["dependsOn"] = json!(depends);
        draft.set("/spec/scheduling/gang/scope", json!("Group"));
        draft.note(
            "/spec/scheduling/gang/scope",
            &format!("{path} starts after another group"),
            "each group is a gang of its own, because a gang cannot wait for itself.",
        );
    }
    draft.add_group(path, group)?;
    let annotations = &replicated["template"]["metadata"]["annotations"];
    place_exclusively(
        draft,
        &format!("{path}.template.metadata.annotations"),
        annotations,
    );
    job::add_rules(draft, job, &shown, Some(name))?;
    Ok(name.to_owned())
}

fn place_exclusively(draft: &mut Draft, path: &str, annotations: &Value) {
    if let Some(key) = annotations[EXCLUSIVE].as_str() {
        draft.set(
            "/spec/scheduling/topology",
            json!({"key": key, "scope": "Replica"}),
        );
        draft.note(
            "/spec/scheduling/topology",
            &format!("{path}[{EXCLUSIVE}]"),
            "each replica is placed in one domain. Other work may use the rest of the domain.",
        );
    }
}

fn add_policies(draft: &mut Draft, spec: &Value, base: &str) -> Result<()> {
    if let Some(group) = text(spec, "coordinator.replicatedJob") {
        let index = |field| int(spec, base, field).map(Option::unwrap_or_default);
        let coordinator = json!({"group": group, "replica": index("coordinator.jobIndex")?, "index": index("coordinator.podIndex")?});
        draft.set("/spec/network/coordinator", coordinator);
    }
    if let Some(restarts) = int(spec, base, "failurePolicy.maxRestarts")? {
        draft.limit_restarts(&format!("{base}.failurePolicy.maxRestarts"), restarts);
    }
    for (n, (path, rule)) in list(spec, base, "failurePolicy.rules")?
        .into_iter()
        .enumerate()
    {
        let by_reason = ["onJobFailureReasons", "onJobFailureMessagePatterns"];
        if by_reason.iter().any(|f| !super::draft::trivial(&rule[*f])) {
            continue;
        }
        add_rule(draft, &path, rule, n);
    }
    Ok(())
}

fn add_rule(draft: &mut Draft, path: &str, rule: &Value, n: usize) {
    let written = text(rule, "name").map(str::to_lowercase);
    let name = written
        .unwrap_or_else(|| format!("rule-{n}"))
        .replace(['_', ',', ':'], "-");
    let action = text(rule, "action").unwrap_or_default();
    let counted = !action.ends_with("AndIgnoreMaxRestarts");
    let (kind, scope) = match action.trim_end_matches("AndIgnoreMaxRestarts") {
        "FailJobSet" => ("FailWorkload", None),
        "RestartJob" => ("RestartGang", Some("Replica")),
        _ => ("RestartGang", None),
    };
    let mut out = json!({"name": name.trim_matches('-'), "action": kind});
    if let Some(groups) = rule["targetReplicatedJobs"].as_array() {
        out["match"] = json!({"groups": groups});
    }
    if !counted {
        out["counted"] = json!(false);
    }
    draft.push("/spec/failurePolicy/rules", out);
    if let Some(scope) = scope {
        let field = "/spec/failurePolicy/restartScope";
        draft.set(field, json!(scope));
        draft.note(field, &format!("{path}.action: {action}"), "the members of one replica restart together after every failure, not only after those of this rule.");
    }
}
