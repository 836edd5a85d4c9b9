//! Every recorded scenario again on hollow nodes: same specs, same steps, the simulated runtime and
//! paused time. What the API server is told must be what the recording shows.

mod cluster;
mod compare;
mod differences;
mod script;

use std::io::Write as _;
use std::time::Duration;

use cluster::Cluster;
use differences::DIFFERENCES;

use crate::traces::{Trace, What};

/// How much later or earlier than recorded a status may come, in milliseconds: the kubelet's poll
/// of one second, whose phase is another here, and what the recorded machine took beyond the
/// profile (in restart-all-long-grace an exit showed only after 1.5 s).
const TOLERANCE: i64 = 1_400;

#[tokio::test(start_paused = true)]
async fn every_recorded_scenario_is_replayed() {
    let (mut wrong, mut replayed) = (Vec::new(), 0);
    let traces = Trace::all();
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
    // For people who let tests talk; a closed output is none of the test's business.
    let _ = writeln!(
        std::io::stdout(),
        "{replayed} of {all} recorded scenarios replayed"
    );
}

/// Plays a scenario; the differences to the recording, as lines.
async fn replay(trace: &Trace) -> Vec<String> {
    let Some(mut effects) = script::effects(&trace.name) else {
        return vec!["has no script: see script.rs".into()];
    };
    let cluster = Cluster::start(trace.origin());
    if let Some(reason) = script::refusal(&trace.name) {
        cluster.refuse(reason).await;
    }
    for line in &trace.lines {
        cluster.wait_until(line.ms).await;
        match &line.what {
            What::Created(pod, spec) => cluster.create(pod, &script::with_behaviour(spec)),
            What::Seen(seen) => cluster.follow(seen).await,
            What::Event(_) => {}
            What::Step(step) if step.starts_with("create pod ") => {}
            What::Step(step) => match effects.next() {
                Some(effect) => cluster.bring_about(effect).await,
                None => return vec![format!("the script says nothing about the step: {step}")],
            },
        }
    }
    if effects.next().is_some() {
        return vec!["the script has more steps than the recording".into()];
    }
    let end = trace.lines.last().map_or(0, |l| l.ms);
    cluster.wait_until(end + TOLERANCE).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let pods = trace.pods().map(|(name, _)| name);
    pods.flat_map(|pod| compare::differences(trace, pod, &cluster.shown(pod), end))
        .collect()
}
