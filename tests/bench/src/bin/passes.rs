//! Prints how long the scheduler's cycles take over a large cluster with gangs that wait, without an
//! API server: with what changed before each, how many gangs were looked at, and beside the first.
//!
//! `bench-passes [NODES [GANGS]]`

use anyhow::Result;
use lockstep_bench::passes::World;
use lockstep_bench::timed;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let nodes: usize = args.next().map_or(Ok(15_000), |a| a.parse())?;
    let waiting: usize = args.next().map_or(Ok(500), |a| a.parse())?;
    let mut world = World::new(nodes, waiting);
    println!(
        "| {nodes} nodes, {waiting} gangs wait | time | beside the first | looked at | searches | preempting |"
    );
    println!("|---|---|---|---|---|---|");
    let mut first = None;
    let mut row = |world: &mut World, what: &str| {
        let (plan, time) = timed(|| world.pass());
        let first = *first.get_or_insert(time);
        let ratio = time.as_secs_f64() / first.as_secs_f64();
        println!(
            "| {what} | {time:.1?} | {ratio:.3} | {} | {} | {} |",
            plan.judged,
            plan.searches,
            world.preempting()
        );
        world.later();
    };
    row(&mut world, "the first");
    for _ in 0..4 {
        row(&mut world, "nothing has changed");
    }
    for _ in 0..10 {
        world.pod_event();
        row(&mut world, "a pod has come or gone");
    }
    world.uncordon();
    for _ in 0..3 {
        row(&mut world, "64 nodes were uncordoned");
    }
    Ok(())
}
