use std::collections::BTreeMap;
use std::fmt::Write;

use chrono::TimeDelta;
use lockstep_api::names::WHOLE;
use lockstep_api::words::{count, gpu_hours, time};
use lockstep_api::workload::{
    Backend, Cause, CheckpointOutcome, IncidentStage, Phase, TrainingProgress,
};

use super::{DomainRequest, GangPlace, NodeShare, OpenRestart, PastFailure, StatusReport};
use crate::view::age::{age, precise, span};
use crate::view::brief::Brief;
use crate::view::table::{Cell, Table, Tone, phase_tone};
use crate::view::{RenderOptions, View, workload_name};

impl View for StatusReport {
    fn screen(&self, options: &RenderOptions) -> String {
        let phase = self.phase.map_or("Unseen", Phase::as_str);
        let phase = phase_tone(self.phase).paint(phase, options);
        let mut out = format!("{}/{}: {phase}", self.namespace, self.workload);
        if !self.ready.is_empty() {
            let _ = write!(out, ", {} ready", self.ready);
        }
        let _ = writeln!(
            out,
            ", attempt {}, {} accelerators, age {}",
            self.attempt,
            self.accelerators,
            age(self.created, options.now)
        );
        match (self.reason.as_str(), self.message.as_str()) {
            ("", "") => {}
            (reason, "") => {
                let _ = writeln!(out, "{reason}");
            }
            (reason, message) => {
                let _ = writeln!(out, "{reason}: {message}");
            }
        }
        if let Some(page) = &self.page {
            let _ = writeln!(out, "See {page}");
        }
        if let Some(line) = queued(&self.queue) {
            let _ = writeln!(out, "{line}");
        }
        match self.backend {
            None | Some(Backend::Lockstep) => {}
            Some(Backend::Both) => {
                out.push_str("Backend: Both (native groups in kube-scheduler)\n");
            }
            Some(Backend::Kubernetes) => {
                out.push_str("Backend: Kubernetes (kube-scheduler places and preempts)\n");
            }
        }
        if let Some(progress) = &self.progress {
            let _ = writeln!(out, "{}", training(progress, options));
        }
        if let Some(line) = requested(&self.checkpoint_requests, options) {
            let _ = writeln!(out, "{line}");
        }
        if let Some(plan) = &self.node_leaving {
            let _ = writeln!(out, "NodeLeaving: {plan}");
        }
        let nodes = Brief::of(&self.nodes, options.wide, NodeShare::is_ready);
        for table in [self.groups(), self.nodes(&nodes.rows)] {
            if !table.is_empty() {
                out.push('\n');
                out.push_str(&table.render(options));
            }
        }
        if let Some(note) = nodes.note("node", "ready") {
            if nodes.rows.is_empty() {
                out.push('\n');
            }
            out.push_str(&note);
        }
        for restart in &self.restarting {
            out.push('\n');
            out.push_str(&under_way(restart, options));
        }
        let failures = self.failures(options);
        if !failures.is_empty() {
            out.push('\n');
            out.push_str(&failures.render(options));
        }
        let window = span(TimeDelta::seconds(self.budget.window_seconds));
        let left = format!("{} of {}", self.budget.left, self.budget.of);
        let tone = match self.budget.left {
            0 => Tone::Bad,
            _ => Tone::Plain,
        };
        let left = tone.paint(&left, options);
        let _ = writeln!(out, "\nRestarts left: {left} within {window}");
        for (at, next) in self.next.iter().enumerate() {
            let label = if at == 0 { "Next:" } else { "     " };
            let _ = writeln!(out, "{label} {next}");
        }
        out
    }

    fn names(&self) -> Vec<String> {
        vec![workload_name(&self.workload)]
    }
}

impl StatusReport {
    fn groups(&self) -> Table {
        let mut table = Table::new(&["GROUP", "READY", "SUCCEEDED", "FAILED", "DESIRED"]);
        for g in &self.groups {
            let failed = match g.failed {
                0 => Tone::Plain,
                _ => Tone::Bad,
            };
            table.row([
                g.group.clone().into(),
                g.ready.to_string().into(),
                g.succeeded.to_string().into(),
                Cell::new(g.failed.to_string(), failed),
                g.desired.to_string().into(),
            ]);
        }
        table
    }

    fn nodes(&self, shares: &[&NodeShare]) -> Table {
        // The column for `topology.kubernetes.io/rack` is called RACK.
        let keys = self.topology.iter();
        let names = keys.map(|key| key.rsplit('/').next().unwrap_or_default().to_uppercase());
        let domain = names.collect::<Vec<String>>().join("/");
        let mut header = vec!["NODE", "READY", "MEMBERS"];
        if !domain.is_empty() {
            header.insert(1, &domain);
        }
        let mut table = Table::new(&header);
        for share in shares {
            let ready = share.ready.map(|ready| format!("{ready}/{}", share.count));
            let tone = match share.ready {
                Some(_) if !share.is_ready() => Tone::Busy,
                _ => Tone::Plain,
            };
            let mut row = vec![
                Cell::from(share.node.clone().unwrap_or_default()),
                Cell::new(ready.unwrap_or_default(), tone),
                share.members.join(" ").into(),
            ];
            if !domain.is_empty() {
                row.insert(1, share.domain.clone().unwrap_or_default().into());
            }
            table.row(row);
        }
        table
    }

    fn failures(&self, options: &RenderOptions) -> Table {
        let mut table = Table::new(&[
            "FAILED",
            "+DOMAIN",
            "ATTEMPT",
            "ACTION",
            "COUNTED",
            "BACK AFTER",
            "LOST",
            "CAUSE",
        ]);
        for failure in &self.failures {
            table.row(row(failure, options));
        }
        table
    }
}

fn training(progress: &TrainingProgress, options: &RenderOptions) -> String {
    let ago = |time| age(Some(time), options.now);
    let mut step = format!("Step {}", progress.step);
    if let Some(total) = progress.total {
        let _ = write!(step, " of {total} ({})", progress.summary);
    }
    let _ = write!(step, ", {} ago", ago(progress.step_time));
    let line = match (progress.checkpoint_step, progress.checkpoint_time) {
        (Some(saved), Some(time)) => {
            format!("{step}; checkpoint of step {saved}, {} ago", ago(time))
        }
        _ => format!("{step}; no checkpoint reported"),
    };
    let metrics = progress.metrics.iter();
    metrics.fold(line, |line, m| format!("{line}; {}={}", m.name, m.value))
}

/// The place of the first waiting gang, and the number of others.
fn queued(places: &[GangPlace]) -> Option<String> {
    let (first, others) = places.split_first()?;
    let mut line = String::from("Queue: ");
    if first.gang != WHOLE {
        let _ = write!(line, "{}: ", first.gang);
    }
    line.push_str(&first.queue.summary());
    if !others.is_empty() {
        let _ = write!(line, "; behind it {}", count(others.len(), "gang"));
        line.push_str(" of this workload");
    }
    Some(line)
}

/// The newest request. Several domains: with the number of domains by outcome.
fn requested(requests: &[DomainRequest], options: &RenderOptions) -> Option<String> {
    let newest = requests.iter().max_by_key(|r| r.request.requested_at)?;
    let request = &newest.request;
    let mut line = format!(
        "Checkpoint requested ({}), {} ago: ",
        request.reason.as_str(),
        age(Some(request.requested_at), options.now)
    );
    if newest.domain != WHOLE {
        let _ = write!(line, "{}: ", newest.domain);
    }
    let until = request.deadline.map(time).unwrap_or_default();
    let open = || format!("the answer is awaited until {until}");
    line.push_str(&request.summary().unwrap_or_else(open));
    if requests.len() > 1 {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for r in requests {
            let outcome = r.request.outcome.map_or("open", CheckpointOutcome::as_str);
            *counts.entry(outcome).or_default() += 1;
        }
        let counts: Vec<String> = counts.iter().map(|(o, n)| format!("{n} {o}")).collect();
        let _ = write!(
            line,
            "; {} restart domains: {}",
            requests.len(),
            counts.join(", ")
        );
    }
    Some(line)
}

fn row(failure: &PastFailure, options: &RenderOptions) -> [String; 8] {
    let recovered = failure.recovered_after_ms.map(TimeDelta::milliseconds);
    [
        format!("{} ago", age(Some(failure.time), options.now)),
        failure.domain.clone(),
        failure.attempt.to_string(),
        failure.action.clone(),
        if failure.counted { "yes" } else { "no" }.to_owned(),
        recovered.map(precise).unwrap_or_default(),
        gpu_hours(failure.lost_accelerator_seconds),
        words(&failure.cause),
    ]
}

fn under_way(restart: &OpenRestart, options: &RenderOptions) -> String {
    let stage = match restart.stage {
        None => "the other members continue to run",
        Some(IncidentStage::Decided) => "decided: no member is stopped yet",
        Some(IncidentStage::Ordered) => "ordered: members stop and return to the barrier",
        Some(IncidentStage::Arrived) => {
            "arrived: all members have stopped, and start together once each has a pod"
        }
    };
    let ago = age(Some(restart.since), options.now);
    let wait = restart
        .not_before
        .filter(|at| *at > options.now)
        .map_or_else(String::new, |at| {
            format!(", starts after a back-off of {}", span(at - options.now))
        });
    let domain = match restart.domain.as_str() {
        WHOLE => String::new(),
        part => format!("{part} "),
    };
    let action = match restart.stage {
        None => format!("Recreating pods {domain}at"),
        Some(_) => format!("Restarting {domain}to"),
    };
    let mut out = format!(
        "{action} attempt {} ({}), since {ago}{wait}\n  {stage}\n",
        restart.attempt, restart.action
    );
    if let Some(at_barrier) = &restart.arrivals {
        let (arrived, expected) = (at_barrier.arrived, at_barrier.expected);
        let late = match at_barrier.late.as_slice() {
            [] => String::new(),
            late => format!(", late: {}", late.join(", ")),
        };
        let _ = writeln!(out, "  {arrived} of {expected} arrived{late}");
    }
    let _ = writeln!(out, "  cause: {}", words(&restart.cause));
    out
}

/// Cause of a failure in words, without a full stop.
pub(super) fn words(cause: &Cause) -> String {
    let mut text = match (cause.exit_code, cause.container.as_str()) {
        (Some(code), "") => format!("exit code {code}"),
        (Some(code), container) => format!("container {container} exited with code {code}"),
        (None, "") => cause.kind.as_str().to_owned(),
        (None, container) => format!("{} of container {container}", cause.kind.as_str()),
    };
    if !cause.reason.is_empty() && cause.reason != cause.kind.as_str() {
        let _ = write!(text, " ({})", cause.reason);
    }
    if !cause.pod.is_empty() {
        let _ = write!(text, " in pod {}", cause.pod);
    }
    if !cause.node.is_empty() {
        let _ = write!(text, " on node {}", cause.node);
    }
    if !cause.message.is_empty() {
        let _ = write!(text, ": {}", cause.message);
    }
    text
}
