use lockstep_scheduler::IdleAccelerators;

use super::{QueueReport, QueueState, QueuedGang};
use crate::view::age::age;
use crate::view::table::{Cell, Table, Tone};
use crate::view::{RenderOptions, View, workload_name};

impl View for QueueReport {
    fn screen(&self, options: &RenderOptions) -> String {
        let idle = self.idle.as_ref().map(idle).unwrap_or_default();
        if self.gangs.is_empty() {
            return format!("no gang is queued\n{idle}");
        }
        let mut table = Table::new(&[
            "PLACE",
            "NAMESPACE",
            "WORKLOAD",
            "PRIORITY",
            "SHARE",
            "STATE",
            "QUEUED",
            "+POD GROUP",
            "RESERVED",
            "REASON",
            "MESSAGE",
        ]);
        for gang in &self.gangs {
            table.row(row(gang, options));
        }
        table.render(options) + &idle
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for name in self.gangs.iter().map(|g| workload_name(&g.workload)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// Empty if the cluster has no idle accelerators.
fn idle(idle: &IdleAccelerators) -> String {
    let parts = [
        (idle.reserved, "reserved"),
        (idle.fragmented, "too scattered for the waiting gangs"),
        (idle.no_demand, "requested by no gang"),
        (idle.unusable, "on unusable nodes"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, why)| format!("{n} {why}"))
        .collect();
    if parts.is_empty() {
        return String::new();
    }
    format!("\nIdle accelerators: {}\n", parts.join(", "))
}

fn row(gang: &QueuedGang, options: &RenderOptions) -> [Cell; 11] {
    let absent = || "-".to_owned();
    let nodes = gang.reservation.iter().flat_map(|r| &r.nodes);
    let nodes = nodes.map(|n| n.node.as_str());
    let targets = gang.moves_to.iter().map(|n| n.node.as_str());
    let nodes: Vec<&str> = nodes.chain(targets).collect();
    let reserved = match nodes.as_slice() {
        [] => absent(),
        [first, _, _, _, ..] if !options.wide => {
            format!("{first} and {} more", nodes.len() - 1)
        }
        few => few.join(","),
    };
    let share = gang.share.map(|share| format!("{:.1}%", share * 100.0));
    [
        gang.position.map_or_else(absent, |p| p.to_string()).into(),
        gang.namespace.clone().into(),
        gang.workload.clone().into(),
        gang.priority.to_string().into(),
        share.unwrap_or_else(absent).into(),
        Cell::new(gang.state.words(), gang.state.tone()),
        age(gang.queued_at, options.now).into(),
        gang.pod_group.clone().into(),
        reserved.into(),
        gang.reason.clone().into(),
        gang.message.clone().into(),
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
            Self::Moves => "moves",
            Self::Held => "held",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Self::Held => Tone::Bad,
            Self::Waits | Self::Reserves | Self::Replaces | Self::Preempts | Self::Moves => {
                Tone::Busy
            }
            Self::Grows => Tone::Good,
        }
    }
}
