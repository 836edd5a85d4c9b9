//! One failure on real nodes, from the table of docs/benchmarks.md: with new pods and in place on
//! one axis, and the phases of the restart in place.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::{At, Svg};

/// Phases in their order, each with its colour and its meaning.
const PHASES: [(&str, &str, &str); 7] = [
    ("detect", "other", "the agent reports the exit"),
    ("decide", "starting", "the manager writes the restart order"),
    ("stop", "restarting", "agents stop the other processes"),
    ("barrier", "reserved", "all members have stopped"),
    ("start", "running", "supervisors start the processes"),
    ("meet", "unusable", "members complete the rendezvous"),
    ("first step", "good", "the last member completes a step"),
];

/// Milliseconds by column for a tier of the table.
fn row(page: &str, tier: &str) -> Result<BTreeMap<String, f64>> {
    let (_, table) = page
        .split_once("\n| tier | rounds |")
        .context("the table")?;
    let mut lines = table.lines();
    let heads = lines.next().context("heads")?;
    let heads = heads.split('|').map(|cell| cell.trim().to_owned());
    let prefix = format!("| {tier} | ");
    let cells = lines.find_map(|line| line.strip_prefix(&prefix));
    let cells = cells.context("the tier")?.split('|').skip(1);
    let pairs = heads.zip(cells);
    let numbers = pairs.filter_map(|(head, cell)| Some((head, cell.trim().parse().ok()?)));
    Ok(numbers.collect())
}

/// The phases that are not empty, each with its begin and end in milliseconds after the failure.
fn steps(row: &BTreeMap<String, f64>) -> Result<Vec<(usize, f64, f64)>> {
    let (mut at, mut out) = (0.0, Vec::new());
    for (index, (name, ..)) in PHASES.iter().enumerate() {
        let length = *row.get(*name).with_context(|| format!("column {name}"))?;
        if length > 0.0 {
            out.push((index, at, at + length));
        }
        at += length;
    }
    Ok(out)
}

/// Left end of lanes, and pixels of a second.
const LEFT: f64 = 150.0;
const SECOND: f64 = 148.0;

/// Place of a time after the failure on the axis of the lanes.
fn at(ms: f64) -> f64 {
    LEFT + 40.0 + ms / 1000.0 * SECOND
}

/// Two lanes with one axis in seconds.
pub fn lanes(page: &str) -> Result<String> {
    let mut svg = Svg::new("One of eight members fails: when do all train again?", 262);
    let new = lane(
        &mut svg,
        &row(page, "recreate")?,
        ["New pods", "action RecreateGang"],
        62.0,
    )?;
    svg.text((at(0.0) + 6.0, 55.0), "figure", &new);
    let kept = lane(
        &mut svg,
        &row(page, "supervised")?,
        ["In place", "in the same pods"],
        140.0,
    )?;
    svg.text((at(250.0), 168.0), "figure on", &kept);
    let ticks = (0..=5).map(|s| (at(f64::from(s) * 1000.0), format!("{s} s")));
    axis(&mut svg, 204.0, &ticks.collect::<Vec<_>>());
    svg.line((at(0.0), 48.0), (at(0.0), 204.0), "mark");
    let phases = [
        ("other", "detect"),
        ("starting", "decide"),
        ("restarting", "stop, new pods"),
        ("reserved", "barrier"),
        ("unusable", "meet"),
        ("good", "first step"),
    ];
    svg.legend(
        246.0,
        &[&[("running", "all members train")], &phases[..]].concat(),
    );
    Ok(svg.finish())
}

/// Draws a lane, and returns its figure.
fn lane(svg: &mut Svg, row: &BTreeMap<String, f64>, names: [&str; 2], y: f64) -> Result<String> {
    svg.text((16.0, y + 20.0), "figure", names[0]);
    svg.text((16.0, y + 37.0), "small", names[1]);
    let mut bar = |from: f64, to: f64, class: &str| {
        let (x, w, h) = (from, to - from, 46.0);
        svg.rect(At { x, y, w, h }, class);
    };
    bar(LEFT, at(0.0), "running");
    let (mut end, mut long) = (0.0, None);
    for (index, from, to) in steps(row)? {
        // With new pods, the time at the barrier is that until they run.
        let is_long = to - from > 1000.0;
        long = long.or(is_long.then_some((from, to)));
        bar(
            at(from),
            at(to),
            if is_long {
                "restarting"
            } else {
                PHASES[index].1
            },
        );
        end = to;
    }
    bar(at(end), at(5000.0), "running");
    if let Some((from, to)) = long {
        let middle = f64::midpoint(at(from), at(to));
        svg.text(
            (middle, y + 28.0),
            "middle on",
            "pods are deleted, created, started",
        );
    }
    let running = row.get("running").context("column running")?;
    Ok(format!(
        "{:.2} s until all members run again",
        running / 1000.0
    ))
}

fn axis(svg: &mut Svg, y: f64, ticks: &[(f64, String)]) {
    if let [(first, _), .., (last, _)] = ticks {
        svg.line((*first, y), (*last, y), "axis");
    }
    for (x, label) in ticks {
        svg.line((*x, y), (*x, y + 5.0), "axis");
        svg.text((*x, y + 19.0), "small middle", label);
    }
}

/// The phases below each other.
pub fn phases(page: &str) -> Result<String> {
    let steps = steps(&row(page, "supervised")?)?;
    let end = steps.last().context("phases")?.2;
    let scale = 520.0 / end;
    let height = 74.0 + 30.0 * steps.len() as f64;
    let mut svg = Svg::new("The phases of one restart in place", (height + 30.0) as u32);
    for (line, (index, from, to)) in steps.iter().enumerate() {
        let (name, class, what) = PHASES[*index];
        let y = 48.0 + 30.0 * line as f64;
        svg.text((16.0, y + 16.0), "figure", name);
        svg.rect(
            At {
                x: LEFT + from * scale,
                y,
                w: (to - from) * scale,
                h: 22.0,
            },
            class,
        );
        let label = format!("{:.0} ms: {what}", to - from);
        svg.text((LEFT + to * scale + 8.0, y + 15.5), "", &label);
    }
    let ticks = (0..=5)
        .map(|at| f64::from(at) * 50.0)
        .filter(|ms| *ms <= end + 50.0);
    let ticks = ticks.map(|ms| (LEFT + ms * scale, format!("{ms:.0} ms")));
    axis(&mut svg, height - 14.0, &ticks.collect::<Vec<_>>());
    Ok(svg.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "
| tier | rounds | running | ratio | detect | decide | stop | barrier | start | meet | first step |
|---|---|---|---|---|---|---|---|---|---|---|
| supervised | 30 | 300 | 2.0 x | 100 | 50 | 50 | 100 | 0 | 10 | 10 |
| recreate | 30 | 3000 | 1.0 x | 100 | 50 | 0 | 2850 | 0 | 10 | 10 |
";

    #[test]
    fn the_lanes_have_the_times_of_the_table() {
        let picture = lanes(TABLE).unwrap();
        for figure in ["3.00 s until", "0.30 s until"] {
            assert!(picture.contains(figure), "{picture}");
        }
        let without = TABLE.replace("| detect ", "| found ");
        assert!(lanes(&without).is_err());
    }

    #[test]
    fn a_phase_begins_where_the_phase_before_ends() {
        let row = row(TABLE, "supervised").unwrap();
        let steps = steps(&row).unwrap().into_iter();
        let whole: Vec<(u32, u32)> = steps.map(|(_, a, b)| (a as u32, b as u32)).collect();
        let expected = [
            (0, 100),
            (100, 150),
            (150, 200),
            (200, 300),
            (300, 310),
            (310, 320),
        ];
        assert_eq!(whole, expected);
    }
}
