//! One agent: the product's decision over the node's runtime and orders.

use chrono::TimeDelta;
use lockstep_agent::runtime::Sandbox;
use lockstep_api::key::Key;
use lockstep_api::names::labels;
use lockstep_api::{NodeAgentStatus, RestartOrder};
use lockstep_manager::stepped::WatchedKind;
use lockstep_node::{NodePod, NodeView, SupervisorMessage, decide};
use serde_json::json;

use super::{SimNode, introduction};
use crate::api::{Patch, Store};

impl SimNode {
    /// One turn of the agent: observe, decide, persist, stop, publish. Returns true if it had an
    /// effect.
    pub(crate) fn agent(&mut self, store: &mut Store) -> bool {
        let caught_up = self.catch_up();
        let (now, wall) = (self.clock.now(), self.wall());
        let works = self.agent_runs() && !self.faults.silent_agent;
        let effects = self.runtime.link(works, wall);
        self.follow(effects);
        if !works {
            return caught_up;
        }
        let mut busy = self.introduce(store) | caught_up;
        busy |= self.deliver(store);
        let published = self.published.clone().unwrap_or_default();
        if !self.faults.cut_off {
            let orders = store.list::<RestartOrder>().into_iter();
            let orders = orders.map(|order| {
                let namespace = order.metadata.namespace.unwrap_or_default();
                ((namespace, order.spec.workload_uid.clone()), order.spec)
            });
            self.orders = orders.collect();
        }
        let seen = self
            .runtime
            .table()
            .look(|pod| pod.labels.contains_key(labels::WORKLOAD_UID));
        let pods: Vec<NodePod> = seen
            .into_iter()
            .filter_map(|pod| Sandbox::from(pod).into_member())
            .map(|pod| NodePod {
                supervisor: self.runtime.supervisor(&pod.uid),
                ..pod
            })
            .collect();
        let plan = decide(
            &NodeView {
                node: &self.name,
                orders: &self.orders,
                pods: &pods,
                listed: true,
                records: &self.records,
                published: &published,
            },
            wall,
        );
        busy |= plan.records.is_some();
        if let Some(records) = plan.records {
            self.records = records;
        }
        if !self.faults.hangs && !self.faults.unkillable {
            for stop in plan.stop {
                let effect = self.runtime.kill(&stop.container_id);
                self.follow([effect]);
                busy = true;
            }
        }
        if !self.faults.unkillable {
            for SupervisorMessage { pod_uid, command } in plan.messages {
                let effects = self.runtime.command(&pod_uid, &command, wall);
                self.follow(effects);
                busy = true;
            }
        }
        self.training.observe(&self.runtime, now, self.clock_ahead);
        if let Some(status) = plan.status {
            busy |= self.publish_agent(status, store);
        }
        self.agent_wake = plan
            .wake_after
            .map(|wait| now + TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX));
        busy
    }

    /// Creates the agent's object at its first run.
    fn introduce(&mut self, store: &mut Store) -> bool {
        if self.published.is_some() {
            return false;
        }
        let object = json!({"metadata": {"name": self.name}, "spec": {}});
        // The object already exists if the node has returned.
        let _ = store.create(&self.agent_actor(), WatchedKind::NodeAgent, object, false);
        self.publish_agent(introduction(), store)
    }

    fn publish_agent(&mut self, status: NodeAgentStatus, store: &mut Store) -> bool {
        self.published = Some(status.clone());
        let at_once = self.faults.news_take.is_zero() && !self.faults.cut_off;
        if at_once && self.under_way.is_empty() {
            return self.write_agent(&status, store);
        }
        let at = self.clock.now() + self.faults.news_take;
        self.under_way.push_back((at, status));
        true
    }

    /// Delivers writes that have been in flight for long enough.
    fn deliver(&mut self, store: &mut Store) -> bool {
        if self.faults.cut_off {
            return false;
        }
        let now = self.clock.now();
        let mut busy = false;
        while let Some((_, status)) = self.under_way.pop_front_if(|(at, _)| *at <= now) {
            busy |= self.write_agent(&status, store);
        }
        busy
    }

    fn write_agent(&self, status: &NodeAgentStatus, store: &mut Store) -> bool {
        let patch = Patch::Merge(json!({"status": status}));
        let key = Key::new("", &self.name);
        let written = store.patch(
            &self.agent_actor(),
            WatchedKind::NodeAgent,
            &key,
            &patch,
            true,
        );
        written.is_ok()
    }

    fn agent_actor(&self) -> String {
        format!("agent:{}", self.name)
    }
}
