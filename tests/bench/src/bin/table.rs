//! Prints the tables of `docs/benchmarks.md` from the files of the benchmarks.
//!
//! `bench-table CRITERION GUNGRAUN RUNS`: criterion's folder with the baselines `run-1` to
//! `run-RUNS` and a file `loads` with the load average before each; gungraun's folder with a
//! summary of each benchmark, which may be missing.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use lockstep_bench::{
    growth::{Fit, fit},
    questions::{GANGS, PODS, ROWS, SIZES},
};
use serde::Deserialize;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [criterion, gungraun, runs] = args.as_slice() else {
        bail!("usage: bench-table CRITERION GUNGRAUN RUNS");
    };
    let (criterion, gungraun, runs) = (Path::new(criterion), Path::new(gungraun), runs.parse()?);
    let loads = fs::read_to_string(criterion.join("loads")).context("reading the load averages")?;
    println!(
        "Medians of {runs} runs, in brackets the fastest and the slowest; load average before each run:"
    );
    println!(
        "{}.\n",
        loads.split_whitespace().collect::<Vec<_>>().join(", ")
    );
    heading(
        "time",
        &SIZES.map(|n| format!("{} nodes", thousands(n as u64))),
    );
    for row in &ROWS {
        times(criterion, &format!("decide/{}", row.name), row.what, runs)?;
    }
    times(
        criterion,
        "index/pod_comes_and_goes",
        "a pod comes and goes in the index",
        runs,
    )?;
    times(criterion, "index/copy", "copy the index", runs)?;
    if !gungraun.join("lockstep-bench").exists() {
        println!("\nInstruction counts skipped: no valgrind.");
        return Ok(());
    }
    println!();
    let sizes = SIZES.map(|n| format!("{} nodes", thousands(n as u64)));
    heading("instructions, growth", &sizes);
    for row in &ROWS {
        counts(
            gungraun,
            &format!("decide.{}", row.name),
            row.what,
            "nodes",
            &SIZES,
        )?;
    }
    counts(
        gungraun,
        "index.pod_comes_and_goes",
        "a pod comes and goes in the index",
        "nodes",
        &SIZES,
    )?;
    println!();
    heading(
        "preempt on 1,000 nodes, by gangs",
        &GANGS.map(|n| format!("{n} gangs")),
    );
    counts(
        gungraun,
        "decide.by_gangs",
        "for a tenth of the nodes",
        "gangs",
        &GANGS,
    )?;
    println!();
    heading(
        "preempt on 1,000 nodes of 50 gangs, by pods",
        &PODS.map(|n| format!("{n} per node")),
    );
    counts(
        gungraun,
        "decide.by_pods",
        "for a tenth of the nodes",
        "pods",
        &PODS,
    )
}

fn heading(what: &str, columns: &[String]) {
    println!("| {what} | {} |", columns.join(" | "));
    println!("|---|{}", "---|".repeat(columns.len()));
}

/// A row of times.
fn times(criterion: &Path, bench: &str, what: &str, runs: usize) -> Result<()> {
    let mut cells = Vec::new();
    for nodes in SIZES {
        let mut medians = Vec::new();
        for run in 1..=runs {
            let path = criterion
                .join(bench)
                .join(nodes.to_string())
                .join(format!("run-{run}/estimates.json"));
            medians.push(read::<Estimates>(&path)?.median.point_estimate);
        }
        medians.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (medians.first(), medians.last()) else {
            bail!("no runs")
        };
        cells.push(format!(
            "{} ({} to {})",
            time(medians[medians.len() / 2]),
            time(*least),
            time(*most)
        ));
    }
    println!("| {what} | {} |", cells.join(" | "));
    Ok(())
}

/// A row of instruction counts with their growth.
fn counts(gungraun: &Path, bench: &str, what: &str, axis: &str, sizes: &[usize]) -> Result<()> {
    let mut points = Vec::new();
    for (ix, &size) in sizes.iter().enumerate() {
        let path = gungraun.join(format!(
            "lockstep-bench/instructions/instructions/{bench}_{ix}/summary.json"
        ));
        let summary: Summary = read(&path)?;
        let profile = summary
            .profiles
            .first()
            .with_context(|| format!("{} has no profile", path.display()))?;
        points.push((size as f64, profile.data.total.metrics.ir.values.new));
    }
    let Fit { exponent, worst } = fit(&points);
    let cells: Vec<String> = points.iter().map(|&(_, count)| amount(count)).collect();
    println!(
        "| {what}: {axis}^{exponent:.2} (x{worst:.2}) | {} |",
        cells.join(" | ")
    );
    Ok(())
}

#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    /// Nanoseconds.
    point_estimate: f64,
}

#[derive(Deserialize)]
struct Summary {
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    total: Total,
}

#[derive(Deserialize)]
struct Total {
    metrics: Metrics,
}

#[derive(Deserialize)]
struct Metrics {
    /// Instructions read.
    #[serde(rename = "Ir")]
    ir: Metric,
}

#[derive(Deserialize)]
struct Metric {
    values: Values,
}

#[derive(Deserialize)]
struct Values {
    new: f64,
}

fn read<T: for<'de> Deserialize<'de>>(path: &PathBuf) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))
}

/// A time with two significant digits.
fn time(nanos: f64) -> String {
    scaled(nanos, &[" ns", " us", " ms", " s"])
}

/// A count with two significant digits.
fn amount(count: f64) -> String {
    scaled(count, &["", "k", "M", "G"])
}

fn scaled(mut number: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while number >= 999.5 && unit + 1 < units.len() {
        number /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(number < 9.95 && unit > 0);
    format!("{number:.digits$}{}", units[unit])
}

fn thousands(number: u64) -> String {
    if number < 1_000 {
        number.to_string()
    } else {
        format!("{},{:03}", number / 1_000, number % 1_000)
    }
}
