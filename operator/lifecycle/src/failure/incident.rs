//! Opens, extends and supersedes incidents, and restarts domains without a failure.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::ids::NodeName;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::membership::{Membership, Rank};
use lockstep_api::time::doubling;
use lockstep_api::workload::{Cause, CauseKind, FailureAction, IncidentStage};

use super::domain::{Consequence, DomainPass, DomainScope, keeps_pod};
use super::policy::{Failure, Response, began, respond};
use super::restart_budget::{refund, refund_dependents};
use crate::cause::describe;
use crate::changes::Tries;
use crate::domains::{has_peers, may_keep_pods};
use crate::facts::Facts;
use crate::ledger::{Avoidance, DomainLedger, Ledger, OpenIncident};
use crate::pods::PodView;
use lockstep_api::tier::Tier;

/// First and longest wait of the kubelet's back-off.
const KUBELET_BACKOFF: (TimeDelta, TimeDelta) = (TimeDelta::seconds(10), TimeDelta::minutes(5));

/// Reason of condition `DisruptionTarget` of pods evicted through the API.
const EVICTED_BY_API: &str = "EvictionByEvictionAPI";

/// After this many consecutive uncounted restarts, the failed member moves to another node.
const UNCOUNTED_TRIES: i32 = 2;

struct Superseded {
    /// The superseded incident, already in the history.
    incident: Option<OpenIncident>,
    /// Members to which that incident owes a new pod.
    owed: Vec<Member>,
    tries: Tries,
}

impl DomainPass<'_> {
    /// Opens an incident, or replaces single pods. Returns a consequence instead if that does not
    /// suffice.
    pub fn apply_response(&mut self, response: Response) -> Option<Consequence> {
        refund_dependents(self.facts, self.ledger, self.scope.gang);
        let result = if response.action.affects_single_pod() {
            self.replace_pods(response)
        } else {
            self.restart_members(response)
        };
        result.err()
    }

    fn restart_members(&mut self, response: Response) -> Result<(), Consequence> {
        let superseded = self.supersede();
        let tries = superseded.tries.counted;
        let charged = self.charge(&response, superseded.incident.as_ref(), tries)?;
        self.restart(response, superseded, charged);
        Ok(())
    }

    /// Opens an incident without a failure or a charge.
    pub fn open_uncounted(
        &mut self,
        action: FailureAction,
        cause: Cause,
        replace: BTreeSet<Member>,
    ) {
        let response = Response::uncounted(action, cause, replace);
        let superseded = self.supersede();
        self.restart(response, superseded, false);
    }

    fn supersede(&mut self) -> Superseded {
        let (owed, tries) = (self.owed(), self.tries());
        self.ledger.close_replacement(self.facts, self.key(), false);
        Superseded {
            incident: self.ledger.close_incident(self.facts, self.key(), false),
            owed,
            tries,
        }
    }

    /// Members that are being replaced and have no new pod yet. The next incident must replace
    /// them.
    fn owed(&self) -> Vec<Member> {
        let domain = self.entry();
        let missing = |m: &&&Member| self.facts.current(domain, m).is_none();
        let replaced = self.scope.all.iter().filter(|m| domain.replaces(m));
        replaced.filter(missing).map(|m| (*m).clone()).collect()
    }

    /// Zero after `healthyReset` without an incident.
    pub(super) fn tries(&self) -> Tries {
        let reset = self.facts.view.settings().healthy_reset;
        let domain = self.entry();
        let since = domain.healthy_since;
        if since.is_some_and(|since| since + reset <= self.facts.now) {
            return Tries::default();
        }
        Tries {
            counted: domain.tries,
            uncounted: domain.uncounted_tries,
        }
    }

    fn restart(&mut self, mut response: Response, superseded: Superseded, charged: bool) {
        let (facts, key, domain) = (self.facts, self.key(), self.entry());
        let Superseded { owed, tries, .. } = superseded;
        let action = self.escalate(domain, response.action, tries.all());
        let (after, not_before) = response.back_off(facts, tries);
        let mut replace = response.replace;
        replace.extend(owed);
        let drains = is_drain(facts, &response.cause);
        for &member in &self.scope.all {
            let drained = drains && is_on_cordoned_node(facts, domain, member);
            if drained || self.gets_new_pod(domain, action, member) {
                replace.insert(member.clone());
            }
        }
        // Attempts never decrease, even if another client has changed the order.
        let ordered = facts.order(key).map_or(0, |o| o.attempt);
        let mut incident = OpenIncident {
            attempt: domain.attempt.max(ordered).saturating_add(1),
            cause: response.cause,
            action,
            counted: charged,
            stage: IncidentStage::Decided,
            replace: MemberSet::default(),
            old_pods: BTreeSet::new(),
            not_before,
            detected_at: facts.now,
            decided_at: facts.now,
            ordered_at: None,
            arrived_at: None,
        };
        incident.replace_members(facts, replace);
        self.avoid_nodes(response.avoid);
        self.ledger.open_incident(key, incident, after);
        if action.replaces_pods() {
            self.ledger.note_recreation(key);
        }
        let DomainScope {
            gang, domain, all, ..
        } = &self.scope;
        self.ledger
            .forget_unfinished(facts.spec(), gang, domain, all.iter().copied());
    }

    pub(super) fn avoid_nodes(&mut self, avoid: Vec<(NodeName, Avoidance)>) {
        for (node, avoidance) in avoid {
            self.ledger
                .avoid_node(&self.scope.gang.key, node, avoidance);
        }
    }

    fn gets_new_pod(&self, domain: &DomainLedger, action: FailureAction, member: &Member) -> bool {
        let (facts, pod) = (self.facts, self.facts.current(domain, member));
        let stays = pod.is_some_and(|p| keeps_pod(facts, self.scope.domain, member, p));
        action.replaces_pods() || !stays
    }

    /// Replaces a restart in place by new pods in three cases: the policy requires a barrier and
    /// no pod has one; the in-place tries are used up; the kubelet's back-off, which also
    /// doubles, exceeds the duration of a restart with new pods.
    fn escalate(&self, domain: &DomainLedger, action: FailureAction, tries: i32) -> FailureAction {
        let facts = self.facts;
        let in_place = &facts.spec().failure_policy.in_place;
        // `None`: the tier is unknown.
        let current = |m: &&Member| facts.current(domain, m);
        let pods = self.scope.unfinished.iter().filter_map(current);
        let has_peers = has_peers(self.scope.domain);
        // Only members without a supervisor get new pods if other members have one.
        let tiers = pods
            .map(|pod| pod.identity.tier)
            .filter(|tier| may_keep_pods(in_place, has_peers, tier.is_some_and(Tier::has_barrier)));
        let tiers: Vec<Option<Tier>> = tiers.collect();
        let denied = tiers.is_empty() && !may_keep_pods(in_place, has_peers, false);
        let (first, longest) = KUBELET_BACKOFF;
        let held_back = doubling(first, longest, tries) > facts.view.settings().recreate_takes;
        let slow = held_back && tiers.iter().any(|t| t.is_none_or(Tier::kubelet_backs_off));
        if denied || tries >= in_place.max_tries || slow {
            action.with_new_pods()
        } else {
            action
        }
    }

    /// Adds failures of the ended attempt to the open incident.
    pub fn merge_into_incident(&mut self, failures: &[Failure]) -> Option<Consequence> {
        let (facts, key) = (self.facts, self.key());
        let response = respond(facts, failures)?;
        let mut incident = self.incident()?.clone();
        if response.action.ends_workload() {
            return Some(Consequence::FailWorkload(
                reasons::FAILURE_POLICY,
                describe(&response.cause),
            ));
        }
        let mut consequence = None;
        if is_better_cause(facts, &incident, &response.cause) {
            incident.cause = response.cause;
            if incident.counted && !response.counted {
                // The earlier, uncounted cause led to the charged failure.
                refund(self.ledger, key, &mut incident);
            }
            let paid = incident.counted || self.ledger.follows_charged(key, &incident);
            if response.counted && !paid {
                incident.counted = true;
                let limits = &facts.spec().failure_policy.limits;
                if !self.ledger.budget.charge(limits, facts.now) {
                    consequence = Some(self.over_budget(&incident.cause));
                }
            }
        }
        self.avoid_nodes(response.avoid);
        let mut members = response.replace;
        let action = incident.action.or_more_severe(response.action);
        let escalates = action.replaces_pods() && !incident.action.replaces_pods();
        incident.action = action;
        if escalates {
            // Members with new pods get new pods again, because the coordinator's address changes.
            self.ledger.note_recreation(key);
            members.extend(self.scope.unfinished.iter().map(|m| (*m).clone()));
        } else {
            members.retain(|m| !incident.replace.contains(m));
        }
        incident.replace_members(facts, members);
        self.entry_mut().incident = Some(incident);
        consequence
    }

    /// Restarts the domain with new pods, because the number or the ranks of its members change. An
    /// open incident becomes that restart.
    fn recreate(&mut self, message: &str) {
        let (facts, key) = (self.facts, self.key());
        let members: BTreeSet<Member> = self.scope.all.iter().map(|m| (*m).clone()).collect();
        let domain = self.entry_mut();
        if let Some(incident) = &mut domain.incident {
            incident.action = incident.action.or_more_severe(FailureAction::RecreateGang);
            incident.replace_members(facts, members);
            self.ledger.note_recreation(key);
            return;
        }
        if members.iter().any(|m| facts.current(domain, m).is_some()) {
            let cause = Cause::requested(CauseKind::Resize, facts.now, message);
            self.open_uncounted(FailureAction::RecreateGang, cause, BTreeSet::new());
        }
    }
}

/// True if a drain evicted the pod. Evictions of members on other cordoned nodes will follow, and
/// each would restart the domain.
fn is_drain(facts: &Facts<'_>, cause: &Cause) -> bool {
    cause.kind == CauseKind::PodDeleted
        && cause.reason == EVICTED_BY_API
        && facts.node_state(&cause.node).cordoned
}

fn is_on_cordoned_node(facts: &Facts<'_>, domain: &DomainLedger, member: &Member) -> bool {
    let pod = facts.current(domain, member);
    pod.and_then(PodView::place)
        .is_some_and(|node| facts.node_state(node).cordoned)
}

impl Response {
    fn uncounted(action: FailureAction, cause: Cause, replace: BTreeSet<Member>) -> Self {
        Self {
            action,
            cause,
            counted: false,
            failed: None,
            replace,
            avoid: Vec::new(),
        }
    }

    /// The tries with this failure, and the end of the back-off. Many uncounted tries move the
    /// failed member: on the same node, they could repeat forever.
    pub(super) fn back_off(
        &mut self,
        facts: &Facts<'_>,
        tries: Tries,
    ) -> (Tries, Option<DateTime<Utc>>) {
        // Requests and failed starts are no failures of the program.
        let repeats = !self.counted && self.failed.is_some() && repeats(&self.cause);
        let mut after = tries;
        let number = if self.counted {
            after.counted = tries.counted.saturating_add(1);
            tries.counted
        } else if repeats {
            after.uncounted = tries.uncounted.saturating_add(1);
            tries.uncounted
        } else {
            0
        };
        if repeats && tries.uncounted >= UNCOUNTED_TRIES {
            self.replace.extend(self.failed.take());
            self.avoid.extend(node_of(facts, &self.cause));
        }
        let settings = facts.view.settings();
        let longest = settings.incident_backoff_max;
        let wait = doubling(settings.incident_backoff, longest, number);
        (after, (!wait.is_zero()).then(|| facts.now + wait))
    }
}

/// True if a restart may repeat an uncounted cause. Drains, lost nodes and requests are external.
/// Deletions without a reason are external too, but back-off limits clients that repeat them.
fn repeats(cause: &Cause) -> bool {
    match cause.kind {
        CauseKind::ContainerExit | CauseKind::PodFailed | CauseKind::Hang => true,
        CauseKind::PodDeleted => cause.reason.is_empty(),
        CauseKind::NodeLost
        | CauseKind::Preempted
        | CauseKind::Requested
        | CauseKind::Resize
        | CauseKind::DependencyBroken
        | CauseKind::NodeLeaving
        | CauseKind::NodeFaulty => false,
    }
}

fn node_of(facts: &Facts<'_>, cause: &Cause) -> Option<(NodeName, Avoidance)> {
    let until = facts.now + facts.view.settings().avoid;
    let avoidance = Avoidance::new(reasons::FAILED_MEMBER, until);
    Some((NodeName::read(Some(&cause.node))?, avoidance))
}

/// True if a later known cause replaces the cause of the incident.
fn is_better_cause(facts: &Facts<'_>, incident: &OpenIncident, cause: &Cause) -> bool {
    // Members can fail because their peers restart on request.
    if incident.cause.kind.is_requested() {
        return false;
    }
    // Pod status can have shown a masked exit code.
    let same = (&cause.pod, cause.kind) == (&incident.cause.pod, incident.cause.kind);
    let corrected = same && cause.exit_code != incident.cause.exit_code;
    let detected = incident.detected_at;
    corrected
        || began(facts, cause, detected, facts.now)
            < began(facts, &incident.cause, detected, detected)
}

/// Restarts all placed domains with pods.
pub(crate) fn restart_on_request(facts: &Facts<'_>, ledger: &mut Ledger, cause: &Cause) {
    let membership = ledger.membership(facts.spec());
    for gang in &facts.gangs {
        if facts.placement(ledger, &gang.key).is_none() {
            continue;
        }
        for domain in &gang.domains {
            let scope = DomainScope::of_restart(facts, ledger, &membership, gang, domain);
            let Some(mut pass) = DomainPass::new(facts, ledger, scope) else {
                continue;
            };
            // All requests of one pass share one restart.
            let incident = pass.incident();
            let opened = incident.is_some_and(|i| i.detected_at == facts.now);
            let mut members = pass.scope.all.iter();
            let has_pods = members.any(|m| !facts.pods_of(m).is_empty());
            if has_pods && !opened {
                pass.open_uncounted(FailureAction::RestartGang, cause.clone(), BTreeSet::new());
            }
        }
    }
}

/// Moves members that their nodes did not start. The other members keep their nodes.
pub(crate) fn place_elsewhere(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    gang: &Gang,
    failures: Vec<Failure>,
) {
    let membership = ledger.membership(facts.spec());
    let domains = gang.domains.iter();
    let domain_of: BTreeMap<&Member, &Domain> = domains
        .flat_map(|d| d.members.iter().map(move |m| (m, d)))
        .collect();
    for Failure { member, cause, .. } in failures {
        let Some(&domain) = domain_of.get(&member) else {
            continue;
        };
        let Some(entry) = ledger.domains.get_mut(domain.key.as_str()) else {
            continue;
        };
        if let Some(incident) = &mut entry.incident {
            incident.replace_members(facts, [member]);
            continue;
        }
        if let Some(replacement) = &mut entry.replacement {
            replacement.replace_members(facts, [member]);
            continue;
        }
        let scope = DomainScope::of_restart(facts, ledger, &membership, gang, domain);
        let replace = BTreeSet::from([member]);
        let response = Response::uncounted(FailureAction::RestartPod, cause, replace);
        if let Some(mut pass) = DomainPass::new(facts, ledger, scope) {
            pass.open_replacement(response, false);
        }
    }
}

/// Restarts domains with new pods if members were added, or if ranks or coordinators changed. These
/// are environment variables, which cannot change in place.
pub(crate) fn restart_changed(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    before: &Membership<'_>,
    after: &Membership<'_>,
    message: &str,
) {
    for gang in &facts.gangs {
        if facts.placement(ledger, &gang.key).is_none() {
            continue;
        }
        for domain in &gang.domains {
            let scope = DomainScope::of_restart(facts, ledger, after, gang, domain);
            // Pods may remain from an unhandled resize.
            let entry = ledger.domain(scope.key());
            let has_pod = |m: &Member| entry.is_some_and(|e| facts.current(e, m).is_some());
            let begun = domain
                .members
                .iter()
                .any(|m| before.contains(m) || has_pod(m));
            let moved = scope
                .all
                .iter()
                .any(|m| position(before, m) != position(after, m));
            let over = domain.members.iter().all(|m| !after.contains(m));
            if over {
                ledger.close_open(facts, scope.key(), false);
                ledger.vacate_domain(facts, scope.key());
            } else if begun
                && moved
                && !gang.basic
                && let Some(mut pass) = DomainPass::new(facts, ledger, scope)
            {
                pass.recreate(message);
            }
        }
    }
}

/// `None` while a member does not run.
fn position(membership: &Membership<'_>, member: &Member) -> Option<(Rank, Member)> {
    Some((membership.place(member)?, membership.coordinator(member)))
}
