//! What the failure policy makes of a failure.

use chrono::{DateTime, Utc};
use lockstep_api::ids::Uid;
use lockstep_api::member::Member;
use lockstep_api::workload::{
    Cause, CauseKind, ExitCodes, FailedMember, FailureAction, FailureRule, PodConditionMatch,
    TrainingWorkloadSpec,
};

use crate::objects::training::{restart_by_rule, training_container};

/// What ends with a container, or with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Training: it is the training container, or its end has ended that.
    Training,
    /// The member; enough others are left that go on without it.
    Member,
    /// Nothing but itself: only rules that name it have a say.
    Itself,
}

/// One failed member.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// The member.
    pub member: Member,
    /// UID of its pod; `None` when it is gone.
    pub pod_uid: Option<Uid>,
    /// For the ledger.
    pub cause: Cause,
    /// Whether the pod can go on: its container restarts.
    pub usable: bool,
    /// Whether the exit code hides the true one: the kubelet killed the container together with the
    /// others of its pod.
    pub masked: bool,
    /// Whether the pod was told to leave, which costs no budget: eviction, drain, node shutdown.
    pub uncounted: bool,
    /// Until when pod status may yet tell that the container was killed for its node's sake, by an
    /// eviction or a shutdown; None: it has told, or the exit looks like none.
    pub confirmed_by: Option<DateTime<Utc>>,
    /// What has ended with it.
    pub reach: Reach,
    /// Conditions of the pod, type and status.
    pub conditions: Vec<(String, String)>,
}

impl Failure {
    /// Whether the member's pod is lost, and no program has failed.
    pub fn is_loss(&self) -> bool {
        let program = self.cause.exit_code.is_some() || self.cause.kind == CauseKind::Hang;
        !self.usable && !program
    }

    /// Whether a container beside the training container has made its kubelet restart all of the
    /// pod.
    pub fn restarted_pod(&self, training: &str) -> bool {
        self.usable
            && self.reach == Reach::Training
            && self.cause.exit_code.is_some()
            && self.cause.container != training
    }
}

/// What the policy says about a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PolicyVerdict<'a> {
    /// The rule that matched.
    pub rule: Option<&'a FailureRule>,
    /// What is done.
    pub action: FailureAction,
    /// What becomes of the failed pod.
    pub failed_member: FailedMember,
    /// Whether it takes a unit of the budget.
    pub counted: bool,
}

impl PolicyVerdict<'_> {
    /// Name of the rule that matched; empty: the default.
    pub fn rule_name(&self) -> String {
        self.rule.map(|r| r.name.clone()).unwrap_or_default()
    }
}

/// Asks the policy: the first matching rule, else the default.
pub(crate) fn verdict<'a>(spec: &'a TrainingWorkloadSpec, failure: &Failure) -> PolicyVerdict<'a> {
    let rule = spec
        .failure_policy
        .rules
        .iter()
        .find(|r| matches(r, failure));
    let general = match failure.reach {
        Reach::Member => FailureAction::RestartPod,
        Reach::Training | Reach::Itself => FailureAction::default_for(spec.scheduling.policy),
    };
    let default = users_rule(spec, failure).unwrap_or(general);
    PolicyVerdict {
        rule,
        action: rule.map_or(default, |r| r.action),
        failed_member: rule.map_or(FailedMember::InPlace, |r| r.failed_member),
        counted: rule.is_none_or(|r| r.counted) && !failure.uncounted,
    }
}

/// What the kubelet does by the rules that the user has written on the training container: the
/// others go on (KEP-5307).
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
        && !(failure.reach == Reach::Itself && m.containers.is_empty())
        && (m.names_reason(&cause.reason) || m.names_reason(cause.kind.as_str()))
        && m.exit_codes
            .as_ref()
            .is_none_or(|codes| matches_exit(codes, failure))
        && m.pod_conditions.iter().all(|c| has_condition(failure, c))
}

fn matches_exit(codes: &ExitCodes, failure: &Failure) -> bool {
    !failure.masked && failure.cause.exit_code.is_some_and(|c| codes.contains(c))
}

fn has_condition(failure: &Failure, wanted: &PodConditionMatch) -> bool {
    let mut conditions = failure.conditions.iter();
    conditions.any(|(type_, status)| *type_ == wanted.type_ && *status == wanted.status)
}
