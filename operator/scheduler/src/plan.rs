//! Result of a cycle, with a list of requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lockstep_api::ids::{NodeName, ResourceVersion, Uid};
use lockstep_api::key::Key;
use lockstep_api::scheduling::{Placement, PodGroupStatus};
use lockstep_model::Pod;
use serde::Serialize;

use crate::gang::state::GangState;
use crate::waits::{Moves, circles, waits_for};

#[derive(Clone, Debug)]
pub struct SchedulingCycle {
    pub plan: SchedulingPlan,
    /// All gangs after the cycle, in the order of the input.
    pub gangs: Arc<[GangState]>,
    /// The queue in the served order.
    pub queue: Arc<[QueuePlace]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    pub gang: usize,
    /// True if the gang has all members that it needs, and requests more.
    pub grows: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulingPlan {
    /// Status writes come first, in [`waves`]. The other requests are independent. The next cycle
    /// repeats a failed request.
    pub steps: Vec<Step>,
    /// Time until the next cycle if nothing changes.
    pub wake_after: Option<Duration>,
    pub queued: usize,
    /// Number of gangs evaluated one by one, without a shared verdict.
    pub evaluated: usize,
    pub searches: usize,
    /// True if so many nodes are Faulty that no gang moves for faults.
    pub many_faults: bool,
    pub idle: IdleAccelerators,
}

/// Accelerators of all nodes that no pod holds, by the reason why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IdleAccelerators {
    /// Kept for members without pods, for moves or for waiting gangs.
    pub reserved: i64,
    /// Free, in pieces that are too small for the gangs that wait for them.
    pub fragmented: i64,
    /// Free, and no gang waits for them.
    pub no_demand: i64,
    /// On nodes that are cordoned, not ready or faulty.
    pub unusable: i64,
}

impl IdleAccelerators {
    /// The amounts with the names of their reasons, as in labels of metrics.
    pub fn by_reason(&self) -> [(&'static str, i64); 4] {
        [
            ("reserved", self.reserved),
            ("fragmented", self.fragmented),
            ("noDemand", self.no_demand),
            ("unusable", self.unusable),
        ]
    }
}

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Status(Box<StatusWrite>),
    /// Add the condition DisruptionTarget to a pod that is about to be evicted. Best effort.
    MarkPod {
        /// The preemptor. This request follows only a successful write of its status.
        preemptor: Key,
        pod: PodRef,
        message: String,
    },
    Evict {
        /// The preemptor, as in [`Step::MarkPod`].
        preemptor: Key,
        pod: PodRef,
        /// True if the pod is deleted because budgets have refused the eviction for too long.
        by_force: bool,
    },
    /// Dry-run eviction: do budgets permit it?
    DryRunEviction(PodRef),
    /// Reserve a node's capacity for a pod in kube-scheduler.
    Nominate {
        pod: PodRef,
        node: NodeName,
    },
}

/// The pod of a request. The UID excludes a later pod with the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    /// Namespace and name.
    pub key: Key,
    /// UID, a precondition.
    pub uid: Uid,
}

impl PodRef {
    pub fn of(pod: &Pod) -> Self {
        Self {
            key: pod.key(),
            uid: pod.uid.clone(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    pub key: Key,
    /// UID, a precondition.
    pub uid: Uid,
    /// Resource version of the decision, a precondition.
    pub resource_version: Option<ResourceVersion>,
    pub read: PodGroupStatus,
    pub status: PodGroupStatus,
    /// Set if other gangs get the capacity next. The write is sent only if the API server lists no
    /// other pod of the gang, because the watch of pods can lag behind.
    pub vacated: Option<Vacated>,
    /// The preemptor of this gang. Its status is written first, so that a new leader knows the
    /// victims.
    pub preemptor: Option<Key>,
}

/// A gang without known remaining pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Vacated {
    pub workload_uid: Uid,
    pub observed: BTreeSet<Uid>,
}

impl Step {
    /// False for dry runs.
    pub fn changes(&self) -> bool {
        !matches!(self, Self::DryRunEviction(_))
    }

    /// Preemptor whose status must be written first.
    pub fn preemptor(&self) -> Option<&Key> {
        match self {
            Self::Status(write) => write.preemptor.as_ref(),
            Self::MarkPod { preemptor, .. } | Self::Evict { preemptor, .. } => Some(preemptor),
            Self::DryRunEviction(_) | Self::Nominate { .. } => None,
        }
    }
}

impl StatusWrite {
    pub fn moves(&self) -> Moves {
        let assigned =
            |status: &PodGroupStatus| status.placement.as_ref().map(Placement::assignments);
        Moves::between(
            assigned(&self.read).as_ref(),
            assigned(&self.status).as_ref(),
        )
    }
}

/// Groups the writes into waves that can be sent together. A write that takes a place on a node
/// waits for the write that releases it, so no place is promised twice. A victim's write follows
/// its preemptor's write.
///
/// Circular waits remain only if bound pods hold the nodes or gangs wait for victims. Such writes
/// are sent together.
pub fn waves(writes: Vec<StatusWrite>) -> Vec<Vec<StatusWrite>> {
    let moves: Vec<Moves> = writes.iter().map(StatusWrite::moves).collect();
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
    fn a_victim_is_written_after_its_preemptor() {
        let victim = StatusWrite {
            preemptor: Some(Key::new("ml", "high")),
            ..write("low", &[], &[])
        };
        let high = write("high", &[], &[]);
        assert_eq!(names(vec![victim.clone(), high]), [["high"], ["low"]]);
        assert_eq!(names(vec![victim]), [["low"]]);
    }

    #[test]
    fn writes_that_depend_on_a_cycle_follow_the_cycle() {
        let writes = vec![
            write("behind", &[], &[("n1", "g/0/1")]),
            write("a", &[("n1", "g/0/0")], &[("n2", "g/0/0")]),
            write("b", &[("n2", "g/0/0")], &[("n1", "g/0/0")]),
        ];
        assert_eq!(names(writes), [vec!["a", "b"], vec!["behind"]]);
    }
}
