//! Pods and containers as they really are.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::restart_order::RestartsSeen;
use lockstep_node::{Exit, NodePod, SeenContainer, SupervisorState};

/// A container as it really is.
pub(super) struct Container {
    pub(super) seen: SeenContainer,
    /// Whether the agent's watch has been up to date since before it started.
    pub(super) in_time: bool,
    /// The attempt that the agent has told it has come to, and not forgotten.
    pub(super) came_to: Option<i64>,
}

/// A pod as it really is.
pub(super) struct Truth {
    pub(super) pod: NodePod,
    pub(super) containers: Vec<Container>,
    pub(super) supervisor: SupervisorState,
    pub(super) linked: bool,
    /// Attempts in which a child has ended by itself, with the container's restarts.
    pub(super) ended: BTreeSet<(i64, i32)>,
    pub(super) started: i32,
    /// Restarts that the manager had seen when it ordered each attempt.
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

    /// The child that runs ends with its supervisor.
    pub(super) fn note_child_ends(&mut self) {
        let ended = self.supervisor.running.map(|a| (a, self.started - 1));
        self.ended.extend(ended);
    }

    /// Whether a container before this one has come to the attempt and failed.
    pub(super) fn failed_before(&self, attempt: i64, restarts: i32) -> bool {
        self.containers.iter().any(|c| {
            let failed = c.seen.exit.as_ref().is_some_and(|e| e.code != 0);
            failed && c.seen.restarts < restarts && c.came_to == Some(attempt)
        })
    }

    /// What the manager has seen of it: the container that failed last in the present attempt, as far as
    /// it was told, or else the newest.
    pub(super) fn restarts_seen(&self, attempt: i64, told: &[Report]) -> i32 {
        let failed = told.iter().filter(|r| {
            r.pod_uid == self.pod.uid && r.attempt == attempt && r.kind == ReportKind::Exited
        });
        let failed = failed.filter(|r| r.exit_code != 0).map(|r| r.restarts);
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
