//! The explanation for people.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};
use lockstep_api::workload::Phase;

use super::{GangReportState, GangStory, WorkloadReport};
use crate::table::Table;

impl fmt::Display for WorkloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = self
            .phase
            .map_or("not seen by the operator yet", Phase::as_str);
        let preempted = match self.preemptions {
            0 => "never preempted".to_owned(),
            1 => "preempted once".to_owned(),
            n => format!("preempted {n} times"),
        };
        writeln!(
            f,
            "{}/{}: {phase}, {preempted}",
            self.namespace, self.workload
        )?;
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
        for table in [&conditions, &gangs].into_iter().filter(|t| !t.is_empty()) {
            write!(f, "\n{table}")?;
        }
        for gang in &self.gangs {
            write!(f, "{}", Details(gang))?;
        }
        let mut events = Table::new(&["TIME", "TYPE", "REASON", "OBJECT", "COUNT", "EVENT"]);
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
            writeln!(f, "\nno events")
        } else {
            write!(f, "\n{events}")
        }
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
        }
    }
}

/// What does not fit into a row.
struct Details<'a>(&'a GangStory);

impl fmt::Display for Details<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gang = self.0;
        if let Some(evicts) = &gang.evicts {
            let when = when(Some(evicts.decided_at));
            writeln!(
                f,
                "\n{}: preempts since {when} (intent {}): {}",
                gang.gang, evicts.intent, evicts.explanation
            )?;
            let mut victims = Table::new(&["VICTIM", "PRIORITY", "PODS", "LOST WORK"]);
            for v in &evicts.victims {
                let name = format!("{} {}/{}", v.kind.to_lowercase(), v.namespace, v.name);
                victims.row([
                    name,
                    v.priority.to_string(),
                    v.pods.to_string(),
                    v.cost.to_string(),
                ]);
            }
            write!(f, "{victims}")?;
        } else if !gang.message.is_empty() {
            writeln!(f, "\n{}: {}", gang.gang, gang.message)?;
        }
        if let Some(c) = &gang.preempted {
            writeln!(
                f,
                "{}: {} at {}: {}",
                gang.gang,
                c.reason,
                when(Some(c.last_transition_time)),
                c.message
            )?;
        }
        for (node, reason) in &gang.avoids {
            writeln!(f, "{}: stays away from node {node}: {reason}", gang.gang)?;
        }
        Ok(())
    }
}

fn when(time: Option<DateTime<Utc>>) -> String {
    time.map_or_else(
        || "-".to_owned(),
        |t| t.to_rfc3339_opts(SecondsFormat::Secs, true),
    )
}
