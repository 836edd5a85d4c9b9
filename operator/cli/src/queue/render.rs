//! The queue for people.

use std::fmt;

use chrono::SecondsFormat;

use super::{QueueAnswer, QueueState, QueuedGang};
use crate::table::Table;

impl fmt::Display for QueueAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gangs.is_empty() {
            return writeln!(f, "no gang waits");
        }
        let mut table = Table::new(&[
            "PLACE",
            "NAMESPACE",
            "WORKLOAD",
            "PRIORITY",
            "SHARE",
            "STATE",
            "QUEUED",
            "RESERVED",
            "REASON",
            "MESSAGE",
        ]);
        for gang in &self.gangs {
            table.row(row(gang));
        }
        write!(f, "{table}")
    }
}

fn row(gang: &QueuedGang) -> [String; 10] {
    let absent = || "-".to_owned();
    let or_absent = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    let reserved = gang.reservation.as_ref().map(|reservation| {
        let nodes: Vec<&str> = reservation.nodes.iter().map(|n| n.node.as_str()).collect();
        match nodes.as_slice() {
            [first, _, _, _, ..] => format!("{first} and {} more", nodes.len() - 1),
            few => few.join(","),
        }
    });
    [
        gang.position.map_or_else(absent, |p| p.to_string()),
        gang.namespace.clone(),
        gang.workload.clone(),
        gang.priority.to_string(),
        gang.share
            .map_or_else(absent, |share| format!("{:.1}%", share * 100.0)),
        gang.state.words().to_owned(),
        gang.queued_at
            .map_or_else(absent, |at| at.to_rfc3339_opts(SecondsFormat::Secs, true)),
        reserved.unwrap_or_else(absent),
        or_absent(&gang.reason).unwrap_or_else(absent),
        or_absent(&gang.message).unwrap_or_else(absent),
    ]
}

impl QueueState {
    fn words(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Reserves => "reserves",
            Self::Replaces => "replaces",
            Self::Grows => "grows",
            Self::Preempts => "preempts",
            Self::Held => "held",
        }
    }
}
