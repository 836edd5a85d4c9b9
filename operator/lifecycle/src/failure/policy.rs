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
    /// Training: the training container ended, directly or indirectly.
    Training,
    /// The member. The remaining members suffice.
    Member,
    /// The container itself. Only rules that name it apply.
    Itself,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub member: Member,
    /// `None` if the pod is gone.
    pub pod_uid: Option<Uid>,
    pub cause: Cause,
    /// True if the pod can continue after a restart of its container.
    pub usable: bool,
    /// True if the exit code hides the true one, because the kubelet killed all containers of the
    /// pod.
    pub masked: bool,
    /// True for an eviction, drain or node shutdown, which uses no budget.
    pub uncounted: bool,
    /// Until when pod status may attribute the exit to an eviction or node shutdown. `None`: it
    /// has, or the exit does not look like a kill.
    pub confirmed_by: Option<DateTime<Utc>>,
    pub reach: Reach,
    /// Type and status.
    pub conditions: Vec<(String, String)>,
}

impl Failure {
    /// True if the pod is lost without a failure of its program.
    pub fn is_loss(&self) -> bool {
        let program = self.cause.exit_code.is_some() || self.cause.kind == CauseKind::Hang;
        !self.usable && !program
    }

    /// True if another container made the kubelet restart the whole pod.
    pub fn restarted_pod(&self, training: &str) -> bool {
        self.usable
            && self.reach == Reach::Training
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
    /// Empty for the default.
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

/// The kubelet's action by the user's own restart rules, which restarts the training container
/// alone (KEP-5307).
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
