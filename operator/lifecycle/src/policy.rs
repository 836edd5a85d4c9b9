//! The failure policy, as far as both the compiled restart rules and the manager's own decisions read it.

use lockstep_api::workload::{ExitCodeOperator, ExitCodes, FailureAction, SchedulingPolicy};

/// Whether an exit code is in the set.
pub(crate) fn code_matches(codes: &ExitCodes, code: i32) -> bool {
    match codes.operator {
        ExitCodeOperator::In => codes.values.contains(&code),
        ExitCodeOperator::NotIn => !codes.values.contains(&code),
    }
}

/// The action for failures that no rule matches.
pub(crate) fn default_action(policy: SchedulingPolicy) -> FailureAction {
    match policy {
        SchedulingPolicy::Gang => FailureAction::RestartGang,
        SchedulingPolicy::Basic => FailureAction::RestartContainer,
    }
}
