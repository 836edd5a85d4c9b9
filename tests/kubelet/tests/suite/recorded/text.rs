//! Text of events and decisions.

use std::fmt::Write as _;

use lockstep_api::workload::{Cause, Incident, PodReplacement, TrainingWorkloadStatus};
use lockstep_kubelet::traces::Seen;
use lockstep_lifecycle::Action;
use serde_json::Value;

use super::gang::Step;

/// A line for a recorded status.
pub fn seen(s: &Seen) -> String {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let mut words = vec![text(&s.status["phase"])];
    if s.watch == "DELETED" {
        words.insert(0, "gone:".into());
    }
    words.extend(s.status["reason"].as_str().map(|r| format!("({r})")));
    if let Some(grace) = s.deletion_grace_period_seconds {
        words.push(format!("deleted with {grace} s"));
    }
    for list in ["initContainerStatuses", "containerStatuses"] {
        words.extend(
            s.status[list]
                .as_array()
                .into_iter()
                .flatten()
                .map(container),
        );
    }
    for c in s.status["conditions"].as_array().into_iter().flatten() {
        let (type_, reason) = (text(&c["type"]), text(&c["reason"]));
        let unready = type_ == "Ready" && c["status"] == "False" && reason.is_empty();
        let shown = ["DisruptionTarget", "AllContainersRestarting"].contains(&type_.as_str())
            && c["status"] == "True";
        if shown || unready {
            words.push(format!("{type_}={}({reason})", text(&c["status"])));
        }
    }
    words.join(" ")
}

fn container(c: &Value) -> String {
    let state = c["state"].as_object().and_then(|s| s.iter().next());
    let mut out = format!("{}:", c["name"].as_str().unwrap_or_default());
    if let Some((kind, v)) = state {
        out += kind;
        out += &ended(v);
    }
    if c["restartCount"] != 0 {
        let _ = write!(out, " x{}", c["restartCount"]);
    }
    if let Some(last) = c["lastState"].get("terminated") {
        let _ = write!(out, " last{}", ended(last));
        if last["finishedAt"].is_null() {
            out += "(no time)";
        }
    }
    out
}

fn ended(v: &Value) -> String {
    let code = v.get("exitCode").map(|c| format!("/{c}"));
    let reason = v["reason"].as_str().map(|r| format!("/{r}"));
    code.unwrap_or_default() + &reason.unwrap_or_default()
}

/// Lines for a pass.
pub fn step(step: &Step) -> Vec<String> {
    match step {
        Step::Record(statuses) => changes(&statuses.0, &statuses.1),
        Step::Act(actions) => vec![format!("act: {}", self::actions(actions))],
    }
}

fn actions(actions: &[Action]) -> String {
    let one = |a: &Action| match a {
        Action::DryRun { .. } => "DryRun".to_owned(),
        Action::Create(o) => format!("Create {}", o.kind()),
        Action::Update { object, .. } => format!("Update {}", object.kind()),
        Action::Unpublish { uid, .. } => format!("Unpublish {uid}"),
        Action::Publish { uid, .. } => format!("Publish {uid}"),
        Action::MarkDisrupted { uid, .. } => format!("MarkDisrupted {uid}"),
        Action::DeletePod { uid, .. } => format!("DeletePod {uid}"),
        Action::EndPod { uid, .. } => format!("EndPod {uid}"),
        Action::RemoveGate { uid, .. } => format!("RemoveGate {uid}"),
        Action::CreatePod { member, .. } => format!("CreatePod {member}"),
        Action::DeleteSurplus { .. } => "DeleteSurplus".to_owned(),
        Action::DeleteWorkload { .. } => "DeleteWorkload".to_owned(),
    };
    actions.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Changes of a record in the ledger.
fn changes(before: &TrainingWorkloadStatus, after: &TrainingWorkloadStatus) -> Vec<String> {
    let old = ledger(before);
    let new = ledger(after).into_iter();
    new.filter(|line| !old.contains(line))
        .map(|l| format!("record: {l}"))
        .collect()
}

/// The parts of a status that affect decisions, and the history.
fn ledger(s: &TrainingWorkloadStatus) -> Vec<String> {
    let mut out = Vec::new();
    for d in &s.domains {
        out.push(match &d.incident {
            None => format!("no incident at attempt {}", d.attempt),
            Some(i) => incident(i),
        });
        out.extend(d.replacement.as_ref().map(replacement));
        let well = if d.healthy_since.is_some() {
            "healthy"
        } else {
            "not healthy"
        };
        out.push(format!("{well}, {} tries in a row", d.in_place_tries));
        out.push(format!(
            "{} restarts by the kubelet are accounted for",
            d.restarts_seen
        ));
    }
    for g in &s.gangs {
        out.extend(
            g.released
                .iter()
                .map(|_| "the placement is released".to_owned()),
        );
        out.extend(
            g.backoff
                .iter()
                .map(|b| format!("waits: {}: {}", b.reason, b.message)),
        );
        out.extend(
            g.avoid
                .iter()
                .map(|a| format!("avoids {}: {}", a.node, a.reason)),
        );
    }
    let r = &s.restarts;
    out.push(format!(
        "restarts: {} ({} in place), {} charged",
        r.total, r.in_place, r.counted
    ));
    for g in s.groups.iter().filter(|g| !g.completed_indexes.is_empty()) {
        out.push(format!("completed: {}", g.completed_indexes));
    }
    for h in &s.history {
        let counted = if h.counted { "counted" } else { "not counted" };
        out.push(format!(
            "history: {:?} for {}, {counted}, attempt {}",
            h.action,
            cause(&h.cause),
            h.attempt
        ));
    }
    for c in s
        .conditions
        .iter()
        .filter(|c| ["Failed", "Complete"].contains(&c.type_.as_str()))
    {
        out.push(format!(
            "{} {:?}: {}: {}",
            c.type_, c.status, c.reason, c.message
        ));
    }
    out
}

fn incident(i: &Incident) -> String {
    let counted = if i.counted { "charged" } else { "not charged" };
    format!(
        "incident: {:?} for {}, {counted}, attempt {}, {:?}, replaces [{}]",
        i.action,
        cause(&i.cause),
        i.attempt,
        i.stage,
        i.replace.join(" ")
    )
}

fn replacement(r: &PodReplacement) -> String {
    let counted = if r.counted { "charged" } else { "not charged" };
    format!(
        "replacement of [{}] for {}, {counted}",
        r.members.join(" "),
        cause(&r.cause)
    )
}

fn cause(c: &Cause) -> String {
    let mut out = c.kind.as_str().to_owned();
    if let Some(code) = c.exit_code {
        let _ = write!(out, " {}:{code}", c.container);
    }
    if !c.reason.is_empty() {
        let _ = write!(out, "/{}", c.reason);
    }
    if !c.message.is_empty() {
        let short: String = c.message.chars().take(40).collect();
        let _ = write!(out, " ({short})");
    }
    out
}
