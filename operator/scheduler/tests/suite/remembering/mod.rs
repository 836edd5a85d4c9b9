//! The memory only saves work: in every step, a scheduler with memory decides the same as one
//! without.

mod parts;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_api::condition::Condition;
use lockstep_api::scheduling::{MoveTarget, PodGroupStatus};
use lockstep_scheduler::{
    Decision, GangState, Memory, Pending, SchedulerSettings, SchedulingCycle, StatusWrite, Step,
    schedule,
};
use world::World;

/// Settings without pacing, so that the memory can only save work.
fn settings(seed: u64) -> SchedulerSettings {
    let mut settings = SchedulerSettings {
        refused_after: Duration::ZERO,
        retry: Duration::ZERO,
        message_interval: Duration::ZERO,
        searches_per_cycle: usize::MAX,
        delete_after: seed.is_multiple_of(3).then_some(Duration::ZERO),
        // A process without memory has not seen a missed deadline itself.
        binding_deadline: Duration::from_hours(10_000),
        ..SchedulerSettings::default()
    };
    if seed.is_multiple_of(4) {
        settings.rules.min_runtime = Duration::from_mins(1);
    }
    settings
}

/// The status without messages, which may be outdated.
fn without_words(status: &PodGroupStatus) -> PodGroupStatus {
    let conditions = status.conditions.iter().map(|c| Condition {
        message: String::new(),
        ..c.clone()
    });
    let target = status.move_target.as_ref().map(|target| MoveTarget {
        message: String::new(),
        ..target.clone()
    });
    PodGroupStatus {
        conditions: conditions.collect(),
        move_target: target,
        queue: None,
        ..status.clone()
    }
}

/// Requests without messages.
fn requests(cycle: &SchedulingCycle) -> Vec<Step> {
    let steps = cycle.plan.steps.iter().filter_map(|step| match step {
        Step::Status(write) => {
            let status = without_words(&write.status);
            let changes = status != without_words(&write.read);
            changes.then(|| {
                let read = PodGroupStatus::default();
                Step::Status(Box::new(StatusWrite {
                    read,
                    status,
                    ..(**write).clone()
                }))
            })
        }
        other => Some(other.clone()),
    });
    steps.collect()
}

/// Why each gang waits, as a label.
fn waits(cycle: &SchedulingCycle) -> BTreeMap<&str, &'static str> {
    let gangs = cycle.gangs.iter();
    gangs
        .filter_map(|g| Some((g.uid(), g.pending.as_ref()?.as_str())))
        .collect()
}

/// Coverage by kind of step.
#[derive(Debug, Default)]
struct Mix {
    steps: usize,
    /// Steps with requests.
    busy: usize,
    /// Steps with waiting gangs that were all answered from memory.
    rested: usize,
    /// Of those, steps after an event.
    rested_all_the_same: usize,
    /// Steps with fewer searches than without memory.
    searches_saved: usize,
    /// Steps in which some gangs were judged, but fewer than without memory.
    looks_saved: usize,
    preemptions: usize,
}

impl Mix {
    fn count(&mut self, kept: &SchedulingCycle, fresh: &SchedulingCycle, happened: bool) {
        let unknown = |g: &GangState| matches!(g.pending, Some(Pending::Undecided { .. }));
        assert!(
            !fresh.gangs.iter().any(unknown),
            "these are searched for longer by and by"
        );
        let preempts = |g: &&GangState| matches!(g.decision, Decision::Preempts(_));
        let rested = kept.plan.evaluated == 0 && fresh.plan.evaluated > 0;
        let saved = !rested && kept.plan.searches < fresh.plan.searches;
        self.steps += 1;
        self.busy += usize::from(!requests(fresh).is_empty());
        self.rested += usize::from(rested);
        self.rested_all_the_same += usize::from(rested && happened);
        self.searches_saved += usize::from(saved);
        let looked = 1..fresh.plan.evaluated;
        self.looks_saved += usize::from(looked.contains(&kept.plan.evaluated));
        self.preemptions += fresh.gangs.iter().filter(preempts).count();
    }
}

fn play(seed: u64, steps: usize, mix: &mut Mix) {
    let mut world = World::new(seed);
    let settings = settings(seed);
    let mut memory = Memory::default();
    let mut story = Vec::new();
    for _ in 0..steps {
        let what = world.happen();
        story.push(what);
        world.later();
        // Executes the decisions. Further events happen afterwards, or in between.
        for cycle in 0..=world.dice.roll(5) {
            let (input, now) = (world.input(), world.now);
            // How long a pod has been refused is no saved work.
            let mut empty = memory.only_refusals();
            let kept = schedule(&input, &mut memory, &settings, now);
            let fresh = schedule(&input, &mut empty, &settings, now);
            let last = story.len().saturating_sub(8);
            let told = || {
                format!(
                    "seed {seed}, {} and {cycle}: {:?}",
                    story.len(),
                    &story[last..]
                )
            };
            assert_eq!(requests(&kept), requests(&fresh), "{}", told());
            assert_eq!(waits(&kept), waits(&fresh), "{}", told());
            assert_eq!(kept.queue, fresh.queue, "{}", told());
            mix.count(&kept, &fresh, cycle == 0 && what != "time passes");
            drop((input, fresh));
            world.apply(&kept.plan.steps);
        }
    }
}

/// Number of stories, unless `PROPTEST_CASES` overrides it.
fn stories() -> u64 {
    let cases = std::env::var("PROPTEST_CASES").ok();
    cases.and_then(|n| n.parse().ok()).unwrap_or(40)
}

#[test]
fn what_is_remembered_never_changes_what_is_decided() {
    let mut mix = Mix::default();
    for seed in 0..stories() {
        play(seed, 120, &mut mix);
    }
    let Mix {
        steps,
        busy,
        rested,
        rested_all_the_same,
        searches_saved,
        looks_saved,
        preemptions,
    } = mix;
    let asserted = [
        ("rested", rested, steps / 10),
        ("rested_all_the_same", rested_all_the_same, steps / 30),
        ("busy", busy, steps / 30),
        ("searches_saved", searches_saved, steps / 100),
        ("looks_saved", looks_saved, steps / 100),
        ("preemptions", preemptions, steps / 500),
    ];
    for (what, seen, least) in asserted {
        assert!(seen >= least, "{what}: {seen} of {steps}: {asserted:?}");
    }
}
