//! One scheduling cycle: stages over the gangs and a ledger of capacity, in this order.

mod budgets;
mod classes;
mod exchange;
mod intend;
mod intents;
mod judged;
mod maintain;
mod order;
mod overlap;
mod place;
mod preempt;
mod pursued;
mod queue;
mod reservation;
mod reserve;
mod round;
mod status;
mod turn;
mod unanswered;
mod victims;

use chrono::{DateTime, Utc};

use crate::capacity::Capacity;
use crate::context::{Context, Wake};
use crate::input::SchedulingInput;
use crate::memory::{Memory, REFUSAL_HOLDS};
use crate::occupancy::asked_amounts;
use crate::plan::{SchedulingCycle, SchedulingPlan};
use crate::rest::Rest;
use crate::settings::SchedulerSettings;
use crate::standing::StandingReservations;
use crate::state::GangState;

/// Runs one cycle, or returns the cached idle cycle.
pub fn schedule(
    input: &SchedulingInput,
    memory: &mut Memory,
    settings: &SchedulerSettings,
    now: DateTime<Utc>,
) -> SchedulingCycle {
    let rest = memory.rest.take();
    if let Some(cycle) = rest.as_ref().and_then(|r| r.goes_on(input, settings, now)) {
        memory.rest = rest;
        return cycle;
    }
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
        .map(|gang| {
            let gang = memory.latest(gang);
            let pods = memory.pods.of(&gang, &input.cluster);
            GangState::new(gang, pods, now)
        })
        .collect();
    let mut capacity = Capacity::new(&context);
    let mut wake = Wake::default();

    unanswered::forget_silence(&mut gangs);
    let maintained = maintain::maintain_placements(&context, memory, &mut gangs);
    wake.join(maintained.wake);
    overlap::give_up_overlaps(&context, &mut gangs);
    reserve::reserve_assigned(&context, &mut capacity, &mut gangs);
    capacity.standing = StandingReservations::read(&context, &gangs);
    intents::drop_void(&context, &mut capacity, &mut gangs);
    let pursued = intents::pursue(&context, memory, &mut capacity, &mut gangs);
    wake.join(pursued.wake);
    let queued = queue::serve(&context, memory, &mut capacity, &mut gangs, pursued.paced);
    wake.join(queued.wake);
    exchange::break_circles(&mut gangs);
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
    let cycle = SchedulingCycle {
        plan,
        gangs: gangs.into(),
        queue: queued.places.into(),
    };
    let asked = || asked_amounts(&context, &capacity, &cycle.gangs);
    memory.rest = Rest::after(&cycle, input, settings, asked, now);
    cycle
}
