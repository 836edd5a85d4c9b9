//! JobSet.

use serde_json::{Value, json};

use crate::draft::{Draft, child, int, list, text, trivial};
use crate::error::{ConvertError, Result};
use crate::field::{Field, FieldsAt, copied, mapped, noted, omitted, part};
use crate::job::{self, BACKOFF_LIMIT, DISRUPTED, JOB_SPEC, Reaction};
use crate::kubeflow::OBJECT;
use crate::template::{self, add_variables, training_container};

/// Restart strategy by an agent of JobSet in each pod.
const IN_PLACE: &str = "InPlaceRestart";
/// Name of this agent, as a container and in its image.
const AGENT: &str = "in-place-restart-agent";
/// Variable with the command that the agent starts if it is the main container.
const WORKER_COMMAND: &str = "WORKER_COMMAND";
/// Reason of a Job that a rule of its pod failure policy has failed.
const BY_RULE: &str = "PodFailurePolicy";
/// Reason of a Job with more failed pods than its limit.
const BY_LIMIT: &str = "BackoffLimitExceeded";
/// Annotation for exclusive placement.
const EXCLUSIVE: &str = "alpha.jobset.sigs.k8s.io/exclusive-topology";

const NO_JOBS: &str = "rule not converted. Lockstep sees failures of pods, not of Jobs: match exit codes, reasons or pod conditions in spec.failurePolicy.rules.";

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
    mapped(
        "failurePolicy.restartStrategy",
        "Lockstep restarts in place, and recreates pods if that is impossible. JobSet's agent for InPlaceRestart and its `restartPolicyRules` are left out, with a comment",
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
    mapped(
        "failurePolicy.rules[].onJobFailureReasons",
        "PodFailurePolicy: the action of the rules with FailJob of these Jobs. BackoffLimitExceeded: a rule for all other failures. Other reasons give a comment",
    ),
    noted(
        "failurePolicy.rules[].onJobFailureMessagePatterns",
        "/spec/failurePolicy",
        NO_JOBS,
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
    if draft.origin["spec"]["failurePolicy"].is_null() {
        draft.note(
            "/spec",
            "spec.failurePolicy: absent",
            "a JobSet fails when one of its Jobs fails; a workload restarts all members, at most 10 times a day. spec.failurePolicy.limits.maxRestarts: 0 fails at the first failure.",
        );
    }
    place_exclusively(draft, "metadata.annotations", &annotations);
    if let Some(kept) = draft.workload.pointer_mut("/metadata/annotations") {
        let annotations = kept.as_object_mut();
        annotations.map(|a| a.remove(EXCLUSIVE));
    }
    Ok(())
}

/// Converts the spec of a JobSet, which is at `base` of the origin.
pub fn convert_spec(draft: &mut Draft, base: &str) -> Result<()> {
    let spec = child(&draft.origin, base).cloned().unwrap_or_default();
    let jobs = list(&spec, base, "replicatedJobs")?;
    if jobs.is_empty() {
        return Err(ConvertError::missing(format!("{base}.replicatedJobs")));
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
        let name = add_group(draft, base, path, replicated, &depends)?;
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
    base: &str,
    path: &str,
    replicated: &Value,
    depends: &[Value],
) -> Result<String> {
    let Some(name) = text(replicated, "name") else {
        return Err(ConvertError::missing(format!("{path}.name")));
    };
    let replicas = int(replicated, path, "replicas")?.unwrap_or(1);
    let job = &replicated["template"]["spec"];
    let shown = format!("{path}.template.spec");
    let size = job::members(job, &shown)?;
    let at = format!("/spec/groups/{}", draft.groups().len());
    let source = format!("{shown}.template");
    let mut pods = job["template"].clone();
    if child(&draft.origin, base).is_some_and(|s| s["failurePolicy"]["restartStrategy"] == IN_PLACE)
    {
        remove_agent(draft, &mut pods, &source, &at);
    }
    let mut template = template::convert(draft, &pods, &source, &at, "")?;
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
    let (failed, scope) = reaction(draft, base, name)?;
    let rules = draft.rules();
    job::add_rules(draft, job, &shown, Some(name), failed)?;
    if draft.rules() > rules {
        restrict(draft, scope, &format!("{shown}.podFailurePolicy"));
    }
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
        if !trivial(&rule["onJobFailureMessagePatterns"]) {
            continue;
        }
        let reasons: Vec<&str> = strings(&rule["onJobFailureReasons"]).collect();
        let others: Vec<&str> = reasons
            .iter()
            .filter(|r| ![BY_RULE, BY_LIMIT].contains(r))
            .copied()
            .collect();
        if !others.is_empty() {
            let path = format!("{path}.onJobFailureReasons: {}", others.join(", "));
            draft.note("/spec/failurePolicy", &path, NO_JOBS);
        }
        if reasons.is_empty() || reasons.contains(&BY_LIMIT) {
            add_rule(draft, spec, &path, rule, n);
        }
    }
    Ok(())
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Value::as_str)
}

/// True if a rule is about the Job of this name.
fn targets(rule: &Value, job: &str) -> bool {
    let mut targets = strings(&rule["targetReplicatedJobs"]).peekable();
    targets.peek().is_none() || targets.any(|name| name == job)
}

/// Reaction of a rule, and the scope of its restarts.
fn reaction_of(rule: &Value) -> (Reaction, Option<&'static str>) {
    let action = text(rule, "action").unwrap_or_default();
    let counted = !action.ends_with("AndIgnoreMaxRestarts");
    match action.trim_end_matches("AndIgnoreMaxRestarts") {
        "FailJobSet" => (Reaction::FAIL, None),
        "RestartJob" => (Reaction::new("RestartGang", counted), Some("Replica")),
        _ => (Reaction::new("RestartGang", counted), None),
    }
}

/// What the policy of the JobSet does when a rule of this Job's pod failure policy has failed it.
fn reaction(draft: &Draft, base: &str, job: &str) -> Result<(Reaction, Option<&'static str>)> {
    let spec = child(&draft.origin, base).cloned().unwrap_or_default();
    let rules = list(&spec, base, "failurePolicy.rules")?;
    let found = rules.iter().map(|(_, rule)| *rule).find(|rule| {
        let mut reasons = strings(&rule["onJobFailureReasons"]).peekable();
        let by_rule = reasons.peek().is_none() || reasons.any(|reason| reason == BY_RULE);
        by_rule && targets(rule, job) && trivial(&rule["onJobFailureMessagePatterns"])
    });
    let restarts = int(&spec, base, "failurePolicy.maxRestarts")?.unwrap_or(0);
    Ok(match found {
        Some(rule) => reaction_of(rule),
        None if restarts > 0 => (Reaction::RESTART, None),
        None => (Reaction::FAIL, None),
    })
}

fn add_rule(draft: &mut Draft, spec: &Value, path: &str, rule: &Value, n: usize) {
    let written = text(rule, "name").map(str::to_lowercase);
    let name = written
        .unwrap_or_else(|| format!("rule-{n}"))
        .replace(['_', ',', ':'], "-")
        .trim_matches('-')
        .to_owned();
    let (reaction, scope) = reaction_of(rule);
    let rules = "/spec/failurePolicy/rules";
    let tolerant = tolerant_jobs(spec, rule);
    if reaction == Reaction::FAIL && !tolerant.is_empty() {
        let matches = json!({"groups": tolerant, "podConditions": [{"type": DISRUPTED}]});
        let kept = Reaction::new("RestartGang", false);
        let at = draft.push(rules, kept.rule(&format!("{name}-disruptions"), matches));
        let text = "the backoffLimit of these Jobs tolerates evictions, so that they do not fail the workload.";
        draft.note(&at, path, text);
    }
    let groups = rule["targetReplicatedJobs"].as_array();
    let matches = groups.map_or_else(|| json!({}), |groups| json!({"groups": groups}));
    let at = draft.push(rules, reaction.rule(&name, matches));
    if reaction == Reaction::FAIL && tolerant.is_empty() {
        let text = "an eviction, such as that of a drain, fails the workload, too. A rule for pod condition DisruptionTarget before this one would restart the members.";
        draft.note(&at, path, text);
    }
    let action = text(rule, "action").unwrap_or_default();
    restrict(draft, scope, &format!("{path}.action: {action}"));
}

fn restrict(draft: &mut Draft, scope: Option<&str>, path: &str) {
    if let Some(scope) = scope {
        let field = "/spec/failurePolicy/restartScope";
        draft.set(field, json!(scope));
        draft.note(field, path, "the members of one replica restart together after every failure, not only after those of this rule.");
    }
}

/// Jobs of a rule that replace an evicted pod without failing.
fn tolerant_jobs<'s>(spec: &'s Value, rule: &Value) -> Vec<&'s str> {
    let jobs = spec["replicatedJobs"].as_array().into_iter().flatten();
    let tolerant = jobs.filter(|replicated| {
        let limit = replicated["template"]["spec"]["backoffLimit"].as_i64();
        limit.unwrap_or(BACKOFF_LIMIT) > 0
    });
    let names = tolerant.filter_map(|replicated| text(replicated, "name"));
    names.filter(|name| targets(rule, name)).collect()
}

/// Removes JobSet's agent from a pod template, which would wait for a JobSet, and its rules.
fn remove_agent(draft: &mut Draft, template: &mut Value, path: &str, at: &str) {
    let at = format!("{at}/template");
    let is_agent = |c: &Value| {
        let image = text(c, "image").unwrap_or_default();
        c["name"] == AGENT || image.contains(AGENT)
    };
    let inits = template.pointer_mut("/spec/initContainers");
    if let Some(inits) = inits.and_then(Value::as_array_mut)
        && inits.iter().any(is_agent)
    {
        inits.retain(|container| !is_agent(container));
        let text = "left out. Lockstep restarts in place without an agent in the pod.";
        draft.note(&at, &format!("{path}.spec.initContainers, {AGENT}"), text);
    }
    let containers = template
        .pointer_mut("/spec/containers")
        .and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        let name = text(container, "name").unwrap_or_default().to_owned();
        let shown = format!("{path}.spec.containers, {name}");
        let variables = container["env"].as_array();
        if variables.is_some_and(|env| env.iter().any(|v| v["name"] == WORKER_COMMAND)) {
            let text = "JobSet's agent starts this command. Write it as the command of the container, with the image of the training.";
            draft.note(&at, &format!("{shown}, env {WORKER_COMMAND}"), text);
        }
        if container["restartPolicyRules"].is_array()
            && let Some(fields) = container.as_object_mut()
        {
            fields.remove("restartPolicyRules");
            fields.remove("restartPolicy");
            let text = "left out. They would restart this member alone.";
            draft.note(&at, &format!("{shown}.restartPolicyRules"), text);
        }
    }
}
