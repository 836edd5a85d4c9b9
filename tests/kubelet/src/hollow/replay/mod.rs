//! Replays all recorded scenarios on hollow nodes, with the same specs and steps, the simulated
//! runtime and paused time. The API server must receive the recorded statuses.

mod cluster;
mod compare;
mod differences;
mod script;

use std::io::Write as _;
use std::time::Duration;

use cluster::Cluster;
use differences::DIFFERENCES;

use crate::traces::{Trace, What};

/// Maximum deviation of a status from its recorded time, in milliseconds: the kubelet's poll of one
/// second, whose phase differs here, and delays of the recording machine beyond the profile (in
/// restart-all-long-grace an exit was visible only after 1.5 s).
const TOLERANCE: i64 = 1_400;

#[tokio::test(start_paused = true)]
async fn every_recorded_scenario_is_replayed() {
    let (mut wrong, mut replayed) = (Vec::new(), 0);
    let traces = Trace::all().expect("the traces");
    for trace in &traces {
        let found = replay(trace).await;
        let known = DIFFERENCES.iter().find(|d| d.scenario == trace.name);
        let expected = known.map_or(&[][..], |d| d.lines);
        if found == expected {
            replayed += 1;
        } else {
            wrong.push(format!("{}:\n  {}", trace.name, found.join("\n  ")));
        }
    }
    let all = traces.len();
    assert!(
        wrong.is_empty(),
        "{replayed} of {all} replayed\n{}",
        wrong.join("\n")
    );
    let unknown = |name: &&str| traces.iter().all(|t| t.name != **name);
    let orphans: Vec<_> = DIFFERENCES
        .iter()
        .map(|d| d.scenario)
        .filter(unknown)
        .collect();
    assert!(orphans.is_empty(), "no recording of {orphans:?}");
    assert!(all > 0);
    // A closed output is not a failure of the replay.
    let _ = writeln!(
        std::io::stdout(),
        "{replayed} of {all} recorded scenarios replayed"
    );
}

/// Replays a scenario and returns the lines that differ from the recording.
async fn replay(trace: &Trace) -> Vec<String> {
    let cluster = Cluster::start(trace);
    for line in &trace.lines {
        cluster.wait_until(line.ms).await;
        match &line.what {
            What::Seen(seen) => cluster.follow(seen).await,
            What::Step(step) => {
                if let Err(error) = cluster.perform(step).await {
                    return vec![error];
                }
            }
        }
    }
    let end = trace.lines.last().map_or(0, |l| l.ms);
    cluster.wait_until(end + TOLERANCE).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let differences =
        |(pod, _): (String, _)| compare::differences(trace, &pod, &cluster.shown(&pod), end);
    trace.pods().flat_map(differences).collect()
}
