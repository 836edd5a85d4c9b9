//! The difference between what the ledger wants and what is there, as requests.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use lockstep_api::member::Member;
use lockstep_api::workload::{DomainStatus, GangStatus, IncidentStage, TrainingWorkloadStatus};

use super::context::{Ctx, Room, nodes};
use super::{ended, orders, rooms};
use crate::build::{self, PodPlan, spec_hash};
use crate::gangs::{Domain, Gang};
use crate::plan::{Action, Object};
use crate::pods::PodView;
use crate::ranks::World;
use crate::tier::Tier;
use crate::view::{NodeInfo, Priority, Target};

/// Most pods that one pass creates: a pod object takes some ten kilobytes while it waits to be sent.
const MAX_CREATES: usize = 500;

/// Everything that is to be done now, in order.
pub(super) fn actions(ctx: &Ctx<'_>, ledger: &TrainingWorkloadStatus) -> Vec<Action> {
    let mut out = Vec::new();
    if ended(ledger) {
        clean_up(ctx, ledger, &mut out);
    } else if ctx.view.spec().suspend {
        let done = ledger.completed(&ctx.view.spec().groups);
        out.extend(ctx.pods().filter(|p| !keeps(&done, p)).filter_map(delete));
    } else if ledger.applied.is_none() {
        out.extend(dry_run(ctx));
    } else {
        run(ctx, ledger, &mut out);
    }
    out.sort_by_key(Action::rank);
    out
}

/// After the end: what still runs is deleted, and in its time the workload itself. Ended pods stay for their logs.
fn clean_up(ctx: &Ctx<'_>, ledger: &TrainingWorkloadStatus, out: &mut Vec<Action>) {
    out.extend(ctx.pods().filter(|p| !p.terminal() && !p.winding_up()).filter_map(delete));
    let ttl = ctx.view.spec().ttl_seconds_after_finished;
    if let (Some(ttl), Some(end)) = (ttl, ledger.completion_time)
        && ctx.due(end + TimeDelta::seconds(ttl))
    {
        out.push(Action::DeleteWorkload { uid: ctx.view.uid().to_owned() });
    }
}

fn run(ctx: &Ctx<'_>, ledger: &TrainingWorkloadStatus, out: &mut Vec<Action>) {
    let applied = ledger.applied.as_ref().map_or("", |a| &a.spec_hash);
    if applied != spec_hash(ctx.view.spec()) {
        // Edited while suspended and not valid now: nothing is made of it, and the ledger says what runs.
        out.extend(dry_run(ctx));
        return;
    }
    let world = World::of(ctx.view.spec(), ledger);
    let complete = objects(ctx, ledger, &world, out);
    surplus(ctx, applied, out);
    let mut creates = Vec::new();
    for gang in &ctx.gangs {
        let Some(entry) = ledger.gangs.iter().find(|g| g.key == gang.key) else { continue };
        match ctx.room(entry) {
            Room::Held(placement) => {
                let view =
                    GangView { ctx, ledger, gang, entry, world: &world, places: nodes(placement), id: &placement.id };
                view.repair(out);
                if complete && entry.started && entry.backoff.is_none() {
                    creates.extend(view.create(MAX_CREATES - creates.len().min(MAX_CREATES)));
                }
            }
            Room::Released => vacate(ctx, ledger, gang, out),
            // A placement that was withdrawn, for want of room or of a node, leaves pods behind that never got in.
            Room::None => {
                let outside =
                    |p: &&&PodView| p.node.is_none() || entry.released.as_deref() == Some(&p.identity.placement);
                out.extend(gang.members().flat_map(|m| ctx.pods_of(m)).filter(outside).filter_map(|p| delete(p)));
            }
        }
    }
    // The tier depends on whether the API server keeps restart rules: it is asked once for each spec.
    let ask = dry_run(ctx);
    if creates.is_empty() || ask.is_none() {
        out.extend(creates);
    } else {
        out.extend(ask);
    }
}

/// Asks whether the pods of this spec are valid, once for each spec.
fn dry_run(ctx: &Ctx<'_>) -> Option<Action> {
    let spec_hash = spec_hash(ctx.view.spec());
    let known = ctx.view.dry_run.as_ref().is_some_and(|d| d.spec_hash == spec_hash);
    if known || ctx.view.priority == Priority::Unknown {
        return None;
    }
    let pods = build::dry_run_pods(ctx.view);
    (!pods.is_empty()).then_some(Action::DryRun { spec_hash, pods })
}

/// Service, Workload, pod groups and orders. Returns whether pods may be made: all of them are there.
fn objects(ctx: &Ctx<'_>, ledger: &TrainingWorkloadStatus, world: &World<'_>, out: &mut Vec<Action>) -> bool {
    let view = ctx.view;
    if view.priority == Priority::Unknown {
        // The class was deleted: what exists keeps the number that it was given.
        return false;
    }
    let before = out.len();
    let mut blocked = false;
    let service = view
        .service
        .as_ref()
        .map(|h| (h.owned, h.content == build::service_content(view), &h.uid, &h.resource_version));
    blocked |= ensure(ctx, Object::Service(Box::new(build::service(view))), service, out);
    if !ctx.gangs.is_empty() {
        let present = view.scheduling.as_ref();
        let mut wanted = build::workload(view, &ctx.gangs);
        if let Some(held) = present {
            for t in &mut wanted.spec.pod_group_templates {
                if let Some(old) = held.content.pod_group_templates.iter().find(|o| o.name == t.name) {
                    keep_priority(&mut t.gang, &old.gang, view.spec().scheduling.preemption_policy.is_some());
                }
            }
        }
        let same = present.map(|h| (h.owned, h.content == wanted.spec, &h.uid, &h.resource_version));
        blocked |= ensure(ctx, Object::Workload(Box::new(wanted)), same, out);
    }
    for gang in &ctx.gangs {
        pod_group(ctx, gang, out);
    }
    for (key, group) in &view.pod_groups {
        if let (None, Some(name), Some(uid)) = (ctx.gang(key), &group.metadata.name, &group.metadata.uid) {
            out.push(Action::DeletePodGroup { name: name.clone(), uid: uid.clone() });
        }
    }
    let wanted = orders::wanted(ctx, ledger, world);
    let present = view.order.as_ref().map(|h| (h.owned, h.content == wanted, &h.uid, &h.resource_version));
    blocked |= ensure(ctx, Object::RestartOrder(Box::new(build::restart_order(view, wanted))), present, out);
    out.len() == before && !blocked
}

/// Creates or updates an object; true when its name is taken by somebody else, or the API server has just said no.
fn ensure(
    ctx: &Ctx<'_>,
    object: Object,
    present: Option<(bool, bool, &String, &String)>,
    out: &mut Vec<Action>,
) -> bool {
    match present {
        Some((false, ..)) => return true,
        Some((true, true, ..)) => {}
        _ if recently_refused(ctx, &object) => return true,
        Some((true, false, uid, version)) => {
            out.push(Action::Update { object, uid: uid.clone(), resource_version: version.clone() });
        }
        None => out.push(Action::Create(object)),
    }
    false
}

/// A refused request is repeated after a while, not in every pass.
fn recently_refused(ctx: &Ctx<'_>, object: &Object) -> bool {
    let target = Target::Object(object.kind(), object.name().to_owned());
    ctx.view.refusals.iter().any(|r| r.target == target && !ctx.due(r.at + ctx.view.settings.retry))
}

fn pod_group(ctx: &Ctx<'_>, gang: &Gang, out: &mut Vec<Action>) {
    let mut wanted = build::pod_group(ctx.view, gang);
    let present = ctx.view.pod_groups.get(&gang.key);
    if let Some(old) = present {
        keep_priority(&mut wanted.spec.gang, &old.spec.gang, ctx.view.spec().scheduling.preemption_policy.is_some());
    }
    let empty = String::new();
    let same = present.map(|p| {
        let uid = p.metadata.uid.as_ref().unwrap_or(&empty);
        (true, p.spec == wanted.spec, uid, p.metadata.resource_version.as_ref().unwrap_or(&empty))
    });
    ensure(ctx, Object::PodGroup(Box::new(wanted)), same, out);
}

/// The class is resolved once: a class of the same name with another value does not reach what exists.
fn keep_priority(
    wanted: &mut lockstep_api::scheduling::GangSpec,
    present: &lockstep_api::scheduling::GangSpec,
    own_policy: bool,
) {
    if wanted.priority_class_name == present.priority_class_name {
        wanted.priority = present.priority;
        if !own_policy {
            wanted.preemption_policy = present.preemption_policy;
        }
    }
}

/// Pods of members that the spec no longer has, and pods made from another spec.
fn surplus(ctx: &Ctx<'_>, applied: &str, out: &mut Vec<Action>) {
    let members: BTreeSet<&Member> = ctx.gangs.iter().flat_map(Gang::members).collect();
    let stray = |p: &&PodView| {
        p.identity.spec_hash != applied || p.identity.member.as_ref().is_none_or(|m| !members.contains(m))
    };
    out.extend(ctx.pods().filter(stray).filter_map(delete));
}

/// All pods of a gang that has given its room back.
fn vacate(ctx: &Ctx<'_>, ledger: &TrainingWorkloadStatus, gang: &Gang, out: &mut Vec<Action>) {
    let placement = ctx.view.pod_groups.get(&gang.key).and_then(|g| g.status.as_ref()?.placement.as_ref());
    let preemptor = placement.and_then(|p| rooms::preemptor(ctx, &gang.key, p));
    let done = ledger.completed(&ctx.view.spec().groups);
    for pod in gang.members().flat_map(|m| ctx.pods_of(m)).filter(|p| !keeps(&done, p)) {
        if let Some(message) = &preemptor
            && !pod.terminal()
            && pod.condition(super::context::DISRUPTION_TARGET).is_none()
        {
            let (name, uid) = (pod.name.clone(), pod.uid.clone());
            out.push(Action::MarkDisrupted { name, uid, message: message.clone() });
        }
        out.extend(delete(pod));
    }
}

/// Whether a pod stays although its gang leaves: it has ended and its member is finished.
fn keeps(done: &BTreeSet<Member>, pod: &PodView) -> bool {
    pod.terminal() && pod.identity.member.as_ref().is_some_and(|m| done.contains(m))
}

fn delete(pod: &PodView) -> Option<Action> {
    (!pod.terminating()).then(|| Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone() })
}

/// A gang that has room.
struct GangView<'v, 'a> {
    ctx: &'v Ctx<'a>,
    ledger: &'v TrainingWorkloadStatus,
    gang: &'v Gang,
    entry: &'v GangStatus,
    world: &'v World<'a>,
    places: BTreeMap<Member, &'a str>,
    id: &'a str,
}

impl GangView<'_, '_> {
    fn domains(&self) -> impl Iterator<Item = (&Domain, &DomainStatus)> {
        self.gang.domains.iter().filter_map(|d| Some((d, self.ledger.domains.iter().find(|s| s.key == d.key)?)))
    }

    /// Whether the pods of a domain may be touched: its incident is not waiting for its order.
    fn active(status: &DomainStatus) -> bool {
        status.incident.as_ref().is_none_or(|i| i.stage != IncidentStage::Decided)
    }

    /// Removes what stands in the way of the wanted pods, and opens gates.
    fn repair(&self, out: &mut Vec<Action>) {
        let ctx = self.ctx;
        let done = self.ledger.completed(&ctx.view.spec().groups);
        let finished = self.gang.members().all(|m| done.contains(m));
        let preempting = ctx.view.pod_groups.get(&self.gang.key).is_some_and(|g| {
            g.status.as_ref().is_some_and(|s| s.preemption.as_ref().is_some_and(|p| p.placement == self.id))
        });
        for (domain, status) in self.domains().filter(|(_, s)| Self::active(s)) {
            for member in &domain.members {
                let current = ctx.current(status, member).filter(|_| self.world.contains(member));
                for pod in ctx.pods_of(member) {
                    if current.is_some_and(|c| c.uid == pod.uid) {
                        self.repair_current(member, pod, finished, preempting, out);
                    } else {
                        unpublish(pod, out);
                        out.extend(delete(pod));
                    }
                }
            }
        }
    }

    fn repair_current(&self, member: &Member, pod: &PodView, finished: bool, preempting: bool, out: &mut Vec<Action>) {
        let place = self.places.get(member).copied();
        let misplaced = pod.node.is_none() && pod.pinned.as_deref() != place;
        // Training is over, but a sidecar keeps the pod of the last finished member running.
        if (misplaced || (finished && !pod.terminal() && !pod.winding_up())) && !pod.terminating() {
            unpublish(pod, out);
            out.extend(delete(pod));
        } else if pod.gated
            && !pod.terminating()
            && (!preempting || (pod.nominated.is_some() && pod.nominated.as_deref() == place))
        {
            out.push(Action::RemoveGate { name: pod.name.clone(), uid: pod.uid.clone() });
        }
    }

    /// The pods that are missing.
    fn create(&self, limit: usize) -> Vec<Action> {
        let done = self.ledger.completed(&self.ctx.view.spec().groups);
        let preempting = self.ctx.view.pod_groups.get(&self.gang.key).is_some_and(|g| {
            g.status.as_ref().is_some_and(|s| s.preemption.as_ref().is_some_and(|p| p.placement == self.id))
        });
        let mut out = Vec::new();
        for (domain, status) in self.domains() {
            if !Self::active(status) || !orders::told(self.ctx, status) {
                continue;
            }
            for member in domain.members.iter().filter(|m| !done.contains(*m) && self.world.contains(m)) {
                if out.len() == limit {
                    return out;
                }
                out.extend(self.create_one(domain, status, member, preempting));
            }
        }
        out
    }

    fn create_one(&self, domain: &Domain, status: &DomainStatus, member: &Member, gated: bool) -> Option<Action> {
        let ctx = self.ctx;
        let node = self.places.get(member).copied()?;
        let in_the_way = |old: &&PodView| {
            // On a lost node nothing will ever confirm the end of a pod; elsewhere its replacement need not wait for it.
            let elsewhere = old.node.as_deref().is_some_and(|n| n != node && ctx.lost(n));
            old.identity.published || !(old.terminal() || elsewhere)
        };
        let olds = ctx.pods_of(member);
        if ctx.current(status, member).is_some() || olds.iter().any(in_the_way) || !rooms::usable(ctx, self.entry, node)
        {
            return None;
        }
        let unknown = NodeInfo::default();
        let keeps_rules = ctx.view.dry_run.as_ref().is_some_and(|d| d.keeps_restart_rules);
        let plan = PodPlan {
            member,
            gang: &self.gang.key,
            domain: &domain.key,
            epoch: status.epoch,
            place: Some((node, self.id)),
            replaces: olds.last().map_or("", |p| &p.uid),
            gated,
            tier: Tier::of(ctx.view.nodes.get(node).map_or(&unknown, AsRef::as_ref), keeps_rules),
        };
        Some(Action::CreatePod { member: member.clone(), pod: Box::new(build::pod(ctx.view, self.world, plan)?) })
    }
}

fn unpublish(pod: &PodView, out: &mut Vec<Action>) {
    if pod.identity.published {
        out.push(Action::Unpublish { name: pod.name.clone(), uid: pod.uid.clone() });
    }
}
