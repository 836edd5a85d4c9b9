//! Prints the CPU time of the scheduler's cycles for a large cluster with waiting gangs, without an API
//! server. Each row has the change before the cycle, the numbers of evaluated gangs and of searches, and a
//! fingerprint that is equal for versions with equal requests. Then follow a minute of ten pod events per
//! second, and the delay until a preemption that becomes possible is decided. The last rows are cycles of
//! a preemption of many single pods, and cycles with many equal gangs.
//!
//! `bench-passes [NODES [GANGS]]`

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use anyhow::Result;
use lockstep_bench::passes::World;
use lockstep_bench::timed_on_cpu;
use lockstep_scheduler::SchedulingPlan;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let nodes: usize = args.next().map_or(Ok(15_000), |a| a.parse())?;
    let waiting: usize = args.next().map_or(Ok(500), |a| a.parse())?;
    let mut world = World::new(nodes, waiting);
    println!(
        "| {nodes} nodes, {waiting} gangs wait | CPU | beside the first | looked at | searches | preempting | requests |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut first = None;
    let mut row = |world: &mut World, what: &str| {
        let (plan, time) = timed_on_cpu(|| world.pass());
        let first = *first.get_or_insert(time);
        let ratio = time.as_secs_f64() / first.as_secs_f64();
        println!(
            "| {what} | {time:.1?} | {ratio:.3} | {} | {} | {} | {:08x} |",
            plan.evaluated,
            plan.searches,
            world.preempting(),
            fingerprint(&plan)
        );
        world.later();
        plan
    };
    row(&mut world, "the first");
    for _ in 0..4 {
        row(&mut world, "nothing has changed");
    }
    for _ in 0..10 {
        world.pod_event();
        row(&mut world, "a pod has come or gone");
    }
    // Until all searches for waiting gangs are complete.
    while row(&mut world, "what is left to search").searches > 0 {}
    let busy = minute(&mut world);
    world.uncordon();
    let before = world.preempting();
    let (passes, decided) = timed_on_cpu(|| {
        let mut passes = 0;
        while passes == 0 || world.preempting() == before {
            row(&mut world, "64 nodes were uncordoned");
            passes += 1;
        }
        passes
    });
    for _ in 0..3 {
        row(&mut world, "the passes after that");
    }
    println!("\n{busy}");
    println!(
        "A preemption that became possible was decided in pass {passes}, after {decided:.1?}."
    );
    single_victims();
    equal_gangs();
    Ok(())
}

/// Fingerprint of a cycle's requests and of the time of the next cycle.
fn fingerprint(plan: &SchedulingPlan) -> u32 {
    let mut hasher = DefaultHasher::new();
    format!("{:?} {:?}", plan.steps, plan.wake_after).hash(&mut hasher);
    hasher.finish() as u32
}

/// CPU time of the cycles in which a gang preempts many single pods. The size of one object limits
/// their number.
fn single_victims() {
    let (mut world, pods) = World::of_single_pods(400);
    println!("\n| 400 members, {pods} single pods | CPU | requests | which |\n|---|---|---|---|");
    for what in [
        "the victims are found",
        "the pods of the gang are there: the victims are evicted",
        "the victims are still there",
    ] {
        let (plan, time) = timed_on_cpu(|| world.pass());
        let which = fingerprint(&plan);
        println!(
            "| {what} | {time:.1?} | {} | {which:08x} |",
            plan.steps.len()
        );
        world.make_pods();
        world.later();
    }
}

/// CPU time of the cycles and number of evaluated gangs, if gangs differ only in their deadlines.
fn equal_gangs() {
    let (nodes, gangs) = (200, 5_000);
    let mut world = World::of_equal_gangs(nodes, gangs);
    println!(
        "\n| {nodes} nodes, {gangs} equal gangs with deadlines | CPU | looked at | searches |\n|---|---|---|---|"
    );
    for what in [
        "the first",
        "the second",
        "a pod has come",
        "a pod has come",
    ] {
        let (plan, time) = timed_on_cpu(|| world.pass());
        println!(
            "| {what} | {time:.1?} | {} | {} |",
            plan.evaluated, plan.searches
        );
        world.later();
        world.pod_event();
    }
}

/// A minute of ten pod events per second, each followed by a cycle: CPU time of the cycles, also as
/// part of a core.
fn minute(world: &mut World) -> String {
    const PASSES: usize = 600;
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..PASSES {
        world.pod_event();
        times.push(timed_on_cpu(|| world.pass()).1);
        world.later();
    }
    let all: Duration = times.iter().sum();
    times.sort_unstable();
    let at = |part: usize| times[PASSES * part / 100 - usize::from(part == 100)];
    format!(
        "{PASSES} pod events in a minute: a pass takes {:.1?} (p50), {:.1?} (p99), {:.1?} at most; {:.1} % of a core.",
        at(50),
        at(99),
        at(100),
        all.as_secs_f64() / 60.0 * 100.0,
    )
}
