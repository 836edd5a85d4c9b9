//! Decisions of the lifecycle about recordings of a real cluster, as text in `golden/SCENARIO.txt`.
//! `UPDATE_GOLDEN=1` rewrites the files.

mod gang;
mod text;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::PodSpec;
use lockstep_kubelet::traces::Trace;

use gang::{Gang, Setting};

/// Time after the last event for which the lifecycle is followed.
const AFTERWARDS: TimeDelta = TimeDelta::minutes(20);
/// Time for which the first event of a failure is followed: longer than the wait for an agent's
/// report.
const PATIENCE: TimeDelta = TimeDelta::seconds(10);

const SETTINGS: [(Setting, &str); 3] = [
    (Setting::Plain, "no agents, failure policy by default"),
    (
        Setting::SilentAgents,
        "agents that say nothing, restarts in place allowed",
    ),
    (
        Setting::KubeletRestarts,
        "the same, and every exit is left to the kubelet's own restart",
    ),
];

#[test]
fn the_lifecycle_decides_about_every_recorded_scenario_as_written_down() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let (mut wrong, mut expected) = (Vec::new(), Vec::new());
    for trace in Trace::all().expect("the traces") {
        let path = folder.join(format!("{}.txt", trace.name));
        let told = tell(&trace);
        if update {
            fs::write(&path, &told).expect("the file can be written");
        }
        if fs::read_to_string(&path).unwrap_or_default() != told {
            wrong.push(format!("{}: decided now:\n{told}", path.display()));
        }
        expected.push(path);
    }
    let all = fs::read_dir(&folder)
        .expect("the folder")
        .map(|f| f.expect("a file").path());
    let orphans: Vec<_> = all.filter(|p| !expected.contains(p)).collect();
    assert!(orphans.is_empty(), "without a recording: {orphans:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn tell(trace: &Trace) -> String {
    let mut out = format!("{}\n{}\n", trace.name, trace.about);
    for (pod, spec) in trace.pods() {
        let _ = writeln!(out, "\n== pod {pod}");
        let mut before = Vec::new();
        for (setting, title) in SETTINGS {
            let told = tell_pod(trace, &pod, &spec, setting);
            let _ = writeln!(out, "-- {title}");
            out += if before.contains(&told) {
                "as before\n"
            } else {
                &told
            };
            before.push(told);
        }
    }
    out
}

/// The recording of a pod, applied to a gang.
fn tell_pod(trace: &Trace, pod: &str, spec: &PodSpec, setting: Setting) -> String {
    let node = trace.seen(pod).find_map(|(_, s)| s.node_name.clone());
    let origin = trace.origin();
    let mut gang = Gang::new(setting, spec, node.as_deref().unwrap_or("n1"), origin);
    let mut out = format!("tier {}\n", gang.tier);
    // The gang before its first incident. Every later event is treated as the first event of the
    // incident.
    let (mut calm, mut before, mut at_first) = (gang.clone(), Vec::new(), String::new());
    for (ms, seen) in trace.seen(pod) {
        let at = origin + TimeDelta::milliseconds(ms);
        out += &wait(&mut gang, origin, at);
        gang.now = at;
        gang.sees(seen);
        let _ = writeln!(out, "{ms:>7} {}", text::seen(seen));
        let lines = decisions(&mut gang);
        if lines != before {
            out += &indented(&lines);
        }
        before = lines;
        calm.now = at;
        calm.sees(seen);
        if gang.is_calm() {
            calm = gang.clone();
            continue;
        }
        let alone = alone(calm.clone());
        if !at_first.is_empty() && alone != at_first {
            let _ = writeln!(out, "        seen first: {alone}");
        }
        at_first = alone;
    }
    let end = gang.now + AFTERWARDS;
    out + &wait(&mut gang, origin, end)
}

/// Decisions of a gang for which this event is the first of a failure, within the wait for a
/// report.
fn alone(mut gang: Gang) -> String {
    let seen = gang.now;
    let mut lines = decisions(&mut gang);
    while let Some(next) = gang
        .next_look()
        .filter(|t| gang.is_calm() && *t < seen + PATIENCE)
    {
        gang.now = next;
        lines.extend(decisions(&mut gang));
    }
    let after = (gang.now - seen).num_seconds();
    let told = lines
        .iter()
        .find(|l| l.contains("incident:"))
        .or(lines.first());
    let told = told.map_or("nothing", |l| l.trim_start_matches("record: "));
    if after > 0 {
        format!("{told} (after {after} s)")
    } else {
        told.to_owned()
    }
}

/// Runs the deadlines until a time.
fn wait(gang: &mut Gang, origin: DateTime<Utc>, until: DateTime<Utc>) -> String {
    let mut out = String::new();
    while let Some(next) = gang.next_look().filter(|t| *t < until) {
        gang.now = next.max(gang.now + TimeDelta::milliseconds(1));
        let lines = decisions(gang);
        if !lines.is_empty() {
            let _ = writeln!(
                out,
                "{:>7} (a deadline)",
                (gang.now - origin).num_milliseconds()
            );
            out += &indented(&lines);
        }
    }
    out
}

fn decisions(gang: &mut Gang) -> Vec<String> {
    gang.passes().iter().flat_map(text::step).collect()
}

fn indented(lines: &[String]) -> String {
    let mut out = String::new();
    for line in lines {
        out += "        - ";
        out += line;
        out += "\n";
    }
    out
}
