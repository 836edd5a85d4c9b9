//! Answers every instance of a folder, of the formats `preempt-quality/1` and `/2`.
//!
//! `bench-quality INSTANCES OUT [strict|least-work] [engine|kep|ratio|no-METHOD]`
//!
//! The decision time runs from the index (nodes with their free capacity, running groups) to the
//! answer: it includes making the units and the demand.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};

use anyhow::{Context, Result, bail};
use lockstep_bench::{
    arms::method_left_out,
    instance::{Answer, AnswerAssignment, Instance},
    ratio::ratio_greedy,
};
use lockstep_engine::{
    Assignment, Cluster, Demand, Method, PreemptionOptions, PreemptionPlan, Units, VictimOrder,
    preempt, preempt_kep_in_order,
};

/// Algorithm that answers.
#[derive(Clone, Copy)]
enum Arm {
    /// The engine without a method.
    Engine(Option<Method>),
    Kep,
    Ratio,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(instances), Some(out)) = (args.first(), args.get(1)) else {
        bail!(
            "usage: bench-quality INSTANCES OUT [strict|least-work] [engine|kep|ratio|no-METHOD]"
        );
    };
    let order = match args.get(2).map_or("strict", String::as_str) {
        "strict" => VictimOrder::StrictPriority,
        "least-work" => VictimOrder::LeastWork,
        other => bail!("objective {other} is neither strict nor least-work"),
    };
    let arm = match args.get(3).map_or("engine", String::as_str) {
        "engine" => Arm::Engine(None),
        "kep" => Arm::Kep,
        "ratio" => Arm::Ratio,
        other => Arm::Engine(Some(method_left_out(other)?)),
    };
    let mut paths: Vec<_> = fs::read_dir(instances)
        .with_context(|| format!("reading {instances}"))?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<std::io::Result<_>>()?;
    paths.retain(|p| p.extension().is_some_and(|e| e == "json"));
    paths.sort();
    let mut answers = BufWriter::new(File::create(out).with_context(|| format!("creating {out}"))?);
    let mut times = Vec::new();
    for path in &paths {
        let answer = solve(path, order, arm).with_context(|| path.display().to_string())?;
        times.push(answer.decision_us);
        serde_json::to_writer(&mut answers, &answer)?;
        writeln!(answers)?;
    }
    answers.flush()?;
    times.sort_unstable();
    let at = |percent: usize| {
        times
            .get((times.len().saturating_sub(1)) * percent / 100)
            .copied()
            .unwrap_or(0)
    };
    println!(
        "{} answers, decision p50 {} us, p99 {} us, max {} us",
        times.len(),
        at(50),
        at(99),
        at(100)
    );
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that measures: decisions themselves know no clock"
)]
fn solve(path: &Path, order: VictimOrder, arm: Arm) -> Result<Answer> {
    let instance: Instance = serde_json::from_str(&fs::read_to_string(path)?)?;
    let cluster = instance.cluster();
    let start = std::time::Instant::now();
    let (units, names) = instance.units();
    let demand = instance.demand();
    let answer = match arm {
        Arm::Engine(without) => Some(preempt(
            &cluster,
            &units,
            &demand,
            &PreemptionOptions {
                order,
                without,
                ..PreemptionOptions::default()
            },
        )?),
        Arm::Kep => Some(kep(&cluster, &units, &demand)?),
        Arm::Ratio if instance.dims() == 1 => None,
        Arm::Ratio => bail!("the ratio greedy knows one resource only"),
    };
    let victims = match &answer {
        Some(answer) => answer.victims.clone(),
        None => ratio_greedy(&cluster, &units, &demand)
            .context("the gang does not fit even without all candidates")?,
    };
    let decision_us = start.elapsed().as_micros() as u64;
    let shapes = instance.shapes();
    let placement = answer.as_ref().map(|a| {
        let assigned = |s: &Assignment| AnswerAssignment {
            node: s.node,
            request: shapes[s.shape].request.clone(),
            count: s.count,
        };
        a.placement.assignments.iter().map(assigned).collect()
    });
    let bound = answer.as_ref().map(|a| a.bound).unwrap_or_default();
    Ok(Answer {
        name: instance.name.clone(),
        victims: victims.iter().map(|&u| names[u].clone()).collect(),
        decision_us,
        placement,
        proven: answer.is_some_and(|a| a.proven),
        bound_pdb_excess: bound.pdb_excess,
        bound_gpu_s: bound.lost.try_into().unwrap_or(u64::MAX),
    })
}

/// Greedy algorithm of the KEP, with first fit for the members.
fn kep(cluster: &Cluster, units: &Units, demand: &Demand) -> Result<PreemptionPlan> {
    let node_order: Vec<_> = (0..cluster.node_count()).collect();
    Ok(preempt_kep_in_order(cluster, units, demand, &node_order)?)
}
