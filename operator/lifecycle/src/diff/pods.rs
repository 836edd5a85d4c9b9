use k8s_openapi::api::core::v1::Pod;
use lockstep_api::gangs::{Assignments, Domain, Gang};
use lockstep_api::ids::{NodeName, Uid};
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;
use lockstep_api::workload::{CauseKind, IncidentStage};

use super::rejected::is_recently_rejected;
use super::removal::{delete, delete_awaited, is_preempted, recreate_grace, unpublish};
use crate::domains::{has_own_coordinator, has_peers, may_have_supervisors, needs_barrier};
use crate::facts::{Facts, NO_NODES, Standing};
use crate::failure::domain::awaits_node;
use crate::gangs::PlacementView;
use crate::ledger::{DomainLedger, GangLedger, Ledger, OpenIncident};
use crate::nodes::NodeInfo;
use crate::objects::pod::{PodPlan, pod};
use crate::objects::supervise::Delivery;
use crate::plan::Action;
use crate::pods::{ContainerView, PodView};
use crate::view::Target;
use crate::wake::Wake;
use lockstep_api::tier::Tier;

/// Most pods of one pass. A queued pod takes about 20 kB.
const MAX_CREATES: usize = 250;
/// Bytes of JSON after which a pass creates no further pod. A template can exceed 1 MB, and several
/// passes run at a time.
const MAX_BYTES: usize = 8 << 20;

#[derive(Default)]
pub(super) struct Creations {
    pub actions: Vec<Action>,
    bytes: usize,
}

impl Creations {
    fn is_full(&self) -> bool {
        self.actions.len() >= MAX_CREATES || self.bytes >= MAX_BYTES
    }

    fn add(&mut self, member: Member, pod: Pod) {
        self.bytes += serde_json::to_vec(&pod).map_or(0, |json| json.len());
        let pod = Box::new(pod);
        self.actions.push(Action::CreatePod { member, pod });
    }
}

pub(super) struct GangPods<'v, 'a> {
    pub facts: &'v Facts<'a>,
    pub ledger: &'v Ledger,
    pub gang: &'v Gang,
    pub entry: &'v GangLedger,
    pub membership: &'v Membership<'a>,
    /// `None`: kube-scheduler has not placed the gang yet.
    pub placement: Option<&'a PlacementView>,
    /// Native pod group that new pods join.
    pub native_group: Option<&'v str>,
}

impl<'a> GangPods<'_, 'a> {
    /// Domains without an incident that waits for its order. A replacement delays only its members.
    fn active_domains(&self) -> impl Iterator<Item = (&Domain, &DomainLedger)> {
        self.gang.domains.iter().filter_map(|domain| {
            let entry = self.ledger.domain(&domain.key)?;
            let incident = entry.incident.as_ref();
            let decided = incident.is_some_and(|i| i.stage == IncidentStage::Decided);
            (!decided).then_some((domain, entry))
        })
    }

    /// True if kube-scheduler chooses the nodes of new pods. Pods without a native group, which were
    /// created for another backend, keep their nodes.
    fn is_open(&self) -> bool {
        let joins = self.native_group.is_some() || self.gang.basic;
        self.facts.view.kube_scheduler_places() && (joins || self.placement.is_none())
    }

    fn nodes(&self) -> &'a Assignments {
        self.placement.map_or(&NO_NODES, |p| &p.nodes)
    }

    pub fn repair(&self, out: &mut Vec<Action>, wake: &mut Wake) {
        let finished = self.ledger.is_done(self.gang);
        let last_gated = self.last_gated();
        for (domain, entry) in self.active_domains() {
            let is_limited = |kind: CauseKind| !kind.is_requested() || kind.leaves_node();
            let mut causes = entry.open_causes();
            let limited = causes.any(|(cause, ..)| is_limited(cause.kind));
            let longest = recreate_grace(self.facts).filter(|_| limited);
            for member in &domain.members {
                if self.backs_off(entry, member, wake) {
                    continue;
                }
                let current = self
                    .facts
                    .current(entry, member)
                    .filter(|_| self.membership.contains(member));
                for pod in self.facts.pods_of(member) {
                    if current.is_some_and(|c| c.uid == pod.uid) {
                        let waits = last_gated == Some(&pod.uid);
                        out.extend(self.repair_current(member, pod, finished, waits));
                    } else {
                        if self.membership.contains(member)
                            && !self.gang.degrades()
                            && awaits_node(self.facts, self.entry, self.nodes(), member, pod)
                        {
                            continue;
                        }
                        out.extend(unpublish(pod));
                        let observed = self.facts.observe(member, pod);
                        let mut charged = entry.open_causes().filter(|(.., counted)| *counted);
                        if charged.any(|(cause, ..)| observed.may_refund(cause, wake)) {
                            continue;
                        }
                        let longest = longest.filter(|_| !is_preempted(pod));
                        out.extend(delete_awaited(self.facts, pod, longest));
                    }
                }
            }
        }
    }

    /// `finished`: all members of the gang have succeeded. `waits`: the pod is the last gated one of
    /// its native group.
    fn repair_current(
        &self,
        member: &Member,
        pod: &PodView,
        finished: bool,
        waits: bool,
    ) -> Vec<Action> {
        if pod.terminating() {
            return Vec::new();
        }
        let node = self.nodes().get(member).map(NodeName::as_str);
        let misplaced = pod.node.is_none() && self.is_misplaced(pod, node);
        // A sidecar keeps the pod running after training.
        let lingers = finished && !pod.has_stopped();
        // A kubelet that lost its containers starts the member again.
        let again = self.ledger.completed.contains(member) && self.facts.running(member, pod);
        let name_and_uid = || (pod.name.clone(), pod.uid.clone());
        if misplaced || lingers || again {
            unpublish(pod).into_iter().chain(delete(pod)).collect()
        } else if pod.gated && !waits && self.may_be_bound(pod, node) {
            let (name, uid) = name_and_uid();
            vec![Action::RemoveGate { name, uid }]
        } else if !pod.identity.published && !pod.terminal() {
            let (name, uid) = name_and_uid();
            vec![Action::Publish { name, uid }]
        } else {
            Vec::new()
        }
    }

    /// True if an unbound pod waits for another node than that of its member, or does not join the
    /// group that kube-scheduler places.
    fn is_misplaced(&self, pod: &PodView, node: Option<&str>) -> bool {
        let joins = pod.identity.native_group.is_some() || self.gang.basic;
        match pod.pinned.as_deref() {
            Some(pinned) => Some(pinned) != node,
            None if self.facts.view.kube_scheduler_places() => self.placement.is_none() && !joins,
            None => node.is_some(),
        }
    }

    /// The pod of a native group that stays gated until victims have left the nodes. kube-scheduler
    /// tries a native gang when none of its pods is gated. If it fails, it writes the status of each
    /// pod before the next try. Once a member is bound, it binds the rest one by one.
    fn last_gated(&self) -> Option<&Uid> {
        let preempting = self.placement?.preempting.as_ref()?;
        if preempting.binding.is_some() {
            return None;
        }
        let pods = || {
            let pods = self.facts.current_pods(self.ledger, self.gang);
            pods.filter_map(|(_, pod)| pod)
        };
        if pods().any(|pod| pod.node.is_some()) {
            return None;
        }
        let last = pods().find(|pod| pod.gated && pod.identity.native_group.is_some())?;
        Some(&last.uid)
    }

    /// True without victims, or if the scheduler has nominated the node because its victims are
    /// leaving or gone.
    fn may_be_bound(&self, pod: &PodView, node: Option<&str>) -> bool {
        let nominated = pod.nominated.is_some() && pod.nominated.as_deref() == node;
        nominated || !self.is_preempting()
    }

    /// True until the back-off of the member's replacement is over.
    fn backs_off(&self, entry: &DomainLedger, member: &Member, wake: &mut Wake) -> bool {
        let replacement = entry
            .replacement
            .as_ref()
            .filter(|r| r.members.contains(member));
        let until = replacement.and_then(|r| r.not_before);
        until.is_some_and(|until| !self.facts.due(until).passed(wake))
    }

    fn is_preempting(&self) -> bool {
        self.placement.is_some_and(|p| p.preempting.is_some())
    }

    pub fn create(&self, out: &mut Creations, wake: &mut Wake) {
        if self.facts.has_strays() {
            return;
        }
        let gated = self.is_preempting();
        // A rejection releases the placement of a gang that has not run yet.
        let holds =
            self.gang.basic || self.placement.is_none() || self.ledger.is_under_way(self.gang);
        for (domain, entry) in self.active_domains() {
            let incident = entry.incident.as_ref();
            // New pods of a whole domain wait for the end of the old pods: both attempts could
            // rendezvous at the same address.
            let recreates = incident.filter(|i| i.action.replaces_pods());
            if !self.facts.is_ordered(&domain.key, entry.attempt)
                || recreates.is_some_and(|i| self.replaced_pods_run(domain, i))
            {
                continue;
            }
            let others_run = incident.is_some_and(|i| self.others_run(domain, i));
            // The address of a coordinator of several domains must not change.
            let recreations = if has_own_coordinator(self.facts.spec(), self.membership, domain) {
                entry.recreations
            } else {
                0
            };
            for member in &domain.members {
                if out.is_full() {
                    return;
                }
                let missing = !self.ledger.completed.contains(member)
                    && self.membership.contains(member)
                    && self.facts.current(entry, member).is_none()
                    && (self.gang.basic || !entry.awaits_reply_for_loss(member))
                    && !self.backs_off(entry, member, wake);
                let rejected = missing && holds && {
                    let target = Target::Pod(member.clone());
                    is_recently_rejected(self.facts, &target, wake)
                };
                if missing && !rejected {
                    let plan = PodPlan {
                        member,
                        gang: &self.gang.key,
                        domain: &domain.key,
                        attempt: entry.attempt,
                        recreations,
                        place: None,
                        replaces: None,
                        gated,
                        tier: Tier::Plain,
                        supervised: may_have_supervisors(self.gang).then_some(Delivery::Copied),
                        has_peers: has_peers(domain),
                        native_group: self.native_group,
                        quota: self.ledger.kueue.as_ref(),
                    };
                    if let Some(pod) = self.new_pod(plan, others_run, wake) {
                        out.add(member.clone(), pod);
                    }
                }
            }
        }
    }

    /// True if members of the old attempt may run beside a new pod without a supervisor, which does
    /// not wait at the barrier.
    fn others_run(&self, domain: &Domain, incident: &OpenIncident) -> bool {
        let policy = &self.facts.spec().failure_policy.in_place;
        let arrived = incident.stage == IncidentStage::Arrived;
        needs_barrier(policy, domain) && (!arrived || self.replaced_pods_run(domain, incident))
    }

    /// True if a replaced pod may still run its training container.
    fn replaced_pods_run(&self, domain: &Domain, incident: &OpenIncident) -> bool {
        domain.members.iter().any(|member| {
            let pods = self.facts.pods_of(member).iter();
            pods.filter(|pod| incident.replaces_pod(pod))
                .any(|pod| self.may_run(member, pod))
        })
    }

    /// A kubelet that does not know of the deletion yet can have restarted the container that the status
    /// shows as ended. It has had the time to learn of it if the pod does not end in its grace period.
    fn may_run(&self, member: &Member, pod: &PodView) -> bool {
        match self.facts.standing(pod) {
            Standing::Open | Standing::Ending => pod.node.is_some(),
            Standing::Stuck => {
                (self.facts.trainer(member, pod)).is_some_and(ContainerView::running)
            }
            Standing::Lost | Standing::GivenUp | Standing::Ended => false,
        }
    }

    /// `None` while an old pod, the node or its agent prevents the creation, or `others_run` beside a
    /// pod without a supervisor.
    fn new_pod(&self, plan: PodPlan<'_>, others_run: bool, wake: &mut Wake) -> Option<Pod> {
        let facts = self.facts;
        let old_pods = facts.pods_of(plan.member);
        let assigned = self.nodes().get(plan.member).map(NodeName::as_str);
        let node = assigned.filter(|_| !self.is_open());
        if node.is_none() && !facts.view.kube_scheduler_places() {
            return None;
        }
        let mut blocking = old_pods.iter();
        if blocking.any(|p| self.blocks_replacement(p, node))
            || node.is_some_and(|node| !facts.usable(self.entry, node))
        {
            return None;
        }
        let due = node.and_then(|node| facts.agent_due(plan.member, node));
        if plan.supervised.is_some() && due.is_some_and(|due| !due.passed(wake)) {
            return None;
        }
        let plan = PodPlan {
            place: self.placement.zip(node).map(|(p, node)| (node, &*p.id)),
            replaces: old_pods.last().map(|p| p.uid.as_str()),
            // Any node may be chosen, so the pod needs what every node can do.
            tier: node.map_or(Tier::Plain, |node| self.tier(node)),
            supervised: plan.supervised.and_then(|_| facts.delivery(node)),
            ..plan
        };
        if others_run && plan.supervised.is_none() {
            return None;
        }
        pod(facts.view, self.membership, plan)
    }

    /// True if the replacement on `node`, or on any node, must wait for the old pod. The end of a
    /// pod on another, lost node can never be confirmed.
    fn blocks_replacement(&self, old: &PodView, node: Option<&str>) -> bool {
        old.identity.published
            || match self.facts.standing(old) {
                Standing::Open | Standing::Ending | Standing::Stuck => true,
                Standing::Lost => old.node.as_deref() == node,
                Standing::GivenUp | Standing::Ended => false,
            }
    }

    fn tier(&self, node: &str) -> Tier {
        let view = self.facts.view;
        let server = view.dry_run().map_or(Tier::Plain, |d| d.tier);
        let default_info = NodeInfo::default();
        let node = view.nodes().get(node).map_or(&default_info, AsRef::as_ref);
        node.tier(server)
    }
}
