//! Kubelets and agents of the cluster in memory.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use lockstep_api::NodeAgentStatus;
use lockstep_api::node_agent::capabilities;

use super::World;
use crate::node::{self, Exit, NodePod, NodeView, Records, SeenContainer};
use crate::nodes::NodeInfo;
use crate::pods::{ConditionView, ContainerState, ContainerView, PodPhase, Termination};
use crate::tier::RESTART_ALL_FEATURE;

/// A node.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a fault of its own that a scenario switches on"
)]
pub(crate) struct SimNode {
    /// Members that fit.
    pub slots: usize,
    /// Whether kubelet and agent run.
    pub alive: bool,
    /// Whether there is an agent.
    pub agent: bool,
    /// Whether its kubelet starts containers.
    pub starts: bool,
    /// Whether its containers survive a stop.
    pub hangs: bool,
    /// Whether its kubelet rejects pods.
    pub rejects: bool,
    /// Whether containers restart as soon as they have ended, before their end is shown.
    pub quick: bool,
    /// Since when it is not heard of.
    pub silent_since: Option<chrono::DateTime<chrono::Utc>>,
    pub records: Records,
    pub published: NodeAgentStatus,
}

impl SimNode {
    pub fn new(slots: usize) -> Self {
        let capabilities = vec![capabilities::STOP.into(), capabilities::REPORT.into()];
        Self {
            slots,
            alive: true,
            agent: true,
            starts: true,
            hangs: false,
            rejects: false,
            quick: false,
            silent_since: None,
            records: Records::default(),
            published: NodeAgentStatus {
                capabilities,
                ..NodeAgentStatus::default()
            },
        }
    }

    pub fn info(&self) -> NodeInfo {
        NodeInfo {
            not_ready_since: self.silent_since,
            out_of_service: false,
            declared_features: vec![RESTART_ALL_FEATURE.into()],
            kubelet_version: "v1.37.2".into(),
        }
    }
}

impl World {
    /// The node stops: no kubelet, no agent, its containers are out of sight.
    pub fn lose(&mut self, node: &str) {
        let now = self.now;
        let node = self.nodes.get_mut(node).unwrap();
        node.alive = false;
        node.silent_since = Some(now);
    }

    /// One pass of a node's agent.
    pub fn agent(&mut self, name: &str) -> bool {
        let Some(n) = self.nodes.get(name).filter(|n| n.alive && n.agent) else {
            return false;
        };
        let orders = self
            .order
            .iter()
            .map(|o| (o.content.workload_uid.clone(), o.content.clone()))
            .collect();
        let pods: Vec<NodePod> = self.pods_on(name).map(|p| p.on_node.clone()).collect();
        let view = NodeView {
            orders: &orders,
            pods: &pods,
            records: &n.records,
            published: &n.published,
        };
        let plan = node::decide(&view, self.now);
        let n = self.nodes.get_mut(name).unwrap();
        let busy = plan.records.is_some() || plan.status.is_some() || plan.wake_after.is_some();
        n.records = plan.records.unwrap_or(n.records.clone());
        n.published = plan.status.unwrap_or(n.published.clone());
        if !n.hangs {
            let killed = Exit {
                code: 137,
                reason: "Error".into(),
                at: self.now,
            };
            for stop in plan.stop {
                let pod = self
                    .pods
                    .iter_mut()
                    .find(|p| p.shown.uid == stop.pod_uid)
                    .unwrap();
                let container = pod
                    .on_node
                    .containers
                    .iter_mut()
                    .find(|c| c.id == stop.container_id)
                    .unwrap();
                container.exit.get_or_insert(killed.clone());
            }
        }
        busy
    }

    fn pods_on(&self, node: &str) -> impl Iterator<Item = &super::SimPod> {
        self.pods
            .iter()
            .filter(move |p| p.shown.node.as_deref() == Some(node))
    }

    /// One sync of all pods of a node's kubelet.
    pub fn kubelet(&mut self, name: &str) -> bool {
        let Some(n) = self.nodes.get(name).filter(|n| n.alive) else {
            return false;
        };
        let (starts, rejects, quick) = (n.starts, n.rejects, n.quick);
        let mut busy = false;
        let mut ids: Vec<String> = (0..self.pods.len()).map(|_| self.id("c")).collect();
        let now = self.now;
        for p in self
            .pods
            .iter_mut()
            .filter(|p| p.shown.node.as_deref() == Some(name))
        {
            let before = p.shown.clone();
            if p.shown.terminating() || p.shown.terminal() {
                continue;
            }
            if rejects && p.on_node.containers.is_empty() {
                p.shown.phase = PodPhase::Failed;
                p.shown.reason = "OutOfcpu".into();
            } else if starts {
                let id = ids.pop().unwrap();
                sync(p, &id, now);
                if quick {
                    sync(p, &format!("{id}q"), now);
                }
            }
            busy |= p.shown != before;
        }
        let len = self.pods.len();
        self.pods
            .retain(|p| p.shown.node.as_deref() != Some(name) || !p.shown.terminating());
        busy || self.pods.len() != len
    }
}

/// Starts what is to start; shows what has changed.
fn sync(p: &mut super::SimPod, id: &str, now: chrono::DateTime<chrono::Utc>) {
    let trainer = p.on_node.training.clone();
    if p.shown.containers.is_empty() {
        p.shown
            .containers
            .insert(trainer.clone(), ContainerView::default());
    }
    let Some(status) = p.shown.containers.values_mut().next() else {
        return;
    };
    let newest = p.on_node.containers.last().cloned();
    let shown_end = status.terminated().is_some();
    match newest {
        None => start(&mut p.on_node, status, id, now),
        Some(SeenContainer { exit: None, id, .. }) => show_running(status, &id),
        Some(SeenContainer {
            exit: Some(exit),
            id,
            ..
        }) if !shown_end => {
            status.state = ContainerState::Terminated(Termination {
                exit_code: exit.code,
                reason: exit.reason,
                message: String::new(),
                finished_at: Some(exit.at),
                id: Some(format!("sim://{id}")),
            });
        }
        Some(SeenContainer {
            exit: Some(exit), ..
        }) => {
            if restarts(&p.spec, &trainer, exit.code) {
                status.last = status.terminated().cloned();
                status.restart_count += 1;
                start(&mut p.on_node, status, id, now);
            } else {
                p.shown.phase = if exit.code == 0 {
                    PodPhase::Succeeded
                } else {
                    PodPhase::Failed
                };
            }
        }
    }
    let running = status.running();
    if running {
        p.shown.phase = PodPhase::Running;
    }
    let ready = ConditionView {
        status: if running { "True" } else { "False" }.into(),
        ..ConditionView::default()
    };
    p.shown.conditions.insert("Ready".into(), ready);
}

fn start(
    pod: &mut NodePod,
    status: &mut ContainerView,
    id: &str,
    now: chrono::DateTime<chrono::Utc>,
) {
    pod.containers.push(SeenContainer {
        id: id.to_owned(),
        created_at: now,
        exit: None,
    });
    show_running(status, id);
}

fn show_running(status: &mut ContainerView, id: &str) {
    status.id = Some(format!("sim://{id}"));
    status.state = ContainerState::Running { started_at: None };
}

/// Restart rules as the kubelet evaluates them: the first that matches, else the container's
/// policy, else the pod's.
fn restarts(spec: &PodSpec, container: &str, code: i32) -> bool {
    let c: &Container = spec
        .containers
        .iter()
        .find(|c| c.name == container)
        .unwrap();
    for rule in c.restart_policy_rules.iter().flatten() {
        let codes = rule.exit_codes.as_ref().unwrap();
        let listed = codes.values.iter().flatten().any(|v| *v == code);
        if listed == (codes.operator == "In") {
            return true;
        }
    }
    match c
        .restart_policy
        .as_ref()
        .or(spec.restart_policy.as_ref())
        .map(String::as_str)
    {
        Some("Never") => false,
        Some("OnFailure") => code != 0,
        _ => true,
    }
}
