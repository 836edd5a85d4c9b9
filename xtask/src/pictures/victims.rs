//! The map of a cluster before and after a preemption, with what each gang would have cost.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use chrono::TimeDelta;
use lockstep_api::names::annotations::LAST_CHECKPOINT;
use lockstep_api::scheduling::Preemption;
use lockstep_sim::{Gangs, Spec};
use serde_json::json;

use super::{At, Svg};

/// Gangs with their nodes and the minutes since their last checkpoint.
const GANGS: [(&str, i32, i64); 6] = [
    ("bert", 4, 25),
    ("llama", 4, 4),
    ("resnet", 3, 20),
    ("tuning", 2, 12),
    ("vision", 2, 2),
    ("probe", 1, 9),
];
const RACKS: usize = 4;
const PER_RACK: usize = 4;
const GPUS: i64 = 8;
/// Nodes of the preemptor.
const WANTED: i32 = 5;

/// A full cluster, and a gang of high priority that wants some nodes. Its decision.
fn played(wanted: i32) -> Result<(Gangs, Preemption)> {
    let mut world = Gangs::new(&[]);
    for node in 0..RACKS * PER_RACK {
        let rack = json!({"rack": format!("r{}", node / PER_RACK + 1)});
        world.zone(&format!("n{node:02}"), GPUS, &rack);
    }
    let spec = |priority, members| Spec {
        priority,
        members,
        gpus: GPUS,
    };
    for (name, members, _) in GANGS {
        world.gang(name, spec(10, members));
        world.settle();
    }
    world.later(7200);
    for (name, _, minutes) in GANGS {
        let at = (world.now() - TimeDelta::minutes(minutes)).to_rfc3339();
        world.edit(name, |w| {
            w.metadata.annotations = Some([(LAST_CHECKPOINT.to_owned(), at)].into());
        });
    }
    world.gang("urgent", spec(1000, wanted));
    world.pass();
    let intent = world.intent("urgent").context("a preemption")?;
    Ok((world, intent))
}

/// Costs of the victims by name of their workload.
fn costs(world: &Gangs, intent: &Preemption) -> BTreeMap<&'static str, i64> {
    let uid = |name: &str| world.group(name).and_then(|g| g.metadata.uid);
    let of = |name: &str| {
        let uid = uid(name);
        let victim = intent
            .victims
            .iter()
            .find(|v| Some(&v.uid) == uid.as_ref())?;
        Some(victim.cost)
    };
    let all = GANGS
        .iter()
        .filter_map(|(name, ..)| Some((*name, of(name)?)));
    all.collect()
}

fn hours(cost: i64) -> String {
    format!("{:.1} GPU-h", cost as f64 / 3600.0)
}

/// Draws both maps.
pub fn draw() -> Result<String> {
    // A gang that wants all nodes evicts all gangs: what each costs.
    let whole = i32::try_from(RACKS * PER_RACK)?;
    let (world, intent) = played(whole)?;
    let all = costs(&world, &intent);
    let (mut world, intent) = played(WANTED)?;
    let taken = costs(&world, &intent);
    let before: Vec<(&str, Vec<String>)> =
        GANGS.iter().map(|(n, ..)| (*n, world.nodes(n))).collect();
    world.settle();
    world.wait(60);
    let mut after: Vec<(&str, Vec<String>)> =
        GANGS.iter().map(|(n, ..)| (*n, world.nodes(n))).collect();
    after.push(("urgent", world.nodes("urgent")));

    let title = format!(
        "A gang of {WANTED} nodes and higher priority preempts {} gangs",
        taken.len()
    );
    let mut svg = Svg::new(&title, 318);
    map(&mut svg, (16.0, "Before"), &before, &all, &taken);
    map(
        &mut svg,
        (496.0, "After"),
        &after,
        &BTreeMap::new(),
        &BTreeMap::new(),
    );
    let next = intent.next_best.as_ref().map(|n| hours(n.cost));
    let next = next.map_or_else(String::new, |n| format!("; next best set {n}"));
    let cost = format!(
        "Cost of the victims: {}{next}. No set can cost less than {}.",
        hours(intent.cost),
        hours(intent.at_least)
    );
    svg.text((16.0, 276.0), "", &cost);
    svg.legend(
        302.0,
        &[
            ("running", "runs"),
            ("leaving", "victim, with its cost"),
            ("good", "the preemptor"),
            ("free", "free"),
        ],
    );
    Ok(svg.finish())
}

/// Racks as columns of nodes. Victims are marked, and each gang has its cost once.
fn map(
    svg: &mut Svg,
    (left, name): (f64, &str),
    gangs: &[(&str, Vec<String>)],
    costs: &BTreeMap<&str, i64>,
    victims: &BTreeMap<&str, i64>,
) {
    svg.text((left, 56.0), "figure", name);
    for index in 0..RACKS * PER_RACK {
        let (rack, slot) = ((index / PER_RACK) as f64, (index % PER_RACK) as f64);
        let at = At {
            x: left + rack * 112.0,
            y: 84.0 + slot * 42.0,
            w: 104.0,
            h: 38.0,
        };
        if index % PER_RACK == 0 {
            svg.text((at.x, 78.0), "small", &format!("rack {}", rack + 1.0));
        }
        let node = format!("n{index:02}");
        let found = gangs.iter().find(|(_, nodes)| nodes.contains(&node));
        let Some((gang, nodes)) = found else {
            svg.rect(at, "free");
            continue;
        };
        let class = match *gang {
            "urgent" => "good",
            gang if victims.contains_key(gang) => "leaving",
            _ => "running",
        };
        svg.rect(at, class);
        svg.text((at.x + 8.0, at.y + 16.0), "on", gang);
        let cost = costs.get(gang).filter(|_| nodes.first() == Some(&node));
        if let Some(cost) = cost {
            svg.text((at.x + 8.0, at.y + 31.0), "on", &hours(*cost));
        }
    }
}
