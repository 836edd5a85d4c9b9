use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::{is_true, types};
use lockstep_api::member::MemberSet;
use lockstep_api::node_signal::SignalLevel;
use lockstep_api::scheduling::Preemption;
use lockstep_api::workload::Phase;
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_model::pods::resources::CPU;
use lockstep_model::{CostModel, Node, Pod, Resources};

use super::view::{ClusterView, ObjectName};
use crate::nodes::NodeReport;
use crate::objects::{has_ended, owner};
use crate::published::node_health;

/// The resource that pages count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    pub resource: String,
    accelerators: bool,
}

impl Counted {
    /// Accelerators, or CPU cores if no node and no workload has an accelerator.
    fn of(nodes: &[Node], view: &ClusterView) -> Self {
        let costs = CostModel::default();
        let offers = |name: &&String| nodes.iter().any(|n| n.allocatable.get(name) > 0);
        let offered: Vec<&String> = costs.accelerators.iter().filter(offers).collect();
        let mut rows = view.use_of_accelerators().into_iter();
        let accelerators = !offered.is_empty() || rows.any(|row| row.held + row.wanted > 0);
        let resource = match offered.as_slice() {
            [one] => (*one).clone(),
            _ if accelerators => "accelerators".to_owned(),
            _ => CPU.to_owned(),
        };
        Self {
            resource,
            accelerators,
        }
    }

    pub fn amount(&self, resources: &Resources) -> i64 {
        if self.accelerators {
            CostModel::default().accelerators(resources)
        } else {
            resources.get(CPU) / 1000
        }
    }
}

/// State of what holds or reserves a part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UseState {
    Running,
    Starting,
    Restarting,
    Leaving,
    Reserved,
    Other,
}

impl UseState {
    pub fn letter(self) -> &'static str {
        match self {
            Self::Running => "R",
            Self::Starting => "S",
            Self::Restarting => "X",
            Self::Leaving => "V",
            Self::Reserved => "r",
            Self::Other => "o",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Starting => "starting",
            Self::Restarting => "restarting",
            Self::Leaving => "leaving",
            Self::Reserved => "reserved",
            Self::Other => "other",
        }
    }
}

/// A part of a node in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePart {
    /// Absent: pods of other controllers.
    pub workload: Option<ObjectName>,
    pub amount: i64,
    pub state: UseState,
    /// Latest end, if known.
    pub until: Option<DateTime<Utc>>,
    pub backfill: bool,
}

/// One node with what uses it.
#[derive(Clone, Debug)]
pub struct UsedNode {
    pub labels: BTreeMap<String, String>,
    pub size: i64,
    /// `ready`, `cordoned`, `silent` or `signal`.
    pub state: &'static str,
    pub signal: Option<String>,
    /// False if no gang is placed on what is free.
    pub usable: bool,
    pub parts: Vec<NodePart>,
}

impl UsedNode {
    /// What neither pods nor placements hold. Reservations count as free.
    pub fn idle(&self) -> i64 {
        let held = self.parts.iter().filter(|p| p.state != UseState::Reserved);
        (self.size - held.map(|p| p.amount).sum::<i64>()).max(0)
    }

    /// Latest end of the work on the node, if all ends are known.
    pub fn until(&self) -> Option<DateTime<Utc>> {
        let held = self.parts.iter().filter(|p| p.state != UseState::Reserved);
        let ends: Option<Vec<DateTime<Utc>>> = held.map(|p| p.until).collect();
        ends?.into_iter().max()
    }
}

/// Who uses which node.
#[derive(Clone, Debug)]
pub struct Occupation {
    pub counted: Counted,
    /// `None` without the right to list nodes.
    pub nodes: Option<BTreeMap<String, UsedNode>>,
}

pub fn signals(view: &ClusterView, now: DateTime<Utc>) -> Option<NodeReport> {
    let text = view.configuration.as_ref().map(|(_, text)| text.as_str());
    let config = text.and_then(|text| node_health(text).ok());
    let nodes = view.nodes.as_deref()?;
    let groups = view.groups();
    Some(crate::nodes::nodes(nodes, groups, config.as_ref(), now))
}

/// Preemptors, each with its intent.
pub fn intents(view: &ClusterView) -> impl Iterator<Item = (&PodGroup, &Preemption)> {
    let intents = view.groups().iter();
    let intents = intents.filter_map(|g| Some((g, g.status.as_ref()?.preemption.as_ref()?)));
    intents.filter(|(g, intent)| g.metadata.uid.as_ref() == Some(&intent.preemptor_uid))
}

pub fn occupation(view: &ClusterView, now: DateTime<Utc>) -> Occupation {
    let read = view.nodes.iter().flatten();
    let read: Vec<Node> = read.filter_map(|n| n.scheduling().ok()).collect();
    let counted = Counted::of(&read, view);
    if view.nodes.is_none() {
        let nodes = None;
        return Occupation { counted, nodes };
    }
    let mut nodes = used_nodes(read, &counted, view, now);
    let units = intents(view).flat_map(|(_, intent)| &intent.victims);
    let victims: BTreeSet<&str> = units.map(|v| v.uid.as_str()).collect();
    let gangs = view.groups().iter().filter_map(|group| {
        let workload = owner(view.workloads(), group).filter(|w| !has_ended(w))?;
        Some(GangParts::new(view, &counted, workload, group))
    });
    let gangs: Vec<GangParts<'_>> = gangs.collect();
    for gang in &gangs {
        let uid = gang.group.metadata.uid.as_deref().unwrap_or_default();
        gang.placed(victims.contains(uid), &mut nodes);
    }
    for pod in view.pods.iter().flatten() {
        note_other(pod, &counted, &mut nodes);
    }
    // Reservations come last, because they take only what is idle.
    for gang in &gangs {
        gang.reserved(&mut nodes);
    }
    Occupation {
        counted,
        nodes: Some(nodes),
    }
}

fn used_nodes(
    read: Vec<Node>,
    counted: &Counted,
    view: &ClusterView,
    now: DateTime<Utc>,
) -> BTreeMap<String, UsedNode> {
    let report = signals(view, now);
    let mut found: BTreeMap<&str, (SignalLevel, &str)> = BTreeMap::new();
    for signal in report.iter().flat_map(|r| &r.signals) {
        let this = (signal.level, signal.signal.as_str());
        let worst = found.entry(&signal.node).or_insert(this);
        *worst = this.max(*worst);
    }
    let used = read.into_iter().map(|node| {
        let signal = found.get(node.name.as_str());
        let faulty = signal.is_some_and(|(level, _)| *level == SignalLevel::Faulty);
        let silent = !node.state.is_ready();
        let state = match signal {
            _ if silent => "silent",
            _ if node.state.cordoned => "cordoned",
            Some(_) => "signal",
            None => "ready",
        };
        let used = UsedNode {
            size: counted.amount(&node.allocatable),
            labels: node.labels,
            state,
            signal: signal.map(|(_, name)| (*name).to_owned()),
            usable: !(silent || node.state.cordoned || faulty),
            parts: Vec::new(),
        };
        (node.name.as_str().to_owned(), used)
    });
    used.collect()
}

/// A pod of another controller. Pods of members count by their placements.
fn note_other(pod: &Pod, counted: &Counted, nodes: &mut BTreeMap<String, UsedNode>) {
    let amount = counted.amount(&pod.requests);
    let node = pod.holds().filter(|_| pod.member.is_none());
    if let Some(node) = node.and_then(|n| nodes.get_mut(n))
        && amount > 0
    {
        let known = node.parts.iter_mut().find(|p| p.state == UseState::Other);
        match known {
            Some(part) => part.amount += amount,
            None => node.parts.push(NodePart {
                workload: None,
                amount,
                state: UseState::Other,
                until: None,
                backfill: false,
            }),
        }
    }
}

/// The parts of nodes of one gang.
struct GangParts<'v> {
    view: &'v ClusterView,
    counted: &'v Counted,
    workload: &'v TrainingWorkload,
    group: &'v PodGroup,
    name: ObjectName,
}

impl<'v> GangParts<'v> {
    fn new(
        view: &'v ClusterView,
        counted: &'v Counted,
        workload: &'v TrainingWorkload,
        group: &'v PodGroup,
    ) -> Self {
        Self {
            view,
            counted,
            workload,
            group,
            name: super::view::name_of(workload),
        }
    }

    fn amount(&self, group: &str) -> i64 {
        let requests = self.view.requests(&self.name, group);
        requests.map_or(0, |r| self.counted.amount(r))
    }

    fn amount_of(&self, ranges: &[String]) -> i64 {
        let members = MemberSet::parse(ranges).unwrap_or_default();
        members.iter().map(|m| self.amount(&m.group)).sum()
    }

    fn placed(&self, victim: bool, nodes: &mut BTreeMap<String, UsedNode>) {
        let Some(status) = &self.group.status else {
            return;
        };
        // The nodes of a gang that waits for its victims count as reserved.
        let placement = status.placement.as_ref();
        let Some(placement) = placement.filter(|_| status.preemption.is_none()) else {
            return;
        };
        let phase = self.workload.status.as_ref().and_then(|s| s.phase);
        let leaves = victim || is_true(&status.conditions, types::DISRUPTION_TARGET);
        let state = match phase {
            _ if leaves => UseState::Leaving,
            Some(Phase::Running) | None => UseState::Running,
            Some(Phase::Starting | Phase::Pending) => UseState::Starting,
            Some(Phase::Restarting) => UseState::Restarting,
            Some(_) => UseState::Leaving,
        };
        let backfill = placement.backfill.as_ref().map(|b| b.ends_by);
        for on in &placement.nodes {
            let amount = self.amount_of(&on.members);
            if let Some(node) = nodes.get_mut(&on.node) {
                node.parts.push(NodePart {
                    workload: Some(self.name.clone()),
                    amount,
                    state,
                    until: backfill.or_else(|| deadline(self.workload)),
                    backfill: backfill.is_some(),
                });
            }
        }
    }

    /// Reserved nodes of a waiting gang, and nodes of a gang that waits for its victims.
    fn reserved(&self, nodes: &mut BTreeMap<String, UsedNode>) {
        let Some(status) = &self.group.status else {
            return;
        };
        let reserved = status.reservation.iter().flat_map(|r| &r.nodes);
        let mut wanted: BTreeMap<&str, i64> = BTreeMap::new();
        for on in reserved {
            let counts = on.members.iter();
            let amount: i64 = counts.map(|(g, n)| self.amount(g) * i64::from(*n)).sum();
            *wanted.entry(&on.node).or_default() += amount;
        }
        let intent = status
            .placement
            .as_ref()
            .filter(|_| status.preemption.is_some());
        for on in intent.iter().flat_map(|p| &p.nodes) {
            *wanted.entry(&on.node).or_default() += self.amount_of(&on.members);
        }
        for (node, wanted) in wanted {
            let Some(node) = nodes.get_mut(node).filter(|n| n.usable) else {
                continue;
            };
            let reserved = node.parts.iter().filter(|p| p.state == UseState::Reserved);
            let rest = node.idle() - reserved.map(|p| p.amount).sum::<i64>();
            if wanted.min(rest) > 0 {
                node.parts.push(NodePart {
                    workload: Some(self.name.clone()),
                    amount: wanted.min(rest),
                    state: UseState::Reserved,
                    until: None,
                    backfill: false,
                });
            }
        }
    }
}

/// Latest end of a workload by its own deadline.
fn deadline(workload: &TrainingWorkload) -> Option<DateTime<Utc>> {
    let start = workload.status.as_ref()?.start_time?;
    Some(start + TimeDelta::seconds(workload.spec.active_deadline_seconds?))
}
