//! Prints how fast the scheduler places gangs that must each share a rack, without an API server. The
//! cases are those of topology-aware scheduling in upstream's `scheduler_perf`: 5,000 empty nodes in 50
//! racks, and gangs of 4 or 1,000 pods. A case ends when each gang is placed. Times are those of the
//! cycles: the mean of all runs on the CPU, the least by the clock.
//!
//! `bench-topology [RUNS]`

use std::time::Duration;

use anyhow::{Result, ensure};
use lockstep_bench::passes::World;
use lockstep_bench::{timed, timed_on_cpu};

const NODES: usize = 5_000;
/// Number of gangs, and pods of each.
const CASES: [(usize, usize); 6] = [
    (750, 4),
    (1_500, 4),
    (2_250, 4),
    (3, 1_000),
    (6, 1_000),
    (9, 1_000),
];

fn main() -> Result<()> {
    let runs: u32 = std::env::args().nth(1).map_or(Ok(5), |a| a.parse())?;
    println!("| gangs | pods of each | pods | cycles | CPU | wall | pods per second of CPU |");
    println!("|---|---|---|---|---|---|---|");
    for (gangs, members) in CASES {
        let (mut cycles, mut wall, mut cpu) = (0, Duration::MAX, Duration::ZERO);
        for _ in 0..runs {
            let (needed, by_clock, on_cpu) = place(gangs, members)?;
            (cycles, wall, cpu) = (needed, wall.min(by_clock), cpu + on_cpu / runs);
        }
        let pods = gangs * members;
        let rate = pods as f64 / cpu.as_secs_f64();
        println!(
            "| {gangs} | {members} | {pods} | {cycles} | {cpu:.1?} | {wall:.1?} | {rate:.0} |"
        );
    }
    Ok(())
}

/// Places all gangs. Returns the number of cycles, and their time by the clock and on the CPU.
fn place(gangs: usize, members: usize) -> Result<(usize, Duration, Duration)> {
    let mut world = World::of_racks(NODES, gangs, members);
    let (mut cycles, mut wall, mut cpu) = (0, Duration::ZERO, Duration::ZERO);
    loop {
        let ((plan, on_cpu), by_clock) = timed(|| timed_on_cpu(|| world.pass()));
        (cycles, wall, cpu) = (cycles + 1, wall + by_clock, cpu + on_cpu);
        let placed = world.placed_in_a_rack();
        if placed == gangs {
            return Ok((cycles, wall, cpu));
        }
        ensure!(
            !plan.steps.is_empty(),
            "{placed} of {gangs} gangs are placed"
        );
        world.make_pods();
        world.later();
    }
}
