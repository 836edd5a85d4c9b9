//! Prints how many planted gangs of two to four shapes are placed, and how long a decision takes
//! beside one for a gang of one shape in the same run.
//!
//! `bench-several [NODES [GANGS]]`

use std::time::Duration;

use anyhow::Result;
use lockstep_bench::{
    mixed::{Room, planted},
    questions::preempt_beside,
    timed,
};
use lockstep_engine::{Infeasible, PreemptionOptions, place, preempt};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let nodes: usize = args.next().map_or(Ok(1_000), |a| a.parse())?;
    let gangs: u64 = args.next().map_or(Ok(20), |a| a.parse())?;
    let question = preempt_beside(nodes, 500);
    let one = median((0..11).map(|_| timed(|| question.ask()).1).collect());
    println!("one shape, 500 gangs running: preempted for in {one:?}\n");
    println!(
        "| {nodes} nodes | found | not known | p50 | p99 | p50 / one shape |\n|---|---|---|---|---|---|"
    );
    for room in [Room::Free, Room::Held, Room::Short] {
        for shapes in 2..=4 {
            for tenths in [1, 5] {
                let (mut found, mut unknown, mut times) = (0, 0, Vec::new());
                for seed in 0..gangs {
                    let (scene, demand) = planted(seed, nodes, shapes, tenths, room);
                    let options = PreemptionOptions::default();
                    let (answer, time) = timed(|| match room {
                        Room::Held => {
                            preempt(&scene.cluster, &scene.units, &demand, &options).map(|_| ())
                        }
                        Room::Free | Room::Short => place(&scene.cluster, &demand).map(|_| ()),
                    });
                    found += u32::from(answer.is_ok());
                    unknown += u32::from(matches!(answer, Err(Infeasible::GaveUp { .. })));
                    times.push(time);
                }
                times.sort_unstable();
                let p99 = times[(times.len() - 1) * 99 / 100];
                let p50 = median(times);
                let ratio = p50.as_secs_f64() / one.as_secs_f64();
                println!(
                    "| {room:?}, {shapes} shapes on {tenths} tenths | {found} of {gangs} | {unknown} | {p50:.1?} | {p99:.1?} | {ratio:.2} |"
                );
            }
        }
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
