//! Evaluates the failure policy.

use chrono::{DateTime, Utc};
use lockstep_api::ids::Uid;
use lockstep_api::member::Member;
use lockstep_api::workload::{
    Cause, CauseKind, ExitCodes, FailedMember, FailureAction, FailureRule, PodConditionMatch,
    TrainingWorkloadSpec,
};

use crate::objects::training::{restart_by_rule, training_container};

/// What the end of a container or pod affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Training: the training container ended, directly or as a consequence.
    Training,
    /// The member. The remaining members suffice to continue.
    Member,
    /// Only the container itself. Only rules that name it apply.
    Itself,
}

/// A failure of one member.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub member: Member,
    /// UID of its pod. `None` if the pod is gone.
    pub pod_uid: Option<Uid>,
    /// Cause for the ledger.
    pub cause: Cause,
    /// True if the pod can continue, with its container restarted.
    pub usable: bool,
    /// True if the exit code hides the true one, because the kubelet killed the container together
    /// with the pod's other containers.
    pub masked: bool,
    /// True if the pod was asked to leave (eviction, drain, node shutdown), which uses no budget.
    pub uncounted: bool,
    /// Until when pod status may still attribute the exit to an eviction or node shutdown. `None`:
    /// it has done so, or the exit does not look like a kill.
    pub confirmed_by: Option<DateTime<Utc>>,
    pub reach: Reach,
    /// Type and status of the pod's conditions.
    pub conditions: Vec<(String, String)>,
}

impl Failure {
    /// True if the pod is lost without a failure of its program.
    pub fn is_loss(&self) -> bool {
        let program = self.cause.exit_code.is_some() || self.cause.kind == CauseKind::Hang;
        !self.usable && !program
    }

    /// True if another container than the training container caused the kubelet to restart the
    /// whole pod.
    pub fn restarted_pod(&self, training: &str) -> bool {
        self.usable
            && self.reach == Reach::Training
            && self.cause.exit_code.is_some()
            && self.cause.container != training
    }
}

/// Result of evaluating the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PolicyVerdict<'a> {
    pub rule: Option<&'a FailureRule>,
    pub action: FailureAction,
    /// How the failed pod is handled.
    pub failed_member: FailedMember,
    /// True if the failure uses a unit of the budget.
    pub counted: bool,
}

impl PolicyVerdict<'_> {
    /// Name of the matching rule. Empty for the default.
    pub fn rule_name(&self) -> String {
        self.rule.map(|r| r.name.clone()).unwrap_or_default()
    }
}

/// Evaluates the policy: the first matching rule, else the default.
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

/// The action of the user's own restart rules on the training container, by which the kubelet
/// restarts it while other members continue (KEP-5307).
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
