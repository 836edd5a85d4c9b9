//! The cluster in memory and the manager's passes over its one workload.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use lockstep_api::member::Member;
use lockstep_api::scheduling::PreemptionPolicy;
use lockstep_api::workload::TrainingWorkloadStatus;
use lockstep_api::{PodGroup, RestartOrderSpec, TrainingWorkload, WorkloadSpec};
use serde_json::Value;

use super::{SimNode, spec};
use crate::node::{NodePod, SeenContainer};
use crate::nodes::AgentInfo;
use crate::pods::{Identity, PodPhase, PodView};
use crate::settings::LifecycleSettings;
use crate::view::{
    DryRun, Held, Priority, RefusalKind, RefusedRequest, ServiceContent, Target, WorkloadId,
    WorkloadView,
};
use crate::{Action, Object, Plan, decide};

/// A pod: what the API server shows, and what its node's runtime really has.
pub(crate) struct SimPod {
    pub shown: PodView,
    pub spec: PodSpec,
    pub on_node: NodePod,
}

impl SimPod {
    /// The running training container.
    pub fn running(&mut self) -> Option<&mut SeenContainer> {
        self.on_node
            .containers
            .iter_mut()
            .find(|c| c.exit.is_none())
    }
}

/// The cluster.
pub(crate) struct World {
    pub now: DateTime<Utc>,
    pub workload: TrainingWorkload,
    pub pods: Vec<SimPod>,
    pub groups: BTreeMap<String, PodGroup>,
    pub service: Option<Held<ServiceContent>>,
    pub scheduling: Option<Held<WorkloadSpec>>,
    pub order: Option<Held<RestartOrderSpec>>,
    pub nodes: BTreeMap<String, SimNode>,
    pub priority: Priority,
    pub settings: LifecycleSettings,
    /// The API server's answer to a dry run.
    pub invalid: Option<String>,
    /// Pods that a quota lets in; None: all.
    pub quota: Option<usize>,
    pub deleted: bool,
    /// How many seconds ahead a deadline may be for [`World::settle`] to wait for it.
    pub patience: u64,
    pub next_id: u32,
    /// Every status that was written.
    pub written: Vec<TrainingWorkloadStatus>,
    /// Requests that the API server has refused.
    pub refusals: Vec<RefusedRequest>,
    dry_run: Option<DryRun>,
    seen_uids: BTreeSet<String>,
}

impl World {
    /// Four nodes with two slots each, and a workload of that spec.
    pub fn new(workload: Value) -> Self {
        let mut object = TrainingWorkload::new("w", spec(workload));
        object.metadata.namespace = Some("ns".into());
        object.metadata.uid = Some("w-uid".into());
        object.metadata.generation = Some(1);
        Self {
            now: DateTime::from_timestamp(1_000_000, 0).unwrap(),
            workload: object,
            pods: Vec::new(),
            groups: BTreeMap::new(),
            service: None,
            scheduling: None,
            order: None,
            nodes: ["n0", "n1", "n2", "n3"]
                .map(|n| (n.to_owned(), SimNode::new(2)))
                .into(),
            priority: Priority::Resolved {
                value: 0,
                preemption: PreemptionPolicy::PreemptLowerPriority,
            },
            settings: LifecycleSettings::default(),
            invalid: None,
            quota: None,
            deleted: false,
            patience: 60,
            next_id: 0,
            written: Vec::new(),
            dry_run: None,
            refusals: Vec::new(),
            seen_uids: BTreeSet::new(),
        }
    }

    pub fn id(&mut self, prefix: &str) -> String {
        self.next_id += 1;
        format!("{prefix}{}", self.next_id)
    }

    pub fn status(&self) -> TrainingWorkloadStatus {
        self.workload.status.clone().unwrap_or_default()
    }

    /// Changes the spec as a user does.
    pub fn edit(&mut self, change: impl FnOnce(&mut lockstep_api::TrainingWorkloadSpec)) {
        change(&mut self.workload.spec);
        self.workload.metadata.generation = self.workload.metadata.generation.map(|g| g + 1);
    }

    pub fn view(&self) -> WorkloadView {
        let agents = self.nodes.iter().map(|(name, n)| {
            let status = n.published.clone();
            (
                name.clone(),
                Arc::new(AgentInfo {
                    ready: n.agent && n.alive,
                    status,
                }),
            )
        });
        WorkloadView {
            id: WorkloadId::read(&self.workload).unwrap(),
            workload: Arc::new(self.workload.clone()),
            pods: self
                .pods
                .iter()
                .map(|p| Arc::new(p.shown.clone()))
                .collect(),
            pod_groups: self
                .groups
                .iter()
                .map(|(k, g)| (k.clone(), Arc::new(g.clone())))
                .collect(),
            scheduling: self.scheduling.clone(),
            service: self.service.clone(),
            order: self.order.clone(),
            nodes: self
                .nodes
                .iter()
                .map(|(name, n)| (name.clone(), Arc::new(n.info())))
                .collect(),
            agents: agents.collect(),
            priority: self.priority.clone(),
            dry_run: self.dry_run.clone(),
            native: None,
            refusals: self.refusals.clone(),
            settings: Arc::new(self.settings.clone()),
        }
    }

    /// One pass of the manager. At most `limit` requests are sent before it crashes. Returns
    /// whether it wrote anything.
    pub fn pass(&mut self, limit: usize) -> bool {
        if self.deleted {
            return false;
        }
        let pass = decide(&self.view(), self.now);
        match pass.plan {
            Plan::Idle(status) => {
                let wrote = limit == usize::MAX && *status != self.status();
                if wrote {
                    self.write(*status);
                }
                return wrote;
            }
            Plan::Record(status) => self.write(*status),
            Plan::Act(actions) => {
                assert!(!actions.is_empty(), "an empty plan is idle");
                for action in actions.into_iter().take(limit) {
                    if !self.send(action) {
                        break;
                    }
                }
                if limit < usize::MAX {
                    // The next leader starts without memory.
                    self.dry_run = None;
                    self.refusals.clear();
                }
            }
        }
        true
    }

    /// Whether the manager has nothing to do and nothing to write.
    pub fn is_idle(&self) -> bool {
        decide(&self.view(), self.now).plan == Plan::Idle(Box::new(self.status()))
    }

    fn write(&mut self, status: TrainingWorkloadStatus) {
        self.written.push(status.clone());
        self.workload.status = Some(status);
    }

    /// The API server. False: refused.
    fn send(&mut self, action: Action) -> bool {
        match action {
            Action::DryRun { spec_hash, pods } => {
                assert!(!pods.is_empty());
                self.dry_run = Some(DryRun {
                    spec_hash,
                    invalid: self.invalid.clone(),
                    keeps_restart_rules: true,
                });
            }
            Action::Create(object) | Action::Update { object, .. } => self.store(object),
            Action::Unpublish { name, uid } => {
                self.pod_named(&name, &uid).shown.identity.published = false;
            }
            Action::MarkDisrupted { name, uid, message } => {
                let condition = crate::pods::ConditionView {
                    status: "True".into(),
                    reason: "PreemptionByScheduler".into(),
                    message,
                    since: None,
                };
                self.pod_named(&name, &uid)
                    .shown
                    .conditions
                    .insert("DisruptionTarget".into(), condition);
            }
            Action::DeletePod { name, uid } => {
                let now = self.now;
                let pod = self.pod_named(&name, &uid);
                pod.shown.deleted_at.get_or_insert(now);
            }
            Action::RemoveGate { name, uid } => self.pod_named(&name, &uid).shown.gated = false,
            Action::CreatePod { member, pod } => return self.create(&member, *pod),
            Action::DeletePodGroup { uid, .. } => {
                self.groups
                    .retain(|_, g| g.metadata.uid.as_ref() != Some(&uid));
            }
            Action::DeleteWorkload { uid } => {
                assert_eq!(uid, "w-uid");
                self.deleted = true;
            }
        }
        true
    }

    /// Every request names a pod of ours by UID.
    fn pod_named(&mut self, name: &str, uid: &str) -> &mut SimPod {
        let pod = self
            .pods
            .iter_mut()
            .find(|p| p.shown.uid == uid)
            .expect("a request names a pod that exists");
        assert_eq!(
            (pod.shown.name.as_str(), pod.shown.owner_uid.as_str()),
            (name, "w-uid")
        );
        pod
    }

    fn store(&mut self, object: Object) {
        let held = self.id("rv");
        match object {
            Object::Service(s) => {
                let spec = s.spec.unwrap();
                let content = ServiceContent {
                    selector: spec.selector.unwrap(),
                    publish_not_ready_addresses: spec.publish_not_ready_addresses.unwrap(),
                };
                self.service = Some(Held {
                    uid: "s".parse().unwrap(),
                    resource_version: held.parse().unwrap(),
                    owned: true,
                    content,
                });
            }
            Object::Workload(w) => {
                self.scheduling = Some(Held {
                    uid: "wl".parse().unwrap(),
                    resource_version: held.parse().unwrap(),
                    owned: true,
                    content: w.spec,
                });
            }
            Object::RestartOrder(o) => {
                self.order = Some(Held {
                    uid: "o".parse().unwrap(),
                    resource_version: held.parse().unwrap(),
                    owned: true,
                    content: o.spec,
                });
            }
            Object::PodGroup(mut g) => {
                let key = g.spec.gang_key.clone();
                let old = self.groups.get(&key);
                g.metadata.uid = Some(
                    old.and_then(|o| o.metadata.uid.clone())
                        .unwrap_or(format!("pg-{key}")),
                );
                g.metadata.resource_version = Some(held);
                g.status = old.and_then(|o| o.status.clone());
                self.groups.insert(key, *g);
            }
        }
    }

    fn create(&mut self, member: &Member, pod: Pod) -> bool {
        let name = pod.metadata.name.clone().unwrap();
        assert!(
            self.pods.iter().all(|p| p.shown.name != name),
            "pod name {name} is in use"
        );
        if self
            .quota
            .is_some_and(|q| self.pods.iter().filter(|p| !p.shown.terminal()).count() >= q)
        {
            let target = Target::Pod(member.clone());
            let (kind, message) = (RefusalKind::QuotaExceeded, "exceeded quota".to_owned());
            self.refusals = vec![RefusedRequest {
                target,
                kind,
                message,
                at: self.now,
            }];
            return false;
        }
        let uid = self.id("pod");
        assert!(self.seen_uids.insert(uid.clone()));
        let labels = pod.metadata.labels.unwrap();
        let annotations = pod.metadata.annotations.unwrap();
        let spec = pod.spec.unwrap();
        let identity = Identity::read(&labels, &annotations);
        assert_eq!(identity.member.as_ref(), Some(member));
        let gated = spec.scheduling_gates.is_some();
        let pinned = pinned_node(&spec);
        let on_node = NodePod::read(&uid, &labels, &annotations).unwrap();
        let shown = PodView {
            name,
            uid,
            owner_uid: "w-uid".into(),
            identity,
            pinned,
            gated,
            created_at: self.now,
            phase: PodPhase::Pending,
            ..PodView::default()
        };
        self.pods.push(SimPod {
            shown,
            spec,
            on_node,
        });
        true
    }

    /// Lets everything run until nothing is written any more; time passes to the next deadline.
    pub fn settle(&mut self) {
        for _ in 0..400 {
            let mut busy = false;
            while self.pass(usize::MAX) {
                busy = true;
            }
            busy |= self.schedule();
            let nodes: Vec<String> = self.nodes.keys().cloned().collect();
            for node in &nodes {
                busy |= self.kubelet(node);
                busy |= self.agent(node);
            }
            let next = decide(&self.view(), self.now).requeue_after;
            let step = match next {
                _ if busy => TimeDelta::seconds(1),
                Some(wait) if wait.as_secs() <= self.patience => TimeDelta::from_std(wait).unwrap(),
                _ => return,
            };
            self.now += step;
        }
        panic!("does not settle: {:?}", self.status());
    }

    /// Lets time pass, and everything settle.
    pub fn wait(&mut self, seconds: i64) {
        self.now += TimeDelta::seconds(seconds);
        self.settle();
    }

    /// The pod that stands for a member: the newest that is not on its way out.
    pub fn pod(&mut self, group: &str, index: i32) -> &mut SimPod {
        let member = Member::new(group, index, 0);
        let mine = |p: &&mut SimPod| {
            p.shown.identity.member.as_ref() == Some(&member) && !p.shown.terminating()
        };
        self.pods
            .iter_mut()
            .rev()
            .find(mine)
            .expect("the member has a pod")
    }

    /// A container of a member exits.
    pub fn exit(&mut self, group: &str, index: i32, code: i32) {
        let uid = self.pod(group, index).shown.uid.clone();
        assert!(self.exit_pod(&uid, code), "it runs");
    }

    /// The container of a pod exits, if it runs.
    pub fn exit_pod(&mut self, uid: &str, code: i32) -> bool {
        let at = self.now;
        let pod = self.pods.iter_mut().find(|p| p.shown.uid == uid);
        let Some(container) = pod.and_then(SimPod::running) else {
            return false;
        };
        container.exit = Some(crate::node::Exit {
            code,
            reason: "Error".into(),
            at,
        });
        true
    }

    /// UIDs of the pods that are there and not on their way out, by name of the member.
    pub fn uids(&self) -> BTreeMap<String, String> {
        let there = self.pods.iter().filter(|p| !p.shown.terminating());
        there
            .map(|p| {
                (
                    p.shown.identity.member.clone().unwrap().to_string(),
                    p.shown.uid.clone(),
                )
            })
            .collect()
    }

    /// Restart counts of the training containers, by name of the member.
    pub fn restarts(&self) -> Vec<i32> {
        let mut out: Vec<(Member, i32)> = self
            .pods
            .iter()
            .filter(|p| !p.shown.terminating())
            .map(|p| {
                (
                    p.shown.identity.member.clone().unwrap(),
                    p.shown.containers.values().map(|c| c.restart_count).sum(),
                )
            })
            .collect();
        out.sort();
        out.into_iter().map(|(_, n)| n).collect()
    }

    /// Reason of a condition, with `!` in front when it is False.
    pub fn condition(&self, type_: &str) -> String {
        let status = self.status();
        let Some(c) = lockstep_api::condition::find(&status.conditions, type_) else {
            return "absent".into();
        };
        let not = if c.status == true.into() { "" } else { "!" };
        format!("{not}{}", c.reason)
    }
}

fn pinned_node(spec: &PodSpec) -> Option<String> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let field = required
        .node_selector_terms
        .first()?
        .match_fields
        .as_ref()?
        .first()?;
    field.values.as_ref()?.first().cloned()
}
