//! What gangs wait for: groups in `dependsOn`, and capacity.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;
use lockstep_api::workload::{CauseKind, Dependency, DependencyCondition, Group};

use crate::facts::{Facts, PlacementState};
use crate::ledger::Ledger;
use crate::wake::Wake;

/// State of the groups on which a gang depends, as a message. A group that has succeeded is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DependencyState {
    Met,
    /// A group is not ready, or has not succeeded. A gang that has started continues.
    Unmet(String),
    Broken(BrokenDependency),
}

/// A dependency of which members restart or have no placement. Missing readiness alone breaks no
/// dependency: it can last for seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokenDependency {
    pub message: String,
    pub since: DateTime<Utc>,
    /// True if a gang on which this one depends, directly or indirectly, has no placement. It may
    /// need the nodes of this gang.
    pub unplaced: bool,
}

impl DependencyState {
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::Met => None,
            Self::Unmet(message) => Some(message),
            Self::Broken(broken) => Some(&broken.message),
        }
    }
}

pub(crate) fn dependency_state(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> DependencyState {
    let groups = Dependencies::new(facts, ledger);
    let mut state = DependencyState::Met;
    for dependency in groups.unfinished(&gang.template) {
        let name = &dependency.group;
        match dependency.condition {
            DependencyCondition::Succeeded => {
                let message = format!("group {name} in dependsOn has not succeeded");
                state = DependencyState::Unmet(message);
            }
            DependencyCondition::Ready => {
                if let Some((what, since)) = groups.broken(name) {
                    return DependencyState::Broken(BrokenDependency {
                        message: format!("group {name} in dependsOn {what}"),
                        since,
                        unplaced: groups.awaits_unplaced(&gang.template),
                    });
                }
                if !groups.is_ready(name) {
                    let message = format!("group {name} in dependsOn is not ready");
                    state = DependencyState::Unmet(message);
                }
            }
        }
    }
    state
}

pub(crate) fn has_dependencies(facts: &Facts<'_>, gang: &Gang) -> bool {
    let mut groups = facts.spec().groups.iter();
    groups.any(|g| g.name == gang.template && !g.depends_on.is_empty())
}

/// True if a group in `dependsOn` can still break.
pub(crate) fn may_break(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> bool {
    let groups = Dependencies::new(facts, ledger);
    let mut unfinished = groups.unfinished(&gang.template);
    unfinished.any(|d| d.condition == DependencyCondition::Ready)
}

/// Gangs that stop if this one restarts.
pub(crate) fn dependents<'f>(facts: &'f Facts<'_>, ledger: &Ledger, gang: &Gang) -> Vec<&'f Gang> {
    let groups = Dependencies::new(facts, ledger);
    let names = |other: &Gang| {
        let mut unfinished = groups.unfinished(&other.template);
        unfinished.any(|d| d.condition == DependencyCondition::Ready && d.group == gang.template)
    };
    let gangs = facts.gangs.iter().filter(|_| !tolerates_loss(gang));
    gangs.filter(|other| names(other)).collect()
}

/// True for policy Basic, and for a gang that may run with fewer than all members.
fn tolerates_loss(gang: &Gang) -> bool {
    gang.basic || (gang.min_count.max(0) as usize) < gang.size()
}

struct Dependencies<'d> {
    facts: &'d Facts<'d>,
    ledger: &'d Ledger,
    membership: Membership<'d>,
}

impl<'d> Dependencies<'d> {
    fn new(facts: &'d Facts<'d>, ledger: &'d Ledger) -> Self {
        Self {
            facts,
            ledger,
            membership: ledger.membership(facts.spec()),
        }
    }

    /// Dependencies on groups that have not succeeded. A gang of the whole workload has none.
    fn unfinished(&self, group: &str) -> impl Iterator<Item = &'d Dependency> {
        let groups = || self.facts.spec().groups.iter();
        let of_group = groups().filter(move |g| g.name == group);
        of_group.flat_map(|g| &g.depends_on).filter(move |d| {
            let completed = &self.ledger.completed;
            let exists = groups().any(|g: &Group| g.name == d.group);
            exists && !self.membership.complete(&d.group, completed)
        })
    }

    fn gangs(&self, group: &str) -> impl Iterator<Item = &'d Gang> {
        let gangs = self.facts.gangs.iter();
        gangs.filter(move |g| g.template == group)
    }

    /// What is broken, and since when.
    fn broken(&self, group: &str) -> Option<(&'static str, DateTime<Utc>)> {
        self.gangs(group).find_map(|gang| self.broken_gang(gang))
    }

    fn broken_gang(&self, gang: &Gang) -> Option<(&'static str, DateTime<Utc>)> {
        let now = self.facts.now;
        let awaited = gang.members().filter(|m| self.is_awaited(m)).count();
        if awaited == 0 {
            return None;
        }
        let placed = self.placed(gang);
        let completed = |m: &&Member| self.ledger.completed.contains(*m);
        let needed = if tolerates_loss(gang) {
            let done = gang.members().filter(completed).count();
            (gang.min_count.max(0) as usize).saturating_sub(done)
        } else {
            awaited
        };
        if placed < needed {
            return Some(("has members without placement", now));
        }
        if !self.ledger.gang(&gang.key).is_some_and(|e| e.started) {
            return Some(("waits for its own dependencies", now));
        }
        if tolerates_loss(gang) {
            return None;
        }
        let since = gang
            .domains
            .iter()
            .filter_map(|d| self.restarting(d))
            .min()?;
        Some(("restarts", since))
    }

    /// Since when awaited members of a domain restart. The loss of a node is detected late.
    fn restarting(&self, domain: &Domain) -> Option<DateTime<Utc>> {
        let entry = self.ledger.domain(&domain.key)?;
        let mut awaited = domain.members.iter().filter(|m| self.is_awaited(m));
        let (cause, detected_at) = match (&entry.incident, &entry.replacement) {
            (Some(i), _) => awaited.next().map(|_| (&i.cause, i.detected_at)),
            (None, Some(r)) => {
                let replaced = awaited.find(|m| r.members.contains(m));
                replaced.map(|_| (&r.cause, r.detected_at))
            }
            (None, None) => None,
        }?;
        Some(match cause.kind {
            CauseKind::NodeLost => detected_at.min(cause.time),
            _ => detected_at,
        })
    }

    fn is_awaited(&self, member: &Member) -> bool {
        self.membership.contains(member) && !self.ledger.completed.contains(member)
    }

    /// Number of awaited members with a node. The scheduler restores a lost placement from running
    /// pods.
    fn placed(&self, gang: &Gang) -> usize {
        let state = self
            .ledger
            .gang(&gang.key)
            .map(|entry| self.facts.placement_state(&gang.key, entry));
        let has_node = |member: &Member| match state {
            None | Some(PlacementState::Released) => false,
            Some(PlacementState::Placed(placement)) => placement.nodes.contains_key(member),
            Some(PlacementState::Unplaced) => {
                let mut pods = self.facts.pods_of(member).iter();
                pods.any(|p| p.node.is_some() && p.is_live())
            }
        };
        let members = gang.members().filter(|m| self.is_awaited(m));
        members.filter(|m| has_node(m)).count()
    }

    /// True if a group that must be ready, directly or indirectly, has a gang without placement.
    /// Groups depend on earlier groups only.
    fn awaits_unplaced(&self, group: &'d str) -> bool {
        let mut awaited = BTreeSet::from([group]);
        for other in self.facts.spec().groups.iter().rev() {
            if awaited.contains(other.name.as_str()) {
                let unfinished = self.unfinished(&other.name);
                let ready = unfinished.filter(|d| d.condition == DependencyCondition::Ready);
                awaited.extend(ready.map(|d| d.group.as_str()));
            }
        }
        awaited.remove(group);
        let mut gangs = awaited.into_iter().flat_map(|name| self.gangs(name));
        gangs.any(|gang| gang.members().any(|m| self.is_awaited(m)) && self.placed(gang) == 0)
    }

    /// During a restart no member counts, because running members will be stopped.
    fn is_ready(&self, group: &str) -> bool {
        let mut domains = self.gangs(group).flat_map(|g| &g.domains);
        domains.all(|domain| {
            let entry = self.ledger.domain(&domain.key);
            let restarts = entry.is_some_and(|e| e.incident.is_some());
            let mut awaited = domain.members.iter().filter(|m| self.is_awaited(m));
            awaited.all(|member| {
                let mut pods = self.facts.pods_of(member).iter();
                !restarts && pods.any(|p| self.facts.is_ready(&domain.key, p))
            })
        })
    }
}

/// Counts the time without capacity. The queue time of a preempted gang can be older.
pub(crate) fn scheduling_timed_out(facts: &Facts<'_>, ledger: &Ledger, wake: &mut Wake) -> bool {
    let limit = facts.spec().scheduling.timeout_seconds;
    let Some(waiting_since) = ledger.spent.waiting_since.filter(|_| limit > 0) else {
        return false;
    };
    for (key, entry) in &ledger.gangs {
        let queued_at = facts.gang_view(key).and_then(|g| g.queued_at);
        let Some(queued_at) = queued_at.filter(|_| entry.started) else {
            continue;
        };
        let since = queued_at.max(waiting_since);
        if facts.placement(ledger, key).is_none()
            && facts.due(since + TimeDelta::seconds(limit)).passed(wake)
        {
            return true;
        }
    }
    false
}
