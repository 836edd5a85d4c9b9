//! One scheduling cycle: stages over the gangs and a ledger of capacity.

mod budgets;
mod checkpoints;
mod demand;
mod evict;
mod exchange;
mod idle;
mod intend;
mod intents;
mod limits;
mod maintain;
mod moves;
mod order;
mod outcome;
mod overlap;
mod place;
mod places;
mod preempt;
mod queue;
mod reservation;
mod scheduler_timeout;
mod seek;
mod state;
mod status;
mod turn;
mod unusable;
mod victims;

use chrono::{DateTime, Utc};

use self::state::Cycle;
use crate::capacity::occupancy::{requested_amounts, reserved};
use crate::capacity::reservations::standing;
use crate::context::{Context, Wake, last_choice};
use crate::input::SchedulingInput;
use crate::memory::cached_cycle::CachedCycle;
use crate::memory::{Memory, REFUSAL_HOLDS};
use crate::plan::{SchedulingCycle, SchedulingPlan};
use crate::settings::SchedulerSettings;

/// Runs one cycle, or returns the cached idle cycle.
pub fn schedule(
    input: &SchedulingInput,
    memory: &mut Memory,
    settings: &SchedulerSettings,
    now: DateTime<Utc>,
) -> SchedulingCycle {
    let cached = memory.cached_cycle.take();
    if let Some(cycle) = cached
        .as_ref()
        .and_then(|c| c.if_valid(input, settings, now))
    {
        memory.cached_cycle = cached;
        return cycle;
    }
    let context = Context {
        cluster: &input.cluster,
        budgets: &input.budgets,
        quotas: &input.quotas,
        weights: &input.weights,
        settings,
        last_choice: &last_choice(&input.cluster, settings, now),
        now,
        wake: &Wake::default(),
    };
    Cycle::new(context, &input.gangs, memory).run(input)
}

impl Cycle<'_> {
    fn run(mut self, input: &SchedulingInput) -> SchedulingCycle {
        scheduler_timeout::forget_silence(&mut self.gangs);
        self.maintain_placements();
        overlap::give_up_overlaps(&self.context, &mut self.gangs);
        self.reserve_assigned();
        self.capacity.standing = standing(&self.context, &self.gangs);
        self.drop_void_intents();
        self.pursue_intents();
        let faults = self.many_faults();
        let places = self.serve_queue(faults);
        self.note_places(&places);
        self.permit_moves();
        exchange::break_circles(&mut self.gangs);
        self.decide_demands();
        let idle = self.idle_accelerators(&places);
        let mut steps = self.status_writes();
        steps.append(&mut self.steps);

        let Context {
            settings,
            now,
            wake,
            ..
        } = self.context;
        let expired = self.context.ago(REFUSAL_HOLDS);
        self.memory.expire_dry_runs(expired);
        let evicting = &self.capacity.evicting;
        self.memory
            .retain(&self.gangs, |uid| evicting.contains(uid));
        let plan = SchedulingPlan {
            steps,
            wake_after: wake.after(now),
            queued: places.len(),
            evaluated: self.queue.evaluated,
            searches: self.queue.searches,
            many_faults: faults.is_some(),
            idle,
        };
        let cycle = SchedulingCycle {
            plan,
            gangs: self.gangs.into(),
            queue: places.into(),
        };
        let requested = || requested_amounts(&self.context, &self.capacity, &cycle.gangs);
        self.memory.cached_cycle = CachedCycle::after(&cycle, input, settings, requested, now);
        cycle
    }

    /// Reserves capacity for members of placed gangs that have no pods yet, and for their moves.
    fn reserve_assigned(&mut self) {
        for gang in &mut self.gangs {
            let without_pods = reserved(&self.context, gang);
            for waiting in &without_pods {
                let amounts = self.context.amounts(&waiting.requests);
                self.capacity.take(waiting.node, &amounts);
            }
            let assigned = gang.assigned.clone();
            gang.reserved = assigned.map(|assigned| (assigned, without_pods.into()));
        }
        for (at, gang) in self.gangs.iter().enumerate() {
            if !gang.target.is_empty() {
                self.capacity.reserve_target(&self.context, at, gang);
            }
        }
    }
}
