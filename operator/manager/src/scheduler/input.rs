use std::sync::Arc;

use lockstep_scheduler::SchedulingInput;

use crate::index::State;

pub(crate) fn scheduling_input(state: &State) -> SchedulingInput {
    SchedulingInput {
        cluster: state.model.snapshot(),
        gangs: state.gang_inputs.values().cloned().collect(),
        budgets: state.budgets.values().cloned().collect(),
        quotas: state.quotas.values().cloned().collect(),
        weights: Arc::clone(&state.weights),
    }
}
