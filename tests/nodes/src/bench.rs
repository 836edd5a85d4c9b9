//! Time without training after the kill of a member, and time to start a gang, on real nodes with
//! the images of `make image`: `bench-kubelets ROUNDS [ARM,...]`. Prints a table for
//! docs/benchmarks.md.
//!
//! Eight members train on four nodes. A random member is killed with SIGKILL, and the time until
//! all members run the next attempt is measured. Each round has a new workload. The arms take
//! turns, so that other load on the machine affects all of them alike.

use anyhow::{Context, Result, ensure};
use lockstep_nodes::arms::{ARMS, Arm, round};
use lockstep_nodes::figures::{Round, table};
use lockstep_nodes::real_cluster::Gates;
use lockstep_nodes::{Images, RealCluster};

const NODES: u8 = 4;

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let rounds: usize = args.next().context("ROUNDS")?.parse().context("ROUNDS")?;
    ensure!(rounds > 0, "ROUNDS must be at least 1");
    let arms: Vec<&Arm> = match args.next() {
        Some(words) => words.split(',').map(named).collect::<Result<_>>()?,
        None => ARMS.iter().collect(),
    };
    let real = RealCluster::start("bench", NODES, Images::Released, &Gates::new()).await?;
    real.install().await?;
    let mut measured: Vec<(&str, Vec<Round>)> = arms.iter().map(|a| (a.name, Vec::new())).collect();
    let mut mixed = 0;
    real.scenario("bench", async |t| {
        for number in 0..rounds {
            for (arm, (name, all)) in arms.iter().zip(&mut measured) {
                let job = format!("{name}-{number}");
                let (round, met) = round(&real, t, arm, &job).await?;
                eprintln!("{name} {}: {round:?}", number + 1);
                all.push(round);
                mixed += met;
            }
        }
        Ok(())
    })
    .await?;
    println!("{}", table(&measured));
    println!("two attempts were seen at once {mixed} times");
    ensure!(mixed == 0, "two attempts were seen at once");
    Ok(())
}

fn named(name: &str) -> Result<&'static Arm> {
    let mut all = ARMS.iter();
    all.find(|a| a.name == name)
        .with_context(|| format!("no arm {name}; there are {:?}", ARMS.map(|a| a.name)))
}
