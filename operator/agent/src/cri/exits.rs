//! Exits of containers by pod, from events, or from a status call if no event reported the exit.
//!
//! The exit of a container is final. Delayed or repeated events of a runtime cannot make a known
//! exit wrong.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use chrono::DateTime;
use lockstep_api::names::labels;
use lockstep_node::{Exit, ObservedContainer};

use super::api::{ContainerEventResponse, ContainerState, ContainerStatus};

pub(super) type Ended = (String, ObservedContainer);

/// Most exits kept for one pod. A runtime lists one or two per container; the others belong to
/// removed containers.
const MAX_PER_POD: usize = 64;

/// The kubelet uses the restart count as the CRI attempt number of a container.
pub(super) fn restarts(attempt: u32) -> i32 {
    i32::try_from(attempt).unwrap_or(i32::MAX)
}

#[derive(Debug, Default)]
pub(super) struct Exits(BTreeMap<String, BTreeMap<String, Ended>>);

impl Exits {
    /// Records the exits in an event. Returns true if the event may concern a member's pod.
    pub(super) fn record(&mut self, event: ContainerEventResponse) -> bool {
        // An event without a sandbox belongs to a removed pod.
        let Some(sandbox) = event.pod_sandbox_status else {
            return true;
        };
        if !sandbox.labels.contains_key(labels::WORKLOAD_UID) {
            return false;
        }
        let uid = sandbox.metadata.unwrap_or_default().uid;
        for status in &event.containers_statuses {
            self.insert(&uid, status);
        }
        true
    }

    pub(super) fn insert(&mut self, pod_uid: &str, status: &ContainerStatus) {
        if status.state() != ContainerState::ContainerExited {
            return;
        }
        // Runtimes omit `finished_at` if they missed the exit.
        let at = if status.finished_at == 0 {
            status.created_at
        } else {
            status.finished_at
        };
        let exit = Exit {
            code: status.exit_code,
            reason: status.reason.clone(),
            at: DateTime::from_timestamp_nanos(at),
        };
        let created_at = DateTime::from_timestamp_nanos(status.created_at);
        let metadata = status.metadata.clone().unwrap_or_default();
        let container = ObservedContainer {
            id: status.id.clone(),
            restarts: restarts(metadata.attempt),
            created_at,
            exit: Some(exit),
        };
        let ends = self.0.entry(pod_uid.to_owned()).or_default();
        if let Entry::Vacant(new) = ends.entry(status.id.clone()) {
            new.insert((metadata.name, container));
        }
        if ends.len() > MAX_PER_POD {
            let oldest = ends
                .iter()
                .min_by_key(|(id, (_, c))| (c.created_at, *id))
                .map(|(id, _)| id.clone());
            oldest.and_then(|id| ends.remove(&id));
        }
    }

    pub(super) fn contains(&self, pod_uid: &str, container_id: &str) -> bool {
        self.0
            .get(pod_uid)
            .is_some_and(|ends| ends.contains_key(container_id))
    }

    /// Drops the exits of all other pods. The argument has UIDs.
    pub(super) fn keep_only(&mut self, uids: &BTreeSet<&str>) {
        self.0.retain(|uid, _| uids.contains(uid.as_str()));
    }

    pub(super) fn of(&self, pod_uid: &str) -> impl Iterator<Item = &Ended> {
        self.0.get(pod_uid).into_iter().flat_map(BTreeMap::values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(id: usize) -> ContainerStatus {
        ContainerStatus {
            id: id.to_string(),
            state: ContainerState::ContainerExited.into(),
            created_at: id as i64 + 1,
            exit_code: 3,
            ..ContainerStatus::default()
        }
    }

    #[test]
    fn a_pod_that_restarts_for_ever_is_remembered_by_its_last_ends() {
        let mut exits = Exits::default();
        for id in 0..1000 {
            exits.insert("p", &ended(id));
        }
        assert_eq!(exits.of("p").count(), MAX_PER_POD);
        assert!(exits.contains("p", "999") && !exits.contains("p", "0"));
    }

    #[test]
    fn an_end_without_a_time_is_dated_by_its_creation_and_the_first_word_stays() {
        let mut exits = Exits::default();
        exits.insert("p", &ended(4));
        exits.insert(
            "p",
            &ContainerStatus {
                exit_code: 9,
                ..ended(4)
            },
        );
        let (_, container) = exits.of("p").next().unwrap();
        let exit = container.exit.as_ref().unwrap();
        assert_eq!((exit.code, exit.at.timestamp_nanos_opt()), (3, Some(5)));
    }
}
