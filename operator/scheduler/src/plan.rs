//! What a cycle comes to: what it wants done, as a list of requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lockstep_api::ids::{NodeName, ResourceVersion, Uid};
use lockstep_api::key::Key;
use lockstep_api::member::MemberSet;
use lockstep_api::scheduling::{Placement, PodGroupStatus};
use lockstep_model::Pod;

use crate::state::GangState;
use crate::waits::{Moves, circles, waits_for};

/// What a cycle came to.
#[derive(Clone, Debug)]
pub struct SchedulingCycle {
    /// What is to be done.
    pub plan: SchedulingPlan,
    /// All gangs as the cycle leaves them, in the order of the input.
    pub gangs: Arc<[GangState]>,
    /// Those that asked for capacity, in the order in which they were served.
    pub queue: Arc<[QueuePlace]>,
}

/// A gang in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Position of the gang in the input.
    pub gang: usize,
    /// Whether it has all members that it needs, and asks for more.
    pub grows: bool,
}

/// What a cycle wants done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulingPlan {
    /// Requests. Writes of statuses come first, in [`waves`]; the others are independent of each
    /// other. What fails is decided again in the next cycle.
    pub steps: Vec<Step>,
    /// When to look again although nothing changed.
    pub wake_after: Option<Duration>,
    /// Gangs in the queue.
    pub queued: usize,
    /// Gangs of the queue that were looked at by themselves; of the others it was known from before, or
    /// from one that asks for the same.
    pub judged: usize,
    /// Searches for victims.
    pub searches: usize,
}

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write the status of a pod group.
    Status(Box<StatusWrite>),
    /// Add the condition DisruptionTarget to a pod that is about to be evicted. Best effort.
    MarkPod {
        /// The gang that it is preempted for. If the status of that is to be written and cannot be,
        /// nobody is told.
        preemptor: Key,
        /// The victim.
        pod: PodRef,
        /// Message of the condition.
        message: String,
    },
    /// Evict a pod.
    Evict {
        /// The gang that it is preempted for, as in [`Step::MarkPod`].
        preemptor: Key,
        /// The victim.
        pod: PodRef,
        /// Delete it when its budgets refuse the eviction: they have done so for long enough.
        by_force: bool,
    },
    /// Ask whether a pod's budgets would allow its eviction, and evict nothing.
    AskEviction(PodRef),
    /// Have kube-scheduler keep a node's capacity for a pod.
    Nominate {
        /// The pod.
        pod: PodRef,
        /// Name of the node.
        node: NodeName,
    },
}

/// The pod of a request: this one of its name, and no other that has taken the name since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    /// Namespace and name.
    pub key: Key,
    /// UID, a precondition.
    pub uid: Uid,
}

impl PodRef {
    /// This pod.
    pub fn of(pod: &Pod) -> Self {
        Self {
            key: pod.key(),
            uid: pod.uid.clone(),
        }
    }
}

/// A write of a pod group's status.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    /// Namespace and name.
    pub key: Key,
    /// UID, a precondition.
    pub uid: Uid,
    /// Version that the decision was made from, a precondition.
    pub resource_version: Option<ResourceVersion>,
    /// The status as read.
    pub read: PodGroupStatus,
    /// The status as it is to be.
    pub status: PodGroupStatus,
    /// Set when the gang's capacity is promised to others next: the pods of the gang (by UID) that
    /// were seen to hold none. The write is sent only if the API server itself knows of no other,
    /// since the watch of pods may lag behind that of workloads.
    pub vacated: Option<Vacated>,
    /// The gang that this one is preempted for: its own status says so first, or a process that is
    /// lost, and one that takes over, would not know who was evicted.
    pub preemptor: Option<Key>,
}

/// A gang that is believed to be gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Vacated {
    /// UID of the workload.
    pub workload_uid: Uid,
    /// Its pods that were seen, by UID.
    pub seen: BTreeSet<Uid>,
}

impl Step {
    /// Whether it changes something, or only asks.
    pub fn changes(&self) -> bool {
        !matches!(self, Self::AskEviction(_))
    }

    /// The gang for which it is done, where that gang's own status says so first.
    pub fn preemptor(&self) -> Option<&Key> {
        match self {
            Self::Status(write) => write.preemptor.as_ref(),
            Self::MarkPod { preemptor, .. } | Self::Evict { preemptor, .. } => Some(preemptor),
            Self::AskEviction(_) | Self::Nominate { .. } => None,
        }
    }
}

impl StatusWrite {
    fn moves(&self) -> Moves<'_> {
        Moves {
            gives_up: self.gives_up(),
            gains: self.gains(),
        }
    }

    /// Nodes on which it gives up the place of a member.
    pub fn gives_up(&self) -> BTreeSet<&str> {
        nodes_without(self.read.placement.as_ref(), self.status.placement.as_ref())
    }

    /// Nodes on which it gives a place to a member.
    pub fn gains(&self) -> BTreeSet<&str> {
        nodes_without(self.status.placement.as_ref(), self.read.placement.as_ref())
    }
}

/// Nodes on which the one placement has members that the other does not have there.
fn nodes_without<'p>(
    placement: Option<&'p Placement>,
    other: Option<&Placement>,
) -> BTreeSet<&'p str> {
    let members = |ranges: &[String]| MemberSet::parse(ranges).unwrap_or_default();
    let there: BTreeMap<&str, &[String]> = other
        .iter()
        .flat_map(|p| &p.nodes)
        .map(|on| (on.node.as_str(), on.members.as_slice()))
        .collect();
    let nodes = placement.iter().flat_map(|p| &p.nodes);
    nodes
        .filter(|on| match there.get(on.node.as_str()) {
            None => true,
            Some(ranges) if **ranges == *on.members => false,
            Some(ranges) => {
                let there = members(ranges);
                members(&on.members).iter().any(|m| !there.contains(m))
            }
        })
        .map(|on| on.node.as_str())
        .collect()
}

/// Writes that may be sent together: nobody gets a place on a node before the write that gives up
/// a place there was answered, so that no place is promised twice, whenever the process is lost; and
/// no victim is told before the write of its preemptor was answered.
///
/// A cycle leaves a circle of writes that wait for each other only where pods that are bound hold the
/// nodes, or gangs wait for victims. These are sent together.
pub fn waves(writes: Vec<StatusWrite>) -> Vec<Vec<StatusWrite>> {
    let moves: Vec<Moves<'_>> = writes.iter().map(StatusWrite::moves).collect();
    let mut waits = waits_for(&moves);
    let at: BTreeMap<&Key, usize> = writes
        .iter()
        .enumerate()
        .map(|(n, w)| (&w.key, n))
        .collect();
    for (waits, write) in waits.iter_mut().zip(&writes) {
        waits.extend(write.preemptor.as_ref().and_then(|key| at.get(key)));
    }
    let mut waves = Vec::new();
    let mut left: BTreeMap<usize, StatusWrite> = writes.into_iter().enumerate().collect();
    while !left.is_empty() {
        let free = left.keys().copied().filter(|n| waits[*n].is_empty());
        let mut now: BTreeSet<usize> = free.collect();
        if now.is_empty() {
            now = circles(&waits);
        }
        for waits in &mut waits {
            waits.retain(|n| !now.contains(n));
        }
        waves.push(now.iter().filter_map(|n| left.remove(n)).collect());
    }
    waves
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use lockstep_api::scheduling::NodePlacement;

    fn status(nodes: &[(&str, &str)]) -> PodGroupStatus {
        let on = |(node, members): &(&str, &str)| NodePlacement {
            node: (*node).to_owned(),
            members: vec![(*members).to_owned()],
        };
        let placement = Placement {
            id: String::new(),
            decided_at: DateTime::UNIX_EPOCH,
            members: 1,
            nodes: nodes.iter().map(on).collect(),
            ..Placement::default()
        };
        PodGroupStatus {
            placement: (!nodes.is_empty()).then_some(placement),
            ..PodGroupStatus::default()
        }
    }

    fn write(name: &str, from: &[(&str, &str)], to: &[(&str, &str)]) -> StatusWrite {
        StatusWrite {
            key: Key::new("ml", name),
            uid: name.parse().unwrap(),
            resource_version: "1".parse().ok(),
            read: status(from),
            status: status(to),
            vacated: None,
            preemptor: None,
        }
    }

    fn names(writes: Vec<StatusWrite>) -> Vec<Vec<String>> {
        let wave = |wave: Vec<StatusWrite>| wave.iter().map(|w| w.key.name.to_string()).collect();
        waves(writes).into_iter().map(wave).collect()
    }

    #[test]
    fn a_node_is_given_up_before_another_gang_gets_it() {
        let writes = vec![
            write("gain", &[], &[("n2", "g/0/0")]),
            write("move", &[("n2", "g/0/0")], &[("n1", "g/0/0")]),
            write("elsewhere", &[], &[("n3", "g/0/0")]),
            write("loss", &[("n1", "g/0/0-1")], &[("n1", "g/0/1")]),
            write("words", &[("n2", "g/0/0")], &[("n2", "g/0/0")]),
        ];
        let expected = [
            vec!["elsewhere", "loss", "words"],
            vec!["move"],
            vec!["gain"],
        ];
        assert_eq!(names(writes), expected);
    }

    #[test]
    fn a_victim_is_told_after_its_preemptor_was_written() {
        let victim = StatusWrite {
            preemptor: Some(Key::new("ml", "high")),
            ..write("low", &[], &[])
        };
        let high = write("high", &[], &[]);
        assert_eq!(names(vec![victim.clone(), high]), [["high"], ["low"]]);
        assert_eq!(names(vec![victim]), [["low"]]);
    }

    #[test]
    fn who_waits_for_those_in_a_circle_is_written_after_them() {
        let writes = vec![
            write("behind", &[], &[("n1", "g/0/1")]),
            write("a", &[("n1", "g/0/0")], &[("n2", "g/0/0")]),
            write("b", &[("n2", "g/0/0")], &[("n1", "g/0/0")]),
        ];
        assert_eq!(names(writes), [vec!["a", "b"], vec!["behind"]]);
    }
}
