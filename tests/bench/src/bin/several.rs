//! Prints how many planted gangs of two to four shapes are placed, and the times of their decisions
//! and of decisions for gangs of one shape in the same run. Then the same for gangs whose replicas
//! must each share a rack, with the reasons for the victims, for planted gangs of that kind, and for
//! gangs on two levels of the topology. The last rows are gangs of whole nodes that preempt single pods.
//!
//! `bench-several [NODES [GANGS [no-METHOD]]]`

use std::time::Duration;

use anyhow::Result;
use lockstep_bench::{
    arms::method_left_out,
    mixed::{Room, planted},
    questions::{Answer, preempt_beside, two_levels},
    racks::{Held, planted_in_racks},
    scenes::{Scene, fragmented, gang, replicas_in_racks, single_pods},
    timed,
};
use lockstep_engine::{Infeasible, PLACEMENT_STEPS, PreemptionOptions, Units, explain, preempt};

/// Nodes, and the numbers of replicas of eight and of four nodes.
const REPLICAS: [(usize, u32, u32); 8] = [
    (1_000, 25, 12),
    (2_000, 50, 25),
    (2_000, 16, 8),
    (3_000, 75, 37),
    (4_800, 16, 8),
    (4_800, 120, 60),
    (5_000, 16, 8),
    (5_000, 125, 62),
];

/// Nodes full of single pods, and the members of a gang that each take a whole node.
const SINGLE_PODS: [(usize, u32); 3] = [(1_000, 200), (3_000, 600), (5_000, 1_000)];

/// Racks of planted gangs: up to 5,000 nodes.
const RACKS: [usize; 4] = [8, 40, 128, 312];

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let nodes: usize = args.next().map_or(Ok(1_000), |a| a.parse())?;
    let gangs: u64 = args.next().map_or(Ok(20), |a| a.parse())?;
    let options = PreemptionOptions {
        without: args.next().map(|arm| method_left_out(&arm)).transpose()?,
        ..PreemptionOptions::default()
    };
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
                    let units = match room {
                        Room::Held => scene.units,
                        Room::Free | Room::Short => Units::default(),
                    };
                    let budget = match room {
                        Room::Held => options.work_budget,
                        Room::Free | Room::Short => PLACEMENT_STEPS,
                    };
                    let options = PreemptionOptions {
                        work_budget: budget,
                        ..options.clone()
                    };
                    let (answer, time) =
                        timed(|| preempt(&scene.cluster, &units, &demand, &options));
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
    for depth in [0, 1] {
        replicas(gangs, depth, &options);
    }
    planted_replicas(gangs, &options);
    on_two_levels(nodes);
    preempted_pods(gangs, &options);
    Ok(())
}

/// Preempts single pods of one GPU, with the reasons for the victims.
fn preempted_pods(gangs: u64, options: &PreemptionOptions) {
    println!("\n| single pods | found | p50 | max |\n|---|---|---|---|");
    for (nodes, members) in SINGLE_PODS {
        let (mut found, mut times) = (0, Vec::new());
        for seed in 0..gangs {
            let (Scene { cluster, units }, demand) = (single_pods(seed, nodes), gang(8, members));
            let (answer, time) = timed(|| {
                let answer = preempt(&cluster, &units, &demand, options)?;
                explain(&cluster, &units, &demand, options, &answer);
                Ok::<_, Infeasible>(answer)
            });
            found += u32::from(answer.is_ok());
            times.push(time);
        }
        let (pods, max) = (nodes * 8, times.iter().max().copied().unwrap_or_default());
        println!(
            "| {nodes} nodes, {pods} pods, {members} x 8 | {found} of {gangs} | {:.1?} | {max:.1?} |",
            median(times)
        );
    }
}

/// Places a gang in a block with each replica in a rack, in free capacity and by preemption.
fn on_two_levels(nodes: usize) {
    println!("\n| one block, replicas in racks | found | p50 |\n|---|---|---|");
    for (name, preempts) in [("placed", false), ("preempts", true)] {
        let question = two_levels(nodes, preempts);
        let mut found = true;
        let asked = (0..11).map(|_| {
            let (answer, time) = timed(|| question.ask());
            found &= match answer {
                Answer::Placed(answer) => answer.is_ok(),
                Answer::Preempted(answer) => answer.is_ok(),
            };
            time
        });
        let p50 = median(asked.collect());
        println!("| {nodes} nodes, {name} | {found} | {p50:.1?} |");
    }
}

/// Places planted gangs whose replicas must each share a rack, and preempts for such.
fn planted_replicas(gangs: u64, options: &PreemptionOptions) {
    println!("\n| planted replicas | found | not known | p50 | max |\n|---|---|---|---|---|");
    for held in [Held::No, Held::ByPods] {
        for racks in RACKS {
            let (mut found, mut unknown, mut times) = (0, 0, Vec::new());
            for seed in 0..gangs {
                let (scene, demand) = planted_in_racks(seed, racks, held);
                let (answer, time) =
                    timed(|| preempt(&scene.cluster, &scene.units, &demand, options));
                found += u32::from(answer.is_ok());
                unknown += u32::from(matches!(answer, Err(Infeasible::GaveUp { .. })));
                times.push(time);
            }
            let max = times.iter().max().copied().unwrap_or_default();
            println!(
                "| {racks} racks, held: {held:?} | {found} of {gangs} | {unknown} | {:.1?} | {max:.1?} |",
                median(times)
            );
        }
    }
}

/// Preempts for gangs of two groups whose replicas must each share a rack.
fn replicas(gangs: u64, follow_on_depth: u8, options: &PreemptionOptions) {
    println!(
        "\n| replicas in racks, follow-on depth {follow_on_depth} | found | p50 | max | lost GPU hours, mean |\n|---|---|---|---|---|"
    );
    let options = PreemptionOptions {
        follow_on_depth,
        ..options.clone()
    };
    let mut all = Vec::new();
    for (nodes, whole, half) in REPLICAS {
        let (mut found, mut lost, mut times) = (0_u128, 0_u128, Vec::new());
        for seed in 0..gangs {
            let (scene, demand) = (fragmented(seed, nodes), replicas_in_racks(whole, half));
            let (answer, time) = timed(|| {
                let (cluster, units) = (&scene.cluster, &scene.units);
                let answer = preempt(cluster, units, &demand, &options)?;
                explain(cluster, units, &demand, &options, &answer);
                Ok::<_, Infeasible>(answer)
            });
            if let Ok(answer) = answer {
                found += 1;
                lost += answer.cost.lost / 3_600;
            }
            times.push(time);
        }
        all.extend_from_slice(&times);
        let max = times.iter().max().copied().unwrap_or_default();
        let (p50, mean) = (median(times), lost / found.max(1));
        println!(
            "| {nodes} nodes, {whole} x 8 and {half} x 4 | {found} of {gangs} | {p50:.1?} | {max:.1?} | {mean} |"
        );
    }
    let max = all.iter().max().copied().unwrap_or_default();
    println!("| all | | {:.1?} | {max:.1?} | |", median(all));
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
