//! Prints how much CPU the scheduler's cycles take over a large cluster with gangs that wait, without an
//! API server: with what changed before each, how many gangs were looked at, and beside the first, and a
//! number that is the same in two versions that request the same; then a minute of ten pod events a second,
//! and how soon a preemption is decided that becomes possible. Last, the cycles of a preemption of many
//! single pods, and those of many equal gangs.
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
    // Until all that can be known of those that wait is known.
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

/// A number for what a cycle requests and when the next one is due.
fn fingerprint(plan: &SchedulingPlan) -> u32 {
    let mut hasher = DefaultHasher::new();
    format!("{:?} {:?}", plan.steps, plan.wake_after).hash(&mut hasher);
    hasher.finish() as u32
}

/// How much CPU the cycles take in which a gang preempts many single pods: their number is what fits into one
/// object.
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

/// How much CPU the cycles take, and how many gangs they evaluate, if gangs differ only in their deadlines.
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

/// A minute of ten pod events a second with a pass after each: how much CPU the passes take, and what
/// part of a core they are.
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
