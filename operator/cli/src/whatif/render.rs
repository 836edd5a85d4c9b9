use std::fmt;

use lockstep_api::words::{count, exact_gpu_hours, gpu_hours};
use lockstep_scheduler::messages::is_useful_bound;

use super::report::{EvictedUnit, GangReport, SecondBest, Verdict, WhatIfReport};
use crate::view::table::{Table, Tone};
use crate::view::{RenderOptions, View, workload_name};

/// Most named victims of the next best set; further ones are only counted.
const NAMED: usize = 4;

impl View for WhatIfReport {
    fn screen(&self, options: &RenderOptions) -> String {
        let victims = self.gangs.iter().map(|g| g.victims.len()).sum::<usize>();
        let undecided = self.gangs.iter().any(|g| g.verdict == Verdict::Unknown);
        let verdict = match (self.fits, victims) {
            (false, _) if undecided => "unknown".to_owned(),
            (false, _) => "does not fit".to_owned(),
            (true, 0) => "fits".to_owned(),
            (true, n) => format!("fits after evicting {}", count(n, "victim")),
        };
        let tone = if self.fits { Tone::Good } else { Tone::Bad };
        let mut out = format!(
            "{}/{} (priority {}): {}\n\n",
            self.namespace,
            self.workload,
            self.priority,
            tone.paint(&verdict, options)
        );
        let mut gangs = Table::new(&[
            "GANG", "VERDICT", "MEMBERS", "NEEDED", "NODES", "VICTIMS", "COST",
        ]);
        let mut nodes = Table::new(&["GANG", "NODE", "DOMAIN", "MEMBERS"]);
        let mut victims = Table::new(&[
            "GANG",
            "VICTIM",
            "PRIORITY",
            "PODS",
            "COST",
            "LOST WORK",
            "CAPACITY TAKEN ON",
        ]);
        for gang in &self.gangs {
            gangs.row([
                gang.gang.clone(),
                gang.verdict.words().to_owned(),
                format!("{}/{}", gang.placed, gang.members),
                gang.min_count.to_string(),
                gang.nodes.len().to_string(),
                gang.victims.len().to_string(),
                gpu_hours(gang.cost),
            ]);
            for on in &gang.nodes {
                let domain = on.domain.clone().unwrap_or_else(|| "-".to_owned());
                nodes.row([
                    gang.gang.clone(),
                    on.node.clone(),
                    domain,
                    on.members.join(" "),
                ]);
            }
            for victim in &gang.victims {
                victims.row([
                    gang.gang.clone(),
                    victim.named(),
                    victim.priority.to_string(),
                    victim.pods.to_string(),
                    gpu_hours(victim.cost),
                    gpu_hours(victim.lost_work),
                    victim.nodes.join(","),
                ]);
            }
        }
        out.push_str(&gangs.render(options));
        for table in [nodes, victims].iter().filter(|t| !t.is_empty()) {
            out.push('\n');
            out.push_str(&table.render(options));
        }
        for gang in &self.gangs {
            out.push_str(&Remarks(gang).to_string());
        }
        out
    }

    fn names(&self) -> Vec<String> {
        vec![workload_name(&self.workload)]
    }
}

impl Verdict {
    fn words(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::FitsOnceOthersHaveLeft => "fits after other pods have terminated",
            Self::Preempts => "preempts",
            Self::DoesNotFit => "does not fit",
            Self::Unknown => "unknown",
        }
    }
}

impl EvictedUnit {
    fn named(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}

struct Remarks<'a>(&'a GangReport);

impl fmt::Display for Remarks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gang = self.0;
        if let Some(reason) = &gang.reason {
            writeln!(f, "\n{}: {reason}", gang.gang)?;
        }
        if gang.verdict != Verdict::Preempts {
            return Ok(());
        }
        let optimal = if gang.proven {
            "no cheaper set of victims frees enough capacity".to_owned()
        } else if !is_useful_bound(gang.at_least as i64, gang.cost as i64) {
            "a cheaper set of victims may exist: the search found no useful bound".to_owned()
        } else {
            let least = exact_gpu_hours(gang.at_least);
            format!("no set of victims costs less than {least}")
        };
        writeln!(
            f,
            "\n{}: the victims cost {}; {optimal}",
            gang.gang,
            exact_gpu_hours(gang.cost)
        )?;
        if gang.pods_beyond_budgets > 0 {
            writeln!(
                f,
                "{}: {} beyond their disruption budgets",
                gang.gang,
                count(gang.pods_beyond_budgets as usize, "pod")
            )?;
        }
        match &gang.next_best {
            Some(other) => writeln!(f, "{}: next best: {}", gang.gang, words(other)),
            None => writeln!(f, "{}: no other set of victims was found", gang.gang),
        }
    }
}

fn words(other: &SecondBest) -> String {
    let mut text = other
        .victims
        .iter()
        .take(NAMED)
        .map(EvictedUnit::named)
        .collect::<Vec<_>>()
        .join(", ");
    if other.victims.len() > NAMED {
        text = format!("{text} and {} more", other.victims.len() - NAMED);
    }
    text = format!("{text}; {}", exact_gpu_hours(other.cost));
    if other.pods_beyond_budgets > 0 {
        text = format!(
            "{text}, {} beyond their disruption budgets",
            count(other.pods_beyond_budgets as usize, "pod")
        );
    }
    text
}
