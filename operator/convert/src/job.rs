//! Indexed Job, and the parts of a Job that a JobSet has, too.

use serde_json::{Value, json};

use crate::draft::{Draft, int, list, text};
use crate::error::{ConvertError, Result};
use crate::field::{Field, FieldsAt, copied, mapped, noted, omitted, part};
use crate::hosts::{Role, rename};
use crate::kubeflow::OBJECT;
use crate::template;

/// Fields of a Job's spec that mean the same in a Job and in a JobSet.
pub const JOB_SPEC: &[Field] = &[
    mapped("parallelism", "number of members"),
    mapped(
        "completions",
        "must equal parallelism: a gang runs all members at the same time",
    ),
    mapped(
        "completionMode",
        "members have indexes; NonIndexed is refused with several members",
    ),
    mapped(
        "podFailurePolicy.rules[].action",
        "FailJob: FailWorkload, or in a JobSet the action of its failure policy. Ignore: RestartGang, uncounted. Count: RestartGang",
    ),
    mapped(
        "podFailurePolicy.rules[].onExitCodes.containerName",
        "`match.containers`",
    ),
    mapped(
        "podFailurePolicy.rules[].onExitCodes.operator",
        "`match.exitCodes.operator`",
    ),
    mapped(
        "podFailurePolicy.rules[].onExitCodes.values",
        "`match.exitCodes.values`, without 0",
    ),
    mapped(
        "podFailurePolicy.rules[].onPodConditions[].type",
        "`match.podConditions[].type`",
    ),
    mapped(
        "podFailurePolicy.rules[].onPodConditions[].status",
        "`match.podConditions[].status`",
    ),
    noted(
        "successPolicy",
        "/spec",
        "not converted. spec.successPolicy selects groups, not indexes: put the members that decide into a group of their own.",
    ),
    noted(
        "backoffLimitPerIndex",
        "/spec/failurePolicy",
        "not converted. The restart budget is that of the workload, spec.failurePolicy.limits.",
    ),
    noted(
        "maxFailedIndexes",
        "/spec/failurePolicy",
        "not converted. The restart budget is that of the workload, spec.failurePolicy.limits.",
    ),
    omitted(
        "podReplacementPolicy",
        "a replacement starts after the end of the pod it replaces",
    ),
    omitted("selector.**", "Lockstep selects its pods by owner"),
    omitted("manualSelector", "Lockstep selects its pods by owner"),
    noted(
        "scheduling",
        "/spec",
        "not converted. Members are one gang; see spec.scheduling.",
    ),
];

const FIELDS: &[Field] = &[
    mapped(
        "backoffLimit",
        "`spec.failurePolicy.limits`: restarts of the whole workload, at most 100; default 6",
    ),
    copied("activeDeadlineSeconds", "/spec/activeDeadlineSeconds"),
    copied("ttlSecondsAfterFinished", "/spec/ttlSecondsAfterFinished"),
    copied("suspend", "/spec/suspend"),
    noted(
        "managedBy",
        "/spec",
        "not converted. Set spec.managedBy only for another controller of TrainingWorkloads.",
    ),
];

pub const TABLE: &[FieldsAt] = &[
    part("spec.template", template::FIELDS),
    part("spec", FIELDS),
    part("spec", JOB_SPEC),
    part("", OBJECT),
];

/// Condition of a pod that is evicted, preempted or deleted with its node.
pub const DISRUPTED: &str = "DisruptionTarget";
/// Retries of a Job that sets no limit.
pub const BACKOFF_LIMIT: i64 = 6;

pub fn convert(draft: &mut Draft) -> Result<()> {
    let spec = draft.origin["spec"].clone();
    let members = members(&spec, "spec")?;
    let source = "spec.template";
    let template = template::convert(draft, &spec["template"], source, "/spec/groups/0", "")?;
    let group = json!({"name": "worker", "replicas": members, "template": template});
    draft.add_group("spec.template", group)?;
    let role = Role {
        prefix: format!("{}-", draft.name()),
        group: "worker".to_owned(),
        first: 0,
    };
    rename(draft, &[role], false)?;
    let limit = int(&spec, "spec", "backoffLimit")?.unwrap_or(BACKOFF_LIMIT);
    draft.limit_restarts("spec.backoffLimit", limit);
    add_rules(draft, &spec, "spec", None, Reaction::FAIL)
}

/// What a failure leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaction {
    pub action: &'static str,
    pub counted: bool,
}

impl Reaction {
    pub const FAIL: Self = Self::new("FailWorkload", true);
    pub const RESTART: Self = Self::new("RestartGang", true);

    pub const fn new(action: &'static str, counted: bool) -> Self {
        Self { action, counted }
    }

    /// A failure rule.
    pub fn rule(self, name: &str, matches: Value) -> Value {
        let mut rule = json!({"name": name, "action": self.action});
        if matches != json!({}) {
            rule["match"] = matches;
        }
        if !self.counted {
            rule["counted"] = json!(false);
        }
        rule
    }
}

/// Number of pods of a Job, all of which must run at the same time.
pub fn members(spec: &Value, shown: &str) -> Result<i64> {
    let parallelism = int(spec, shown, "parallelism")?;
    let completions = int(spec, shown, "completions")?;
    let pods = parallelism.unwrap_or(1);
    match completions {
        Some(all) if all != pods => Err(ConvertError::NotTogether {
            path: shown.to_owned(),
            completions: all,
            parallelism: pods,
        }),
        None if pods > 1 => Err(ConvertError::WorkQueue {
            path: shown.to_owned(),
            pods,
        }),
        _ => Ok(pods),
    }
}

/// Failure rules of a Job. `failed`: what its failure leads to.
pub fn add_rules(
    draft: &mut Draft,
    spec: &Value,
    shown: &str,
    group: Option<&str>,
    failed: Reaction,
) -> Result<()> {
    for (n, (path, rule)) in list(spec, shown, "podFailurePolicy.rules")?
        .into_iter()
        .enumerate()
    {
        let mut matches = json!({});
        if let Some(group) = group {
            matches["groups"] = json!([group]);
        }
        if let Some(name) = text(rule, "onExitCodes.containerName") {
            matches["containers"] = json!([name]);
        }
        if let Some(operator) = text(rule, "onExitCodes.operator") {
            let values: Vec<&Value> = rule["onExitCodes"]["values"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|v| **v != 0)
                .collect();
            matches["exitCodes"] = json!({"operator": operator, "values": values});
        }
        if let Some(conditions) = rule["onPodConditions"].as_array().filter(|c| !c.is_empty()) {
            matches["podConditions"] = json!(conditions);
        }
        let reaction = match text(rule, "action") {
            Some("FailJob") => failed,
            Some("Ignore") => Reaction::new("RestartGang", false),
            Some("Count") => Reaction::RESTART,
            other => {
                let action = other.unwrap_or_default();
                let text = "rule not converted. Failures of a member restart all members, or fail the workload.";
                draft.note(
                    "/spec/failurePolicy",
                    &format!("{path}.action: {action}"),
                    text,
                );
                continue;
            }
        };
        let prefix = group.map(|g| format!("{g}-")).unwrap_or_default();
        let disrupted = matches["podConditions"]
            .as_array()
            .is_some_and(|c| c.iter().any(|c| c["type"] == DISRUPTED));
        let at = draft.push(
            "/spec/failurePolicy/rules",
            reaction.rule(&format!("{prefix}rule-{n}"), matches),
        );
        if disrupted && reaction == Reaction::FAIL {
            draft.note(&at, &path, "an eviction, such as that of a drain, fails the workload for good. Without this rule all members restart.");
        }
    }
    Ok(())
}
