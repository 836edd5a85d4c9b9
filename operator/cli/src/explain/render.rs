use std::fmt::Write;

use lockstep_api::scheduling::NodeDemand;
use lockstep_api::workload::Phase;

use super::{GangReportState, GangStory, WorkloadReport};
use crate::view::age::age;
use crate::view::table::{Table, phase_tone};
use crate::view::{RenderOptions, View, workload_name};

impl View for WorkloadReport {
    fn screen(&self, options: &RenderOptions) -> String {
        let when = |time| age(time, options.now);
        let phase = self.phase.map_or("not reconciled yet", Phase::as_str);
        let preempted = match self.preemptions {
            0 => "never preempted".to_owned(),
            1 => "preempted once".to_owned(),
            n => format!("preempted {n} times"),
        };
        let phase = phase_tone(self.phase).paint(phase, options);
        let mut out = format!(
            "{}/{}: {phase}, {preempted}\n",
            self.namespace, self.workload
        );
        let mut conditions = Table::new(&["CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"]);
        for c in &self.conditions {
            let since = when(Some(c.last_transition_time));
            conditions.row([
                c.type_.clone(),
                c.status.as_str().to_owned(),
                c.reason.clone(),
                since,
                c.message.clone(),
            ]);
        }
        let mut gangs = Table::new(&["GANG", "STATE", "PRIORITY", "QUEUED", "MEMBERS", "NODES"]);
        for gang in &self.gangs {
            gangs.row([
                gang.gang.clone(),
                gang.state.words().to_owned(),
                gang.priority.to_string(),
                when(gang.queued_at),
                gang.members.to_string(),
                gang.nodes.to_string(),
            ]);
        }
        if !conditions.is_empty() {
            out.push('\n');
            out.push_str(&conditions.render(options));
        }
        if let Some(page) = &self.page {
            let _ = writeln!(out, "See {page}");
        }
        if !gangs.is_empty() {
            out.push('\n');
            out.push_str(&gangs.render(options));
        }
        for gang in &self.gangs {
            details(&mut out, gang, options);
        }
        let mut events = Table::new(&["AGE", "TYPE", "REASON", "OBJECT", "COUNT", "EVENT"]);
        for e in &self.events {
            events.row([
                when(e.time),
                if e.warning { "Warning" } else { "Normal" }.to_owned(),
                e.reason.clone(),
                format!("{}/{}", e.kind, e.name),
                e.count.to_string(),
                e.message.clone(),
            ]);
        }
        if events.is_empty() {
            out.push_str("\nno events\n");
        } else {
            out.push('\n');
            out.push_str(&events.render(options));
        }
        out
    }

    fn names(&self) -> Vec<String> {
        vec![workload_name(&self.workload)]
    }
}

impl GangReportState {
    fn words(self) -> &'static str {
        match self {
            Self::Unseen => "unseen",
            Self::Waits => "waits",
            Self::Held => "held",
            Self::Preempts => "preempts",
            Self::Placed => "placed",
            Self::IsPreempted => "is preempted",
            Self::Ended => "ended",
        }
    }
}

/// Prints details outside the row. Writing to a String cannot fail.
fn details(out: &mut String, gang: &GangStory, options: &RenderOptions) {
    let name = &gang.gang;
    if let Some(evicts) = &gang.evicts {
        let ago = age(Some(evicts.decided_at), options.now);
        let _ = writeln!(
            out,
            "\n{name}: preempts since {ago} (intent {}): {}",
            evicts.intent, evicts.explanation
        );
    } else if !gang.message.is_empty() {
        let _ = writeln!(out, "\n{name}: {}", gang.message);
    }
    if let Some(queue) = &gang.queue {
        let _ = writeln!(out, "{name}: {}", queue.summary());
    }
    if let Some(demand) = &gang.demand {
        let _ = writeln!(out, "{name}: {}", demanded(demand, options));
    }
    if let Some(c) = &gang.preempted {
        let ago = age(Some(c.last_transition_time), options.now);
        let _ = writeln!(out, "{name}: {} {ago} ago: {}", c.reason, c.message);
    }
    for (node, reason) in &gang.avoids {
        let _ = writeln!(out, "{name}: avoids node {node}: {reason}");
    }
}

/// The current try; its words are in the message of a waiting gang.
fn demanded(demand: &NodeDemand, options: &RenderOptions) -> String {
    let ago = |time| age(Some(time), options.now);
    let (number, first) = (demand.number, ago(demand.requested_at));
    let state = match demand.failed_at {
        Some(at) => format!("failed {} ago", ago(at)),
        None => format!("began {} ago", ago(demand.since)),
    };
    format!("nodes were first requested {first} ago; try {number} {state}")
}
