//! A gang of two: one member is the recorded pod, the other runs without failure. The lifecycle's
//! records are kept. Its requests are listed, but only our own objects change, because the
//! recording is fixed.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use k8s_openapi::api::core::v1::PodSpec;
use lockstep_api::ids::GangKey;
use lockstep_api::names::RESTART_ALL_FEATURE;
use lockstep_api::node_agent::capabilities;
use lockstep_api::scheduling::{NodePlacement, Placement, PreemptionPolicy};
use lockstep_api::tier::Tier;
use lockstep_api::workload::TrainingWorkloadStatus;
use lockstep_api::{NodeAgentStatus, NodeState, PodGroup, Reach, TrainingWorkload};
use lockstep_kubelet::traces::Seen;
use lockstep_lifecycle::gangs::GangView;
use lockstep_lifecycle::nodes::{AgentInfo, NodeInfo};
use lockstep_lifecycle::view::{
    DryRun, Held, KueueView, NativeView, Priority, ServiceContent, WorkloadId,
};
use lockstep_lifecycle::{Action, LifecycleSettings, Object, Plan, PodView, WorkloadView, decide};
use lockstep_manager::stepped::read_member;
use lockstep_model::parse::partial::PartialPod;
use serde_json::{Value, json};

/// Node of the running member.
const OTHER: &str = "other";
/// UID of the workload.
const UID: &str = "w-uid";
/// Maximum number of passes for an event.
const PASSES: usize = 30;

/// Variants of the gang for the recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Without agents and with the default failure policy: restarts create new pods.
    Plain,
    /// With ready agents that send no reports, and restarts in place without a supervisor.
    SilentAgents,
    /// With the same agents, and a policy that leaves every exit to the kubelet's restart.
    KubeletRestarts,
}

/// A pass that recorded or requested something.
pub enum Step {
    /// The status before and after.
    Record(Box<(TrainingWorkloadStatus, TrainingWorkloadStatus)>),
    /// Requests.
    Act(Vec<Action>),
}

/// The gang.
#[derive(Clone)]
pub struct Gang {
    pub now: DateTime<Utc>,
    pub tier: Tier,
    pub workload: TrainingWorkload,
    setting: Setting,
    node: String,
    node_lost_since: Option<DateTime<Utc>>,
    groups: BTreeMap<GangKey, Arc<PodGroup>>,
    view: Option<WorkloadView>,
    /// Metadata and spec of the created pods, by index of the replica.
    made: BTreeMap<usize, Value>,
    /// Current state of the pods.
    pods: [Option<Arc<PodView>>; 2],
    /// True after the start of the recording.
    begun: bool,
}

impl Gang {
    /// The gang before the recording of a pod on `node`.
    pub fn new(setting: Setting, spec: &PodSpec, node: &str, origin: DateTime<Utc>) -> Self {
        let containers = |all: &[k8s_openapi::api::core::v1::Container]| -> Vec<Value> {
            let kept = |c: &k8s_openapi::api::core::v1::Container| {
                let always = c.restart_policy.as_deref() == Some("Always");
                json!({"name": c.name, "image": "i",
                    "restartPolicy": always.then_some("Always")})
            };
            all.iter().map(kept).collect()
        };
        let in_place = match setting {
            Setting::Plain => "Deny",
            Setting::SilentAgents | Setting::KubeletRestarts => "Allow",
        };
        let rules = match setting {
            Setting::Plain | Setting::SilentAgents => json!([]),
            Setting::KubeletRestarts => {
                json!([{"name": "alone", "match": {}, "action": "RestartContainer"}])
            }
        };
        let template = json!({"spec": {
            "containers": containers(&spec.containers),
            "initContainers": containers(spec.init_containers.as_deref().unwrap_or_default()),
        }});
        let workload = json!({
            "groups": [{"name": "g", "replicas": 2, "template": template}],
            "failurePolicy": {"inPlace": {"withoutSupervisor": in_place}, "rules": rules},
        });
        let mut workload =
            TrainingWorkload::new("w", serde_json::from_value(workload).expect("a spec"));
        workload.metadata.namespace = Some("ns".into());
        workload.metadata.uid = Some(UID.into());
        workload.metadata.generation = Some(1);
        let mut gang = Self {
            now: origin - TimeDelta::seconds(1),
            tier: Tier::Plain,
            workload,
            setting,
            node: node.to_owned(),
            node_lost_since: None,
            groups: BTreeMap::new(),
            view: None,
            made: BTreeMap::new(),
            pods: [None, None],
            begun: false,
        };
        gang.bring_up();
        gang.note_tier(spec);
        gang
    }

    /// Runs passes until both pods are created.
    fn bring_up(&mut self) {
        for _ in 0..PASSES {
            let rests = self.pass().is_none();
            if rests && self.made.len() == 2 {
                break;
            }
            let unplaced = self.groups.values().any(|g| g.status.is_none());
            let started = self.status().gangs.iter().any(|g| g.started);
            if unplaced && started {
                self.place();
            }
        }
        assert_eq!(
            self.made.len(),
            2,
            "both pods are made: {:?}",
            self.status()
        );
    }

    fn place(&mut self) {
        let on = |node: &str, members: &str| NodePlacement {
            node: node.to_owned(),
            members: vec![members.to_owned()],
        };
        let placement = Placement {
            id: "placement".into(),
            decided_at: self.now,
            members: 2,
            nodes: vec![on(&self.node, "g/0/0"), on(OTHER, "g/1/0")],
            ..Placement::default()
        };
        for group in self.groups.values_mut() {
            let group = Arc::make_mut(group);
            group.status.get_or_insert_default().placement = Some(placement.clone());
        }
    }

    /// The tier of the recorded pod follows from its restart rules.
    fn note_tier(&mut self, spec: &PodSpec) {
        let rules = spec.containers[0].restart_policy_rules.iter().flatten();
        let action = rules.map(|r| r.action.clone()).next();
        let made = self
            .made
            .get_mut(&0)
            .expect("the pod of the recorded member");
        let tier = &mut made["metadata"]["annotations"][lockstep_api::names::annotations::TIER];
        let recorded = match (action.as_deref(), spec.restart_policy.as_deref()) {
            (Some("RestartAllContainers"), _) => Some(Tier::RestartAll),
            (Some(_), _) => Some(Tier::RestartRules),
            (None, Some("Never")) => None,
            (None, _) => Some(Tier::Plain),
        };
        if let Some(recorded) = recorded {
            *tier = json!(recorded.as_str());
        }
        self.tier = tier.as_str().unwrap_or_default().parse().expect("a tier");
    }

    /// True before the first incident.
    pub fn is_calm(&self) -> bool {
        let status = self.status();
        status.completion_time.is_none()
            && status.history.is_empty()
            && status.domains.iter().all(|d| !d.is_restarting())
            && status.gangs.iter().all(|g| g.released.is_none())
    }

    pub fn status(&self) -> TrainingWorkloadStatus {
        self.workload.status.clone().unwrap_or_default()
    }

    /// Applies a watch event of the recorded pod.
    pub fn sees(&mut self, seen: &Seen) {
        if seen.watch == "DELETED" {
            self.pods[0] = None;
            return;
        }
        let made = self.made.get_mut(&0).expect("a recorded member");
        if !self.begun {
            made["metadata"]["creationTimestamp"] = json!(self.now.trunc_subsecs(0));
            self.begun = true;
        }
        let mut pod = made.clone();
        pod["metadata"]["deletionTimestamp"] = json!(seen.deletion_timestamp);
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(seen.deletion_grace_period_seconds);
        pod["spec"]["nodeName"] = json!(seen.node_name);
        pod["status"] = seen.status.clone();
        self.node_lost_since = node_controller_says_unready(&seen.status)
            .then(|| self.node_lost_since.unwrap_or(self.now));
        self.pods[0] = Some(member(pod));
    }

    /// Runs all due passes.
    pub fn passes(&mut self) -> Vec<Step> {
        let mut out = Vec::new();
        while let Some(step) = self.pass() {
            // The recording does not react to the requests, which would be repeated.
            let ignored = matches!(&step, Step::Act(all) if !all.iter().all(is_about_our_objects));
            out.push(step);
            assert!(out.len() < PASSES, "comes to rest: {:?}", self.status());
            if ignored {
                break;
            }
        }
        out
    }

    /// Time of the lifecycle's next pass.
    pub fn next_look(&mut self) -> Option<DateTime<Utc>> {
        let after = decide(&self.view(), self.now).requeue_after?;
        Some(self.now + TimeDelta::from_std(after).ok()?)
    }

    fn pass(&mut self) -> Option<Step> {
        match decide(&self.view(), self.now).plan {
            Plan::Idle(status) => {
                self.workload.status = Some(*status);
                None
            }
            Plan::Record(status) => {
                let before = self.status();
                self.workload.status = Some((*status).clone());
                Some(Step::Record(Box::new((before, *status))))
            }
            Plan::Act(actions) => {
                for action in actions.clone() {
                    self.send(action);
                }
                Some(Step::Act(actions))
            }
        }
    }

    fn send(&mut self, action: Action) {
        let mut view = self.view();
        match action {
            Action::DryRun { spec_hash, .. } => {
                view.dry_run = Some(DryRun {
                    spec_hash,
                    at: self.now,
                    until: self.now + TimeDelta::days(1),
                    invalid: None,
                    tier: Tier::RestartAll,
                    failed: false,
                });
            }
            Action::Create(object) | Action::Update { object, .. } => match object {
                Object::Service(s) => {
                    let spec = s.spec.unwrap_or_default();
                    view.service = Some(held(ServiceContent {
                        selector: spec.selector.unwrap_or_default(),
                        publish_not_ready_addresses: spec
                            .publish_not_ready_addresses
                            .unwrap_or_default(),
                    }));
                }
                Object::Workload(w) => view.scheduling = Some(held(w.spec)),
                Object::RestartOrder(o) => view.order = Some(held(o.spec)),
                Object::NativeWorkload(_)
                | Object::NativePodGroup(_)
                | Object::KueueWorkload(_) => {}
                Object::PodGroup(mut g) => {
                    let key = g.spec.gang_key.parse().expect("a key");
                    g.metadata.uid = Some("pg".into());
                    g.metadata.resource_version = Some("1".into());
                    g.status = self.groups.get(&key).and_then(|o| o.status.clone());
                    self.groups.insert(key, Arc::new(*g));
                }
            },
            Action::CreatePod { member, pod } if self.made.len() < 2 => {
                let mut pod = serde_json::to_value(*pod).expect("a pod");
                pod["metadata"]["uid"] = json!(format!("pod-{}", member.replica));
                pod["metadata"]["namespace"] = json!("ns");
                pod["metadata"]["creationTimestamp"] = json!(self.now.trunc_subsecs(0));
                pod["status"] = json!({"phase": "Pending"});
                let index = usize::from(member.replica == 1);
                let shown = if index == 1 {
                    running(pod.clone())
                } else {
                    pod.clone()
                };
                self.pods[index] = Some(self::member(shown));
                self.made.insert(index, pod);
            }
            Action::CreatePod { .. }
            | Action::Unpublish { .. }
            | Action::Publish { .. }
            | Action::MarkDisrupted { .. }
            | Action::DeletePod { .. }
            | Action::EndPod { .. }
            | Action::RemoveGate { .. }
            | Action::DeleteSurplus { .. }
            | Action::DeleteWorkload { .. } => {}
        }
        self.view = Some(view);
    }

    fn view(&self) -> WorkloadView {
        let id = WorkloadId::read(&self.workload).expect("a stored workload");
        let empty = || WorkloadView {
            id: id.clone(),
            workload: Arc::new(self.workload.clone()),
            pods: Vec::new(),
            disrupted: BTreeMap::new(),
            gangs: BTreeMap::new(),
            pod_groups: BTreeMap::new(),
            scheduling: None,
            native: NativeView::default(),
            kueue: KueueView::default(),
            service: None,
            order: None,
            nodes: BTreeMap::new(),
            agents: BTreeMap::new(),
            agent_pods: BTreeMap::new(),
            all_agents_supervise: false,
            priority: Priority::Resolved {
                value: 0,
                preemption: PreemptionPolicy::PreemptLowerPriority,
            },
            dry_run: None,
            rejections: Vec::new(),
            failed: None,
            settings: Arc::new(LifecycleSettings::default()),
        };
        let gangs = self.groups.iter();
        let gangs = gangs.map(|(key, group)| (key.clone(), GangView::read(group)));
        WorkloadView {
            workload: Arc::new(self.workload.clone()),
            pods: self.pods.iter().flatten().cloned().collect(),
            gangs: gangs.collect(),
            pod_groups: self.groups.clone(),
            nodes: self.nodes(),
            agents: self.agents(),
            ..self.view.clone().unwrap_or_else(empty)
        }
    }

    fn nodes(&self) -> BTreeMap<String, Arc<NodeInfo>> {
        let node = |since| {
            Arc::new(NodeInfo {
                not_ready_since: since,
                state: NodeState {
                    reach: since.map_or(Reach::Responding, |_| Reach::Silent { since }),
                    ..NodeState::default()
                },
                declared_features: vec![RESTART_ALL_FEATURE.into()],
                kubelet_version: "v1.37.2".into(),
                ..NodeInfo::default()
            })
        };
        let mine = (self.node.clone(), node(self.node_lost_since));
        [mine, (OTHER.to_owned(), node(None))].into()
    }

    fn agents(&self) -> BTreeMap<String, Arc<AgentInfo>> {
        let agent = || {
            Arc::new(AgentInfo {
                ready: true,
                status: NodeAgentStatus {
                    capabilities: vec![capabilities::STOP.into(), capabilities::REPORT.into()],
                    ..NodeAgentStatus::default()
                },
                ..AgentInfo::default()
            })
        };
        match self.setting {
            Setting::Plain => BTreeMap::new(),
            Setting::SilentAgents | Setting::KubeletRestarts => {
                [(self.node.clone(), agent()), (OTHER.to_owned(), agent())].into()
            }
        }
    }
}

/// True if Ready is False without a reason. The kubelet gives a reason. The node controller, which
/// sets the condition for all pods of a silent node, does not.
fn node_controller_says_unready(status: &Value) -> bool {
    status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|c| c["type"] == "Ready" && c["status"] == "False" && c["reason"].is_null())
}

/// The pod as read by the manager.
fn member(pod: Value) -> Arc<PodView> {
    let partial: PartialPod = serde_json::from_value(pod).expect("a pod");
    let scheduling = partial.scheduling().expect("a pod with its identity");
    // The manager's conversion of a pod, as on a real cluster.
    let (_, view) = read_member(&partial, &scheduling).expect("a member");
    Arc::new(view)
}

fn held<T>(content: T) -> Held<T> {
    Held {
        uid: "uid".parse().expect("a UID"),
        resource_version: "1".parse().expect("a version"),
        owned: true,
        orphaned: false,
        content,
    }
}

/// True for requests whose objects change in this test.
fn is_about_our_objects(action: &Action) -> bool {
    matches!(
        action,
        Action::DryRun { .. } | Action::Create(_) | Action::Update { .. }
    )
}

/// The pod in its running state.
fn running(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = json!(OTHER);
    let running = |list: &str| -> Vec<Value> {
        let names = pod["spec"][list].as_array().cloned().unwrap_or_default();
        let status = |c: Value| {
            let stays = list == "containers" || c["restartPolicy"] == "Always";
            let state = if stays {
                json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
            } else {
                json!({"terminated": {"exitCode": 0, "reason": "Completed"}})
            };
            json!({"name": c["name"], "ready": true, "restartCount": 0, "started": true,
                    "containerID": "containerd://other", "state": state})
        };
        names.into_iter().map(status).collect()
    };
    pod["status"] = json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"},
            {"type": "PodScheduled", "status": "True"}],
        "initContainerStatuses": running("initContainers"),
        "containerStatuses": running("containers"),
    });
    pod
}
