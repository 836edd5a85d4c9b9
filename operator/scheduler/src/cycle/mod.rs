//! One scheduling cycle: stages over the gangs and a ledger of capacity, in this order.

mod classes;
mod intents;
mod maintain;
mod order;
mod overlap;
mod place;
mod preempt;
mod queue;
mod reservation;
mod reserve;
mod round;
mod status;
mod victims;

use chrono::{DateTime, Utc};

pub use queue::QueuePlace;

use crate::capacity::Capacity;
use crate::context::{Context, Wake};
use crate::input::SchedulingInput;
use crate::memory::{Memory, REFUSAL_HOLDS};
use crate::plan::SchedulingPlan;
use crate::settings::SchedulerSettings;
use crate::standing::StandingReservations;
use crate::state::GangState;

/// What a cycle came to.
#[derive(Clone, Debug)]
pub struct SchedulingCycle {
    /// What is to be done.
    pub plan: SchedulingPlan,
    /// All gangs as the cycle leaves them, in the order of the input.
    pub gangs: Vec<GangState>,
    /// Those that asked for capacity, in the order in which they were served.
    pub queue: Vec<QueuePlace>,
}

/// Plays one cycle.
pub fn schedule(
    input: &SchedulingInput,
    memory: &mut Memory,
    settings: &SchedulerSettings,
    now: DateTime<Utc>,
) -> SchedulingCycle {
    let context = Context {
        cluster: &input.cluster,
        budgets: &input.budgets,
        quotas: &input.quotas,
        weights: &input.weights,
        settings,
        now,
    };
    let mut gangs: Vec<GangState> = input
        .gangs
        .iter()
        .map(|gang| GangState::new(memory.latest(gang), &input.cluster, now))
        .collect();
    let mut capacity = Capacity::new(&context);
    let mut wake = Wake::default();

    let maintained = maintain::maintain_placements(&context, memory, &mut gangs);
    wake.join(maintained.wake);
    overlap::give_up_overlaps(&context, &mut gangs);
    reserve::reserve_assigned(&context, &mut capacity, &gangs);
    capacity.standing = StandingReservations::read(&context, &gangs);
    intents::drop_void(&context, &mut capacity, &mut gangs);
    let pursued = intents::pursue(&context, memory, &mut capacity, &mut gangs);
    wake.join(pursued.wake);
    let queued = queue::serve(&context, memory, &mut capacity, &mut gangs);
    wake.join(queued.wake);
    let written = status::write(&context, memory, &capacity, &mut gangs);
    wake.join(written.wake);

    memory.expire_answers(context.ago(REFUSAL_HOLDS));
    memory.retain(&gangs, &maintained.refused, |uid| {
        capacity.evicting.contains(uid)
    });
    let mut steps = written.steps;
    steps.extend(pursued.steps);
    let plan = SchedulingPlan {
        steps,
        wake_after: wake.after(now),
        queued: queued.places.len(),
        judged: queued.judged,
        searches: queued.searches,
    };
    SchedulingCycle {
        plan,
        gangs,
        queue: queued.places,
    }
}
