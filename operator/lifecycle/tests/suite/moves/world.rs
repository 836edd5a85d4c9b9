//! A gang whose nodes have signals.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::find;
use lockstep_api::member::Member;
use lockstep_api::scheduling::{MoveTarget, NodePlacement};
use lockstep_api::workload::{
    GangMove, MoveOutcome, Phase, TrainingProgress, TrainingWorkloadStatus,
};
use lockstep_api::{NodeSignal, Outlook, RestartOrder, SignalLevel, TrainingWorkload};
use lockstep_lifecycle::plan::{Action, Object};
use lockstep_lifecycle::{Plan, WorkloadView, decide};
use lockstep_sim::Solo;
use lockstep_sim::solo::gang_with;
use serde_json::{Value, json};

use crate::checkpoints::asked;

/// A running gang whose passes see signals of nodes and the scheduler's answers to moves.
pub struct Moving {
    pub w: Solo,
    pub signals: BTreeMap<String, Vec<NodeSignal>>,
    pub observes: bool,
    /// New node of each member that may move.
    pub target: BTreeMap<Member, String>,
}

impl Moving {
    pub fn new(w: Solo) -> Self {
        Self {
            w,
            signals: BTreeMap::new(),
            observes: false,
            target: BTreeMap::new(),
        }
    }

    /// A gang of three that answers requests: two members on the first node, one on another.
    pub fn with_requests() -> Self {
        Self::new(asked(Some("save"), &json!({})))
    }

    pub fn without_requests(more: &Value) -> Self {
        let mut w = Solo::supervised(gang_with(3, more));
        w.settle();
        assert_eq!(w.status().phase, Some(Phase::Running));
        Self::new(w)
    }

    pub fn signal(&mut self, node: &str, name: &str, level: SignalLevel, minutes: Option<i64>) {
        let now = self.w.now();
        self.signals
            .entry(node.to_owned())
            .or_default()
            .push(NodeSignal {
                name: name.to_owned(),
                level,
                deadline: minutes.map(|m| now + TimeDelta::minutes(m)),
                since: now,
                counts_from: now,
            });
    }

    /// The scheduler permits the move of these members.
    pub fn permit(&mut self, moves: &[(i32, &str)]) {
        let moves = moves.iter();
        self.target = moves
            .map(|(i, node)| (Member::new("g", *i, 0), (*node).to_owned()))
            .collect();
    }

    pub fn view(&mut self) -> WorkloadView {
        let (mut view, now) = (self.w.view(), self.w.now());
        for (name, info) in &mut view.nodes {
            let mut changed = (**info).clone();
            changed.signals = self.signals.get(name).cloned().unwrap_or_default();
            changed.state.outlook = outlook(&changed.signals, now);
            if self.observes {
                changed.state.outlook = Outlook::Healthy;
            }
            *info = Arc::new(changed);
        }
        let moving = self.moving();
        for gang in view.gangs.values_mut() {
            let id = moving.as_ref().map(|m| m.id.clone());
            let at = |(member, node): (&Member, &String)| NodePlacement {
                node: node.clone(),
                members: [member.clone()]
                    .into_iter()
                    .collect::<lockstep_api::member::MemberSet>()
                    .to_ranges(),
            };
            gang.move_target = id.filter(|_| !self.target.is_empty()).map(|id| MoveTarget {
                id,
                decided_at: now,
                nodes: self.target.iter().map(at).collect(),
                ..MoveTarget::default()
            });
        }
        view
    }

    /// One pass. True if it changed something.
    pub fn pass(&mut self) -> bool {
        let view = self.view();
        let before = view.status();
        let key = self.w.key().clone();
        match decide(&view, self.w.now()).plan {
            Plan::Record(status) | Plan::Idle(status) => {
                let changed = before != *status;
                self.w
                    .cluster
                    .edit::<TrainingWorkload>(&key, |w| w.status = Some(*status));
                changed
            }
            Plan::Act(actions) => {
                let mut changed = false;
                for action in actions {
                    match action {
                        Action::Update {
                            object: Object::RestartOrder(order),
                            ..
                        } => {
                            changed = true;
                            let spec = order.spec;
                            self.w.cluster.edit::<RestartOrder>(&key, |o| o.spec = spec);
                        }
                        // Its result expires while the time is advanced.
                        Action::DryRun { .. } => {}
                        other => panic!("only requests before the stop: {other:?}"),
                    }
                }
                changed
            }
        }
    }

    /// Passes until nothing changes or the gang is stopped for the move.
    pub fn passes(&mut self) {
        for _ in 0..20 {
            if self.has_begun() || !self.pass() {
                return;
            }
        }
        panic!("it passes again and again");
    }

    pub fn has_begun(&self) -> bool {
        self.moving().is_some_and(|m| m.began_at.is_some())
    }

    pub fn seconds(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.passes();
            for node in self.w.node_names() {
                self.w.agent(&node);
            }
            self.w.kubelets();
            self.w.later(1);
        }
        self.passes();
    }

    pub fn minutes(&mut self, minutes: i64) {
        for _ in 0..minutes * 6 {
            self.w.later(10);
            self.passes();
        }
    }

    /// The gang is stopped, and moves with today's scheduler.
    pub fn finish(&mut self) {
        assert!(self.has_begun(), "{:?}", self.moving());
        self.w.settle();
        assert_eq!(self.w.status().phase, Some(Phase::Running));
    }

    pub fn status(&self) -> TrainingWorkloadStatus {
        self.w.status()
    }

    pub fn moving(&self) -> Option<GangMove> {
        self.status().gangs.into_iter().find_map(|g| g.moving)
    }

    pub fn nodes(&self) -> Vec<String> {
        let nodes = self.moving().into_iter().flat_map(|m| m.nodes);
        nodes.map(|n| n.node).collect()
    }

    pub fn outcome(&self) -> Option<MoveOutcome> {
        self.moving()?.outcome
    }

    pub fn condition(&self) -> String {
        let status = self.status();
        find(&status.conditions, "NodeLeaving").map_or(String::new(), |c| c.message.clone())
    }

    /// Sets the last checkpoint and the usual time between checkpoints.
    pub fn saved(&mut self, interval: i64) {
        let (key, now) = (self.w.key().clone(), self.w.now());
        self.w.cluster.edit::<TrainingWorkload>(&key, |w| {
            let status = w.status.get_or_insert_default();
            status.progress = Some(TrainingProgress {
                checkpoint_step: Some(now.timestamp()),
                checkpoint_time: Some(now),
                checkpoint_intervals: vec![interval; 3],
                ..TrainingProgress::default()
            });
        });
    }

    /// Minutes until a move is requested.
    pub fn requested_after(&mut self, limit: i64) -> Option<i64> {
        let start = self.w.now();
        for _ in 0..limit * 6 {
            self.passes();
            if let Some(m) = self.moving() {
                return Some((m.requested_at - start).num_minutes());
            }
            self.w.later(10);
        }
        None
    }
}

fn outlook(signals: &[NodeSignal], now: DateTime<Utc>) -> Outlook {
    let counting: Vec<&NodeSignal> = signals.iter().filter(|s| s.counts(now)).collect();
    match counting.iter().map(|s| s.level).max() {
        None => Outlook::Healthy,
        Some(SignalLevel::Suspect) => Outlook::Suspect,
        Some(SignalLevel::Leaving) => Outlook::Leaving {
            deadline: counting.iter().filter_map(|s| s.deadline).min(),
        },
        Some(SignalLevel::Faulty) => Outlook::Faulty,
    }
}
