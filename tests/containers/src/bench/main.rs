//! How long a gang is away after one of its members was killed, on real containers: `bench-containers
//! ROUNDS [ARM[:ROUNDS],...]`. Prints a table for docs/benchmarks.md.
//!
//! Four nodes with two members each train; a member taken at random is killed with SIGKILL, and the
//! clock runs until every member has done a step again. All arms are measured in one run.

mod arms;
mod figures;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::{Cluster, Options};
use serde_json::json;

use crate::arms::{ARMS, Arm, run};
use crate::figures::{Round, table};

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let rounds: usize = args.next().context("ROUNDS")?.parse().context("ROUNDS")?;
    let wanted = args.next();
    let arms: Vec<(&Arm, usize)> = match &wanted {
        Some(words) => {
            let arms = words.split(',').map(|word| named(word, rounds));
            arms.collect::<Result<_>>()?
        }
        None => ARMS.iter().map(|arm| (arm, rounds)).collect(),
    };
    ensure!(rounds > 0, "ROUNDS must be at least 1");
    let options = Options {
        // A round is over after a second, so that no round pays for the one before.
        config: json!({"workloads": {"healthyReset": "1s"}, "leaderElection": null}),
        ..Options::named("bench")
    };
    let cluster = Cluster::start(&options).await?;
    let _manager = cluster.start_manager("a").await?;
    let mut measured: Vec<(&str, Vec<Round>)> = Vec::new();
    let mut mixed = 0;
    for (arm, rounds) in arms {
        let outcome = run(&cluster, arm, rounds).await?;
        mixed += outcome.mixed;
        measured.push((arm.name, outcome.rounds));
        // After each arm, so that a run that is broken off has shown something.
        println!("{}", table(&measured));
    }
    println!("two attempts were seen at once {mixed} times");
    ensure!(mixed == 0, "two attempts were seen at once");
    Ok(())
}

fn named(word: &str, rounds: usize) -> Result<(&'static Arm, usize)> {
    let (name, rounds) = match word.split_once(':') {
        Some((name, own)) => (name, own.parse().context("rounds of an arm")?),
        None => (word, rounds),
    };
    let mut all = ARMS.iter();
    let arm = all
        .find(|a| a.name == name)
        .with_context(|| format!("no arm {name}; there are {:?}", ARMS.map(|a| a.name)))?;
    Ok((arm, rounds))
}
