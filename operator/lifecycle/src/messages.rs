use chrono::{DateTime, Utc};
use lockstep_api::gangs::Gang;
use lockstep_api::member::Member;
use lockstep_api::words::{count, time, took};
use lockstep_api::workload::{GangMove, HistoryEntry, TrainingWorkloadSpec};

use crate::cause::describe;
use crate::ledger::{GangLedger, Ledger, OpenIncident, OpenReplacement};

/// Prefixes the gang's key if the workload has other gangs.
pub(crate) fn of_gang(key: &str, others: bool, text: &str) -> String {
    if others {
        format!("gang {key}: {text}")
    } else {
        text.to_owned()
    }
}

/// Cuts a text to at most `longest` bytes, with an ellipsis.
pub(crate) fn shortened(text: String, longest: usize) -> String {
    if text.len() <= longest {
        return text;
    }
    let end = "…";
    let at = text.floor_char_boundary(longest - end.len());
    format!("{}{end}", &text[..at])
}

/// Why a gang stays after a move that did not succeed.
pub(crate) const NOT_MOVED: &str = "because no other node was free in time, or the move failed";

/// The nodes that a gang avoids, to be added to a message; empty without such nodes.
pub(crate) fn avoided_nodes(gang: &GangLedger) -> String {
    let Some((node, avoidance)) = gang.avoid.first_key_value() else {
        return String::new();
    };
    let others = match gang.avoid.len() - 1 {
        0 => String::new(),
        n => format!(", {} too", count(n, "other node")),
    };
    let (reason, until) = (&avoidance.reason, time(avoidance.until));
    format!("; node {node} is avoided until {until} ({reason}){others}")
}

/// The nodes of a move with their signals, such as `node n1 (signal maintenance, deadline ...)`.
pub(crate) fn nodes_to_leave(moving: &GangMove) -> String {
    let Some(first) = moving
        .nodes
        .iter()
        .min_by_key(|n| (n.deadline.is_none(), n.deadline))
    else {
        return String::new();
    };
    let text = node_with_signal(&first.node, &first.signal, first.deadline);
    format!("{text}{}", and_others(moving.nodes.len() - 1))
}

/// Other nodes beside a named one.
pub(crate) fn and_others(nodes: usize) -> String {
    match nodes {
        0 => String::new(),
        n => format!(" and {}", count(n, "other node")),
    }
}

pub(crate) fn node_with_signal(
    node: &str,
    signal: &str,
    deadline: Option<DateTime<Utc>>,
) -> String {
    let deadline = deadline.map_or(String::new(), |at| format!(", deadline {}", time(at)));
    format!("node {node} (signal {signal}{deadline})")
}

pub(crate) struct Restarts<'a> {
    pub spec: &'a TrainingWorkloadSpec,
    pub gangs: &'a [Gang],
    pub ledger: &'a Ledger,
}

impl Restarts<'_> {
    /// Message about an open incident: action, attempt, budget, cause.
    pub fn under_way(&self, domain: &str, incident: &OpenIncident) -> String {
        let pods = self.pods(domain);
        let replaced = pods.iter().filter(|m| incident.replace.contains(m)).count();
        let text = format!(
            "{} (attempt {}, {}{}): {}",
            all_pods(pods.len(), replaced),
            incident.attempt,
            self.budget(incident.detected_at, incident.counted),
            back_off(incident.not_before),
            describe(&incident.cause)
        );
        self.of_domain(domain, &text)
    }

    /// Message about an open replacement: number of pods, budget, cause.
    pub fn replacing(&self, domain: &str, replacement: &OpenReplacement) -> String {
        let pods = self.pods(domain);
        let replaced = pods.iter().filter(|m| replacement.members.contains(m));
        let text = format!(
            "{} ({}{}): {}",
            some_pods(pods.len(), replaced.count()),
            self.budget(replacement.detected_at, replacement.counted),
            back_off(replacement.not_before),
            describe(&replacement.cause)
        );
        self.of_domain(domain, &text)
    }

    /// Message about a restart of one pod by its kubelet, which is over when it is recorded.
    pub fn by_kubelet(&self, restart: &HistoryEntry) -> String {
        let text = format!(
            "the kubelet restarts 1 of {} in place ({}): {}",
            count(self.pods(&restart.domain).len(), "pod"),
            self.budget(restart.time, restart.counted),
            describe(&restart.cause)
        );
        self.of_domain(&restart.domain, &text)
    }

    pub fn over(&self, restart: &HistoryEntry) -> String {
        let pods = self.pods(&restart.domain).len();
        let verb = if pods == 1 { "is" } else { "are" };
        let time = restart.recovered_at.map(|at| took(at - restart.time));
        let after = time.map_or(String::new(), |time| format!(" after {time}"));
        // Restarts of single pods keep the attempt.
        let what = if restart.action.affects_single_pod() {
            restart.action.as_str().to_owned()
        } else {
            format!("attempt {}", restart.attempt)
        };
        let recreated = match restart.recreated.max(0) as usize {
            0 => "no pod".to_owned(),
            n => count(n, "pod"),
        };
        let text = format!(
            "{} {verb} running again{after} ({what}, {recreated} recreated)",
            every(pods)
        );
        self.of_domain(&restart.domain, &text)
    }

    /// Unfinished members of the domain in the current membership.
    fn pods(&self, key: &str) -> Vec<&Member> {
        let membership = self.ledger.membership(self.spec);
        let domains = self.gangs.iter().flat_map(|gang| &gang.domains);
        let members = domains.filter(|d| d.key == key).flat_map(|d| &d.members);
        members
            .filter(|m| membership.contains(m) && !self.ledger.completed.contains(*m))
            .collect()
    }

    /// Restart budget at the time of the failure, such as `3 of 10 restarts used`.
    fn budget(&self, detected_at: DateTime<Utc>, counted: bool) -> String {
        let limits = &self.spec.failure_policy.limits;
        let used = self.ledger.budget.used(limits, detected_at);
        let free = if counted { "" } else { "not counted: " };
        format!("{free}{used} of {} restarts used", limits.max_restarts)
    }

    /// Prefixes the domain's key if there are several domains.
    fn of_domain(&self, key: &str, text: &str) -> String {
        let others = self.ledger.domains.len() > 1;
        if others && !self.ledger.gangs.contains_key(key) {
            return format!("replica {key}: {text}");
        }
        of_gang(key, others, text)
    }
}

fn back_off(until: Option<DateTime<Utc>>) -> String {
    until.map_or(String::new(), |at| format!(", not before {}", time(at)))
}

fn every(pods: usize) -> String {
    match pods {
        1 => "the pod".to_owned(),
        n => format!("all {n} pods"),
    }
}

/// Action on all pods of a domain: restart in place, recreation, or both.
fn all_pods(pods: usize, replaced: usize) -> String {
    let all = every(pods);
    if replaced == 0 {
        format!("restarting {all} in place")
    } else if replaced >= pods {
        format!("recreating {all}")
    } else {
        let stay = count(pods - replaced, "pod");
        format!(
            "restarting {stay} in place and recreating {}",
            count(replaced, "pod")
        )
    }
}

fn some_pods(pods: usize, replaced: usize) -> String {
    match pods {
        1 => "recreating the pod".to_owned(),
        pods => format!("recreating {replaced} of {pods} pods"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_is_named_if_its_workload_has_several() {
        assert_eq!(of_gang("workload", false, "queued"), "queued");
        assert_eq!(of_gang("workers", true, "queued"), "gang workers: queued");
    }

    #[test]
    fn a_restart_message_counts_recreated_pods() {
        for (pods, replaced, all) in [
            (4, 0, "restarting all 4 pods in place"),
            (4, 1, "restarting 3 pods in place and recreating 1 pod"),
            (4, 4, "recreating all 4 pods"),
            (1, 0, "restarting the pod in place"),
            (1, 1, "recreating the pod"),
        ] {
            assert_eq!(all_pods(pods, replaced), all);
        }
        assert_eq!(some_pods(4, 1), "recreating 1 of 4 pods");
        assert_eq!(some_pods(1, 1), "recreating the pod");
    }
}
