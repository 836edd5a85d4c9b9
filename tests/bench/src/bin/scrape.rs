//! Prints the cost of scraping a manager with a fleet and a manager without objects: series, size
//! and median time of encoding.
//!
//! `bench-scrape [WORKLOADS]`

use std::time::Duration;

use anyhow::Result;
use lockstep_bench::fleet::Fleet;
use lockstep_bench::timed;

/// Number of scrapes of each kind. The first scrapes warm up and are not counted.
const SCRAPES: usize = 33;
const WARM_UP: usize = 2;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let most: usize = std::env::args().nth(1).map_or(Ok(2000), |a| a.parse())?;
    println!("| a scrape of the manager | series | size | time | beside nothing held |");
    println!("|---|---|---|---|---|");
    let mut nothing = None;
    let mut row = |what: String, fleet: &Fleet, single_workloads: usize| -> Result<()> {
        let (text, time) = scrape(fleet, single_workloads);
        let nothing = *nothing.get_or_insert(time);
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        let ratio = time.as_secs_f64() / nothing.as_secs_f64();
        println!(
            "| {what} | {series} | {} KB | {time:.2?} | {ratio:.1} |",
            text.len() / 1000
        );
        Ok(())
    };
    row("nothing held".to_owned(), &Fleet::new(0)?, 0)?;
    for workloads in [most / 4, most / 2, most] {
        let fleet = Fleet::new(workloads)?;
        row(format!("{workloads} workloads"), &fleet, 0)?;
        row(
            format!("{workloads} workloads, each with series of its own"),
            &fleet,
            workloads,
        )?;
    }
    Ok(())
}

/// Text of a scrape and its median time.
fn scrape(fleet: &Fleet, single_workloads: usize) -> (String, Duration) {
    let (mut last, mut times) = (String::new(), Vec::new());
    for _ in 0..SCRAPES {
        let (text, time) = timed(|| fleet.scrape(single_workloads));
        times.push(time);
        last = text;
    }
    let mut times = times.split_off(WARM_UP);
    times.sort_unstable();
    (last, times[times.len() / 2])
}
