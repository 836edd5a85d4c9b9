//! `make bench-month`: a month of failures, announced maintenance, preemptions and false alarms on
//! 1,250 nodes of 8 accelerators, by arm. Prints the tables of docs/benchmarks.md: means of several
//! months, because each stop changes which gangs run later.
//!
//! `bench-month [MONTHS]`

use anyhow::Result;
use lockstep_bench::month::{Arm, Inputs, Outcome, Setting, play, tables};

fn main() -> Result<()> {
    let months: u64 = std::env::args().nth(1).map_or(Ok(5), |a| a.parse())?;
    for failures in [2.3, 6.5] {
        for pull in [0, 300] {
            let mut outcomes = Arm::ALL.map(|arm| (arm, Outcome::default()));
            for seed in 0..months {
                let inputs = Inputs::new(&Setting {
                    seed,
                    nodes: 1250,
                    days: 30,
                    failures,
                    pull,
                });
                for (arm, outcome) in &mut outcomes {
                    outcome.add(&play(&inputs, *arm));
                }
            }
            println!("{failures} failures per 1,000 node-days, image pull {pull} s\n");
            println!("{}\n", tables(&outcomes, months));
        }
    }
    Ok(())
}
