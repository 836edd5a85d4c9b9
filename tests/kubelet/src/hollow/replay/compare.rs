//! Comparison of phase, containers and conditions of each distinct status, of their order, and of
//! their times.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::TOLERANCE;
use super::cluster::Shown;
use crate::traces::Trace;

/// Time of first appearance and text of a distinct status.
type Line = (i64, String);

/// Differences between the replay of a pod and its recording: lines with `-` were recorded and not
/// replayed, lines with `+` were replayed and not recorded.
pub(super) fn differences(trace: &Trace, pod: &str, shown: &[Shown], end: i64) -> Vec<String> {
    let recorded = distinct(trace.seen(pod).map(|(ms, s)| {
        let grace = json!(s.deletion_grace_period_seconds);
        (ms, text(&s.watch, &grace, &s.status))
    }));
    let replayed = distinct(shown.iter().map(|s| {
        let grace = &s.pod["metadata"]["deletionGracePeriodSeconds"];
        (s.ms, text(s.watch, grace, &s.pod["status"]))
    }));
    let mut out = Vec::new();
    let mut drift = 0;
    let mut last = 0;
    for step in align(&recorded, &replayed) {
        match step {
            Step::Both(was, is) => {
                let late = was.0 - is.0 - drift;
                // The kubelet checks again up to half a back-off after its end.
                let jitter = if was.1.contains("BackOff") {
                    (is.0 - last) / 2
                } else {
                    0
                };
                if late < -TOLERANCE || late > TOLERANCE + jitter {
                    out.push(format!("{pod} {} ms late: {}", -late, was.1));
                }
                if jitter > 0 {
                    drift += late;
                }
                last = is.0;
            }
            Step::Recorded(line) => out.push(format!("{pod} - {}", line.1)),
            // The recording can end before this status.
            Step::Replayed(line) if line.0 + drift + TOLERANCE >= end => {}
            Step::Replayed(line) => out.push(format!("{pod} + {}", line.1)),
        }
    }
    out
}

/// Distinct statuses, from the first status of a kubelet. Equal consecutive statuses are one.
fn distinct(all: impl Iterator<Item = Line>) -> Vec<Line> {
    let mut out: Vec<Line> = all
        .filter(|(_, text)| !text.starts_with("Pending |"))
        .collect();
    out.dedup_by(|b, a| a.1 == b.1);
    out
}

fn text(watch: &str, grace: &Value, status: &Value) -> String {
    let mut out = String::new();
    if watch == "DELETED" {
        out += "gone ";
    }
    if let Some(grace) = grace.as_i64() {
        let _ = write!(out, "deleted:{grace} ");
    }
    out += status["phase"].as_str().unwrap_or_default();
    if let Some(reason) = status["reason"].as_str() {
        let _ = write!(out, "({reason})");
    }
    for list in ["initContainerStatuses", "containerStatuses"] {
        for c in status[list].as_array().into_iter().flatten() {
            container(&mut out, c);
        }
    }
    out += " |";
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut conditions: Vec<String> = conditions.filter_map(condition).collect();
    conditions.sort();
    for c in conditions {
        let _ = write!(out, " {c}");
    }
    out
}

/// `name:state/code/reason xRESTARTS [R][S] last/code/reason`.
fn container(out: &mut String, c: &Value) {
    let _ = write!(out, " {}:", c["name"].as_str().unwrap_or_default());
    for (kind, v) in c["state"].as_object().into_iter().flatten().take(1) {
        *out += kind;
        ended(out, v);
    }
    let _ = write!(out, " x{}", c["restartCount"]);
    for (key, letter) in [("ready", 'R'), ("started", 'S')] {
        if c[key] == true {
            out.push(letter);
        }
    }
    if let Some(last) = c["lastState"].get("terminated") {
        *out += " last";
        ended(out, last);
        if last["finishedAt"].is_null() {
            *out += "/no-time";
        }
    }
}

fn ended(out: &mut String, v: &Value) {
    if let Some(code) = v["exitCode"].as_i64() {
        let _ = write!(out, "/{code}");
    }
    if let Some(reason) = v["reason"].as_str() {
        let _ = write!(out, "/{reason}");
    }
}

fn condition(c: &Value) -> Option<String> {
    let type_ = c["type"].as_str()?;
    let short = match type_ {
        "PodScheduled" => return None,
        "PodReadyToStartContainers" => "Sandbox",
        "ContainersReady" => "Containers",
        "AllContainersRestarting" => "Restarting",
        other => other,
    };
    let reason = c["reason"]
        .as_str()
        .map_or(String::new(), |r| format!("({r})"));
    Some(format!("{short}={}{reason}", &c["status"].as_str()?[..1]))
}

enum Step<'a> {
    Both(&'a Line, &'a Line),
    Recorded(&'a Line),
    Replayed(&'a Line),
}

/// The longest common subsequence, as steps of a diff.
fn align<'a>(a: &'a [Line], b: &'a [Line]) -> Vec<Step<'a>> {
    let mut common = vec![vec![0_usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = if a[i].1 == b[j].1 {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i].1 == b[j].1 {
            out.push(Step::Both(&a[i], &b[j]));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && common[i + 1][j] >= common[i][j + 1]) {
            out.push(Step::Recorded(&a[i]));
            i += 1;
        } else {
            out.push(Step::Replayed(&b[j]));
            j += 1;
        }
    }
    out
}
