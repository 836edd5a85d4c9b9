//! Nodes over time: a large gang waits for reserved nodes, and a short gang runs there before it.

use anyhow::{Context, Result};
use chrono::TimeDelta;
use lockstep_api::TrainingWorkload;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::json;

use super::{At, Svg};

const NODES: usize = 5;
/// Seconds between two looks at the cluster.
const TURN: i64 = 20;
/// Minutes that are drawn.
const MINUTES: i64 = 60;
/// Gangs by minute of their creation: name, nodes, minutes until their deadline.
const GANGS: [(i64, &str, i32, Option<i64>); 6] = [
    (0, "first", 2, Some(24)),
    (1, "second", 1, Some(38)),
    (2, "service", 1, None),
    (6, "large", 4, Some(30)),
    (9, "late", 1, Some(40)),
    (11, "short", 1, Some(12)),
];

/// What a node has at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Reserved,
    Runs(String),
}

/// The nodes at each look, and the latest start that the large gang was promised.
fn played() -> (Vec<[Use; NODES]>, Option<i64>) {
    let nodes: [(&str, i64); NODES] = [("n1", 8), ("n2", 8), ("n3", 8), ("n4", 8), ("n5", 8)];
    let mut world = Gangs::new(&nodes);
    let begin = world.now();
    let (mut looks, mut promised) = (Vec::new(), None);
    for look in 0..MINUTES * 60 / TURN {
        let minute = |at: i64| at * 60 / TURN == look;
        for (at, name, members, deadline) in GANGS {
            if minute(at) {
                let spec = Spec {
                    priority: 10,
                    members,
                    gpus: 8,
                };
                let more = deadline
                    .map_or_else(|| json!({}), |m| json!({"activeDeadlineSeconds": m * 60}));
                world.gang_with(name, spec, &more);
            }
            // The work ends a minute before its deadline.
            let key = Key::new("ml", name);
            let placed = world
                .get::<TrainingWorkload>(&key)
                .and_then(|w| w.status?.scheduled_time);
            let ends = placed
                .zip(deadline)
                .map(|(placed, m)| placed + TimeDelta::minutes(m - 1));
            if ends.is_some_and(|ends| world.now() >= ends) {
                world.delete(WatchedKind::TrainingWorkload, &key);
            }
        }
        for _ in 0..4 {
            world.round();
            world.advance(TimeDelta::seconds(TURN / 4));
        }
        let reservation = world.status("large").reservation;
        let starts = reservation.as_ref().and_then(|r| r.starts_at);
        promised = promised.or(starts.map(|at| (at - begin).num_seconds()));
        let of = |node: &str| {
            let mut gangs = GANGS.iter().map(|(_, name, ..)| *name);
            let holder = gangs.find(|name| world.nodes(name).iter().any(|n| n == node));
            let is_reserved = || {
                reservation
                    .iter()
                    .flat_map(|r| &r.nodes)
                    .any(|n| n.node == node)
            };
            match holder {
                Some(name) => Use::Runs(name.to_owned()),
                None if is_reserved() => Use::Reserved,
                None => Use::Free,
            }
        };
        looks.push(nodes.map(|(node, _)| of(node)));
    }
    (looks, promised)
}

/// Draws a row for each node.
pub fn draw() -> Result<String> {
    const LEFT: f64 = 60.0;
    let (looks, promised) = played();
    let scale = 870.0 / (MINUTES * 60) as f64;
    let x = |look: usize| LEFT + look as f64 * TURN as f64 * scale;
    let mut svg = Svg::new(
        "A large gang waits for reserved nodes; a short gang runs there before it",
        346,
    );
    for node in 0..NODES {
        let y = 52.0 + 42.0 * node as f64;
        svg.text((16.0, y + 23.0), "figure", &format!("n{}", node + 1));
        let mut from = 0;
        while from < looks.len() {
            let used = &looks[from][node];
            let more = looks[from..].iter().take_while(|look| &look[node] == used);
            let to = from + more.count();
            let at = At {
                x: x(from),
                y,
                w: x(to) - x(from),
                h: 36.0,
            };
            match used {
                Use::Free => svg.rect(at, "free"),
                Use::Reserved => svg.rect(at, "kept"),
                Use::Runs(name) => {
                    let (class, ink) = match name.as_str() {
                        "large" => ("good", "on"),
                        "short" => ("starting", "dark"),
                        _ => ("running", "on"),
                    };
                    svg.rect(at, class);
                    svg.text((at.x + 7.0, y + 23.0), ink, name);
                }
            }
            from = to;
        }
    }
    let axis = 52.0 + 42.0 * NODES as f64;
    for minute in (0..=MINUTES).step_by(10) {
        let x = LEFT + (minute * 60) as f64 * scale;
        svg.line((x, axis), (x, axis + 5.0), "axis");
        svg.text((x, axis + 18.0), "small middle", &format!("{minute} min"));
    }
    let promised = promised.context("a latest start")? as f64 * scale + LEFT;
    svg.line((promised, 44.0), (promised, axis), "mark");
    svg.text((promised - 6.0, 47.0), "small end", "latest start of large");
    svg.text((16.0, 308.0), "", "Gang late (1 node, ends within 40 min) is created at 9 min and waits: it would not end before the latest start of large.");
    svg.legend(
        334.0,
        &[
            ("running", "runs"),
            ("kept", "reserved for large"),
            ("starting", "backfill"),
            ("good", "large"),
            ("free", "free"),
        ],
    );
    Ok(svg.finish())
}
