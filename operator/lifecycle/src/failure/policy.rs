//! The failure policy: the response to the failures of one domain.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::ids::{NodeName, Uid};
use lockstep_api::member::Member;
use lockstep_api::names::SUPERVISOR_PROGRAM;
use lockstep_api::workload::{
    ActionScope, Cause, CauseKind, ExitCodes, FailedMember, FailureAction, FailureRule,
    PodConditionMatch, TrainingWorkloadSpec,
};

use crate::facts::Facts;
use crate::ledger::Avoidance;
use crate::objects::training::{has_one_container, restart_by_rule, training_container};
use lockstep_api::tier::Tier;

/// Longest plausible delay of a failure report. An earlier time indicates a wrong clock.
const REPORT_DELAY: TimeDelta = TimeDelta::minutes(1);

/// What the exit of a container or pod affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureImpact {
    /// The training container has exited, directly or indirectly.
    TrainingContainer,
    /// Only the member: the other members suffice.
    Member,
    /// Only this container, and only if a rule names it.
    Container,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub member: Member,
    /// `None` if the pod is gone.
    pub pod_uid: Option<Uid>,
    pub cause: Cause,
    pub usable: bool,
    /// True if the exit code hides the real one, because the kubelet killed all containers of the
    /// pod.
    pub masked: bool,
    /// True for an eviction, drain or node shutdown, which uses no budget.
    pub uncounted: bool,
    /// Time until which pod status can attribute the exit to an eviction or node shutdown. `None`:
    /// it has, or the exit does not look like a kill.
    pub confirmed_by: Option<DateTime<Utc>>,
    pub impact: FailureImpact,
    pub conditions: Vec<(String, String)>,
}

impl Failure {
    pub fn is_loss(&self) -> bool {
        let program = self.cause.exit_code.is_some() || self.cause.kind == CauseKind::Hang;
        !self.usable && !program
    }

    pub fn restarted_pod(&self, training: &str) -> bool {
        self.usable
            && self.impact == FailureImpact::TrainingContainer
            && self.cause.exit_code.is_some()
            && self.cause.container != training
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PolicyVerdict<'a> {
    pub rule: Option<&'a FailureRule>,
    pub action: FailureAction,
    pub failed_member: FailedMember,
    pub counted: bool,
}

impl PolicyVerdict<'_> {
    pub fn rule_name(&self) -> String {
        self.rule.map(|r| r.name.clone()).unwrap_or_default()
    }
}

/// The first matching rule, else the default.
pub(crate) fn verdict<'a>(spec: &'a TrainingWorkloadSpec, failure: &Failure) -> PolicyVerdict<'a> {
    let rule = spec
        .failure_policy
        .rules
        .iter()
        .find(|r| matches(r, failure));
    let general = match failure.impact {
        FailureImpact::Member => FailureAction::RestartPod,
        FailureImpact::TrainingContainer | FailureImpact::Container => {
            FailureAction::default_for(spec.scheduling.policy)
        }
    };
    let default = users_rule(spec, failure).unwrap_or(general);
    PolicyVerdict {
        rule,
        action: rule.map_or(default, |r| r.action),
        failed_member: rule.map_or(FailedMember::InPlace, |r| r.failed_member),
        counted: rule.is_none_or(|r| r.counted) && !failure.uncounted,
    }
}

/// The rule for moves of this group away from nodes with signals. A rule matches only if it names the
/// reason.
pub(crate) fn move_rule<'a>(
    spec: &'a TrainingWorkloadSpec,
    kind: CauseKind,
    group: &str,
) -> Option<&'a FailureRule> {
    let mut rules = spec.failure_policy.rules.iter();
    rules.find(|r| {
        let reasons = &r.matches.reasons;
        r.matches.names_group(group) && reasons.iter().any(|reason| reason == kind.as_str())
    })
}

/// The kubelet's action by the user's own restart rules, which restart the training container alone
/// (KEP-5307).
fn users_rule(spec: &TrainingWorkloadSpec, failure: &Failure) -> Option<FailureAction> {
    let code = failure.cause.exit_code.filter(|_| !failure.masked)?;
    let mut groups = spec.groups.iter();
    let template = &groups.find(|g| g.name == failure.member.group)?.template.0;
    let training = training_container(template)?;
    (failure.cause.container == training).then_some(())?;
    restart_by_rule(template, training, code)
}

fn matches(rule: &FailureRule, failure: &Failure) -> bool {
    let m = &rule.matches;
    let cause = &failure.cause;
    m.names_group(&failure.member.group)
        && m.names_container(&cause.container)
        && !(failure.impact == FailureImpact::Container && m.containers.is_empty())
        && (m.names_reason(&cause.reason) || m.names_reason(cause.kind.as_str()))
        && m.exit_codes
            .as_ref()
            .is_none_or(|codes| matches_exit(codes, failure))
        && m.pod_conditions.iter().all(|c| has_condition(failure, c))
}

fn matches_exit(codes: &ExitCodes, failure: &Failure) -> bool {
    !failure.masked && failure.cause.exit_code.is_some_and(|c| codes.contains(c))
}

fn has_condition(failure: &Failure, expected: &PodConditionMatch) -> bool {
    let mut conditions = failure.conditions.iter();
    conditions.any(|(type_, status)| *type_ == expected.type_ && *status == expected.status)
}

pub(crate) struct Response {
    pub action: FailureAction,
    pub cause: Cause,
    pub counted: bool,
    pub failed: Option<Member>,
    /// Members whose pods cannot continue.
    pub replace: BTreeSet<Member>,
    pub avoid: Vec<(NodeName, Avoidance)>,
}

/// `None` if no action is needed: the kubelet restarts the container, or the policy says Ignore.
pub(crate) fn respond(facts: &Facts<'_>, failures: &[Failure]) -> Option<Response> {
    let spec = facts.spec();
    let mut evaluated: Vec<(&Failure, PolicyVerdict<'_>)> = failures
        .iter()
        .filter(|f| !is_left_to_kubelet(facts, f))
        .map(|f| (f, verdict(spec, f)))
        .collect();
    evaluated.sort_by_cached_key(|(f, _)| {
        let began = began(facts, &f.cause, facts.now, facts.now);
        // A hang causes failures of peers, but no failure causes a hang.
        let follows = f.cause.kind != CauseKind::Hang;
        (began, follows, f.cause.time, f.member.clone())
    });
    let (first, by) = evaluated.first()?;
    let mut response = Response {
        action: FailureAction::RestartContainer,
        cause: Cause {
            rule: by.rule_name(),
            ..first.cause.clone()
        },
        // Later failures can be consequences of the first.
        counted: by.counted,
        failed: Some(first.member.clone()),
        replace: BTreeSet::new(),
        avoid: Vec::new(),
    };
    for (f, v) in &evaluated {
        response.action = response.action.or_more_severe(v.action);
        if !f.usable || v.failed_member != FailedMember::InPlace || v.action.affects_single_pod() {
            response.replace.insert(f.member.clone());
        }
        response.avoid.extend(avoided(facts, f, v));
    }
    if response.action.ends_workload() {
        // The failure that ends the workload is the cause, even if another was first.
        if let Some((f, v)) = evaluated.iter().find(|(_, v)| v.action.ends_workload()) {
            response.cause = Cause {
                rule: v.rule_name(),
                ..f.cause.clone()
            };
        }
    }
    // No restart rule covers a single pod.
    response.action = response.action.or_more_severe(FailureAction::RestartPod);
    Some(response)
}

/// When a failure began, to order failures. Because node clocks can be wrong, the time is limited
/// to its receipt (`received`), and to [`REPORT_DELAY`] before `detected`, the detection of the
/// first failure. A hang began one progress timeout earlier, before the resulting failures of
/// peers.
pub(super) fn began(
    facts: &Facts<'_>,
    cause: &Cause,
    detected: DateTime<Utc>,
    received: DateTime<Utc>,
) -> DateTime<Utc> {
    let limited = cause.time.max(detected - REPORT_DELAY).min(received);
    let limits = facts.spec().failure_policy.progress;
    match limits.filter(|_| cause.kind == CauseKind::Hang) {
        Some(limits) => limited - TimeDelta::seconds(limits.timeout_seconds),
        None => limited,
    }
}

/// True if the policy says Ignore, or the kubelet restarts the container by its own rule.
pub(crate) fn is_left_to_kubelet(facts: &Facts<'_>, failure: &Failure) -> bool {
    let action = verdict(facts.spec(), failure).action;
    action.leaves_container()
        || action.affects_single_pod() && failure.usable && kubelet_restarts(facts, failure, action)
}

/// True if the pod's own restart rules execute the action, so that the restart is only counted.
fn kubelet_restarts(facts: &Facts<'_>, failure: &Failure, action: FailureAction) -> bool {
    let pod = facts
        .pods_of(&failure.member)
        .iter()
        .find(|p| Some(&p.uid) == failure.pod_uid.as_ref())
        .copied();
    match action.scope() {
        ActionScope::None | ActionScope::Container => true,
        // Only the training container has rules of the failure policy.
        ActionScope::Pod if failure.impact == FailureImpact::Container => false,
        ActionScope::Pod if failure.restarted_pod(facts.training(&failure.member.group)) => true,
        ActionScope::Pod | ActionScope::Domain | ActionScope::Workload => {
            // The rule covers the whole pod only without init containers and sidecars.
            let alone = pod.is_none_or(|p| {
                let names = p.containers.iter().map(|(name, _)| name);
                names.filter(|n| *n != SUPERVISOR_PROGRAM).count() <= 1
            });
            // For a template with one container, the rule restarts that container alone, also if
            // admission has added containers.
            let template = facts.template(&failure.member.group);
            let single = template
                .and_then(|t| t.spec.as_ref())
                .is_some_and(has_one_container);
            let tier = pod.and_then(|p| p.identity.tier);
            alone || !single && tier.is_some_and(Tier::restarts_whole_pod)
        }
    }
}

/// True for the exit of an init container that judges its node: a rule replaces the member elsewhere,
/// uncounted.
pub(crate) fn judges_node(facts: &Facts<'_>, failure: &Failure) -> bool {
    let verdict = verdict(facts.spec(), failure);
    let template = facts.template(&failure.member.group);
    let spec = template.and_then(|t| t.spec.as_ref());
    let mut inits = spec
        .into_iter()
        .flat_map(|s| s.init_containers.iter().flatten());
    verdict
        .rule
        .is_some_and(|r| !r.matches.containers.is_empty() && !r.counted)
        && verdict.failed_member == FailedMember::ReplaceElsewhere
        && inits.any(|c| c.name == failure.cause.container)
}

fn avoided(
    facts: &Facts<'_>,
    failure: &Failure,
    verdict: &PolicyVerdict<'_>,
) -> Option<(NodeName, Avoidance)> {
    // A lost node needs no avoidance.
    let rule = verdict.rule?;
    if verdict.failed_member != FailedMember::ReplaceElsewhere {
        return None;
    }
    let until = facts.now + TimeDelta::seconds(rule.avoid_seconds);
    let judged = judges_node(facts, failure);
    let avoidance = Avoidance {
        exit_code: failure.cause.exit_code.filter(|_| judged),
        ..Avoidance::new(reasons::FAILED_MEMBER, until)
    };
    Some((NodeName::read(Some(&failure.cause.node))?, avoidance))
}
