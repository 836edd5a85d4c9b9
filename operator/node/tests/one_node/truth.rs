//! Actual state of pods and containers.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::restart_order::RestartsSeen;
use lockstep_node::{Exit, NodePod, ObservedContainer, SupervisorState};

pub(super) struct Container {
    pub(super) seen: ObservedContainer,
    /// True if the agent's watch was current when it started, and since.
    pub(super) in_time: bool,
    /// The attempt at which the agent has reported its arrival, unless its records were lost.
    pub(super) came_to: Option<i64>,
}

pub(super) struct Truth {
    pub(super) pod: NodePod,
    pub(super) containers: Vec<Container>,
    pub(super) supervisor: SupervisorState,
    pub(super) linked: bool,
    /// Attempts in which a child exited by itself, with the container's restart count.
    pub(super) ended: BTreeSet<(i64, i32)>,
    pub(super) started: i32,
    /// Restart counts known to the manager when it ordered each attempt.
    pub(super) seen: BTreeMap<i64, i32>,
}

impl Truth {
    pub(super) fn new(member: i32, life: i64, attempt: i64, supervised: bool) -> Self {
        Self {
            pod: NodePod {
                uid: format!("p{member}-{life}"),
                workload_uid: "w".into(),
                domain: "d".into(),
                member: Some(Member::new("g", 0, member)),
                attempt,
                training: "t".into(),
                supervised,
                ..NodePod::default()
            },
            containers: Vec::new(),
            supervisor: SupervisorState::default(),
            linked: false,
            ended: BTreeSet::new(),
            started: 0,
            seen: BTreeMap::new(),
        }
    }

    pub(super) fn running(&mut self) -> Option<&mut Container> {
        let mut containers = self.containers.iter_mut();
        containers.find(|c| c.seen.exit.is_none())
    }

    pub(super) fn end(&mut self, code: i32, at: DateTime<Utc>) -> bool {
        let Some(container) = self.running() else {
            return false;
        };
        container.seen.exit = Some(Exit {
            code,
            reason: "Error".into(),
            at,
        });
        self.supervisor = SupervisorState::default();
        self.linked = false;
        true
    }

    /// The exit of the running child, together with its supervisor.
    pub(super) fn note_child_ends(&mut self) {
        let ended = self.supervisor.running.map(|a| (a, self.started - 1));
        self.ended.extend(ended);
    }

    /// True if an earlier container arrived at the attempt and failed.
    pub(super) fn failed_before(&self, attempt: i64, restarts: i32) -> bool {
        self.containers.iter().any(|c| {
            let failed = c.seen.exit.as_ref().is_some_and(|e| e.code != 0);
            failed && c.seen.restarts < restarts && c.came_to == Some(attempt)
        })
    }

    /// Restart count known to the manager: of the last reported failure in the current attempt,
    /// else of the newest container.
    pub(super) fn restarts_seen(&self, attempt: i64, told: &[Report]) -> i32 {
        let failed = told
            .iter()
            .filter(|r| {
                r.pod_uid == self.pod.uid && r.attempt == attempt && r.kind == ReportKind::Exited
            })
            .filter(|r| r.exit_code != 0)
            .map(|r| r.restarts);
        failed.max().unwrap_or(self.started - 1)
    }

    pub(super) fn with_restarts(&self, restarts: i32) -> RestartsSeen {
        let member = self.pod.member.iter().cloned();
        RestartsSeen {
            restarts,
            members: member.collect::<MemberSet>().to_ranges(),
        }
    }

    pub(super) fn listed(&self) -> NodePod {
        NodePod {
            containers: self.containers.iter().map(|c| c.seen.clone()).collect(),
            supervisor: Some(self.supervisor.clone()).filter(|_| self.linked),
            ..self.pod.clone()
        }
    }
}
