//! Who gets room next, and at whose expense.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_api::member::Member;
use lockstep_api::names::short_hash;
use lockstep_api::scheduling::{Preemption, Victim};
use lockstep_api::workload::TopologyScope;
use lockstep_engine::queue::{can_take_back, fits_empty, room_behind};
use lockstep_engine::{Amounts, Cluster, Demand, NodeIx, PreemptionPolicy, explain, place, preempt};
use lockstep_model::units::UnitsBuilder;
use lockstep_model::{Cohort, Pod, Request, Source, UnitTable};

use super::case::{Seats, Standing};
use super::messages;
use super::pass::Pass;

/// What a gang asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Members without which it is useless: others may have to go for them.
    Needed,
    /// Members that it would like besides: they take free room only.
    More,
}

/// What one way through the queue keeps.
struct Round {
    /// Preemptions that may still be computed.
    preemptions: usize,
    /// What is about to leave; looked up when it first matters, and again after each preemption.
    leaving: Option<Vec<(NodeIx, Amounts)>>,
    /// Gangs that wait, in the order of the queue: those behind them leave alone what only they could use.
    blocked: Vec<Demand>,
}

/// Most waiting gangs that those behind make way for. The others are older than what follows, but no longer protected from
/// it; with that many waiting the cluster is full.
const BLOCKED: usize = 32;

impl Pass<'_> {
    /// Goes through the queue: gives room to who fits, makes room for who may preempt, tells the others what is short.
    pub fn admit(&mut self) {
        self.enqueue();
        let preemptions = self.settings.preemptions_per_pass;
        let mut round = Round { preemptions, leaving: None, blocked: Vec::new() };
        for (ix, wish) in self.queue() {
            if let Err(text) = self.seek(ix, wish, &mut round) {
                self.cases[ix].note = Some(text);
            }
        }
    }

    /// Gives a gang free room, if there is enough.
    pub fn seek_free(&mut self, ix: usize) -> bool {
        let Ok(request) = self.request(ix, Wish::Needed) else { return false };
        let Ok(demand) = request.demand(self.cluster) else { return false };
        let room = self.room_for(ix);
        place(&room, &demand).is_ok_and(|placement| {
            self.settle(ix, &request.assign(self.cluster, &placement));
            true
        })
    }

    /// Takes away the seats whose pods are not bound yet.
    pub fn vacate(&mut self, ix: usize) {
        for (member, node) in self.cases[ix].open_seats() {
            let counted = self.cases[ix].pod_at(&member, &node).is_some();
            if let (Some(requests), Some(ordinal), false) =
                (self.requests(ix, &member), self.cluster.ordinal(&node), counted)
            {
                let amounts = self.amounts(&requests);
                self.room.remove_pod(ordinal, &amounts);
            }
            let case = &mut self.cases[ix];
            if let Some(seats) = &mut case.seats {
                Arc::make_mut(seats).remove(&member);
            }
        }
        let case = &mut self.cases[ix];
        case.seats = case.seats.take().filter(|s| !s.is_empty());
    }

    /// Gives a gang these seats, and keeps the room of those that are new for the rest of the pass.
    pub fn take(&mut self, ix: usize, seats: Seats) {
        let old = self.cases[ix].seats.take().unwrap_or_default();
        for (member, node) in seats.iter().filter(|(m, n)| old.get(*m) != Some(n)) {
            let counted = self.cases[ix].done.contains(member) || self.cases[ix].pod_at(member, node).is_some();
            if let (Some(requests), Some(ordinal), false) =
                (self.requests(ix, member), self.cluster.ordinal(node), counted)
            {
                let amounts = self.amounts(&requests);
                self.room.add_pod(ordinal, &amounts);
            }
        }
        self.cases[ix].seats = Some(Arc::new(seats));
    }

    /// Notes when a gang first asked for room since it last held some.
    fn enqueue(&mut self) {
        for case in self.cases.iter_mut().filter(|c| c.standing == Standing::Active && c.seats.is_none()) {
            case.status.queued_at.get_or_insert(self.now);
        }
    }

    /// Gangs that want room: by priority, then by the time of asking, then by UID; wishes for more come last.
    fn queue(&self) -> Vec<(usize, Wish)> {
        let mut queue: Vec<(usize, Wish)> = Vec::new();
        for (ix, case) in self.cases.iter().enumerate() {
            let busy = case.released() || case.disrupted() || case.status.preemption.is_some();
            if case.standing != Standing::Active || busy {
                continue;
            }
            let seated = case.seated_members().filter(|(m, _)| !case.done.contains(*m)).count();
            let wanted = case.wanted().count();
            if wanted == 0 {
                continue;
            }
            if case.seats.is_none() || seated < case.min_count() as usize || (case.gang.basic && seated < wanted) {
                queue.push((ix, Wish::Needed));
            } else if seated < wanted {
                queue.push((ix, Wish::More));
            }
        }
        queue.sort_by_key(|&(ix, wish)| {
            let case = &self.cases[ix];
            (wish == Wish::More, Reverse(case.priority()), case.status.queued_at, case.uid.clone())
        });
        queue
    }

    /// Gives one gang its room, or says why not.
    fn seek(&mut self, ix: usize, wish: Wish, round: &mut Round) -> Result<(), String> {
        let request = self.request(ix, wish)?;
        let demand = request.demand(self.cluster).map_err(|e| e.to_string())?;
        let mut room = self.room_for(ix);
        let short = match place(&behind(&room, &round.blocked, &demand), &demand) {
            Ok(placement) => {
                self.settle(ix, &request.assign(self.cluster, &placement));
                return Ok(());
            }
            Err(reason) => reason.describe(self.cluster.dims()),
        };
        if wish == Wish::More {
            return Ok(());
        }
        // Only gangs ahead make the room smaller than it is; without them the first answer stands.
        let kept = !round.blocked.is_empty() && place(&room, &demand).is_ok();
        let answer = self.make_room(ix, &request, &demand, &mut room, short, round);
        let answer = if kept { answer.map_err(|_| messages::AHEAD.to_owned()) } else { answer };
        if answer.is_err() && round.blocked.len() < BLOCKED && fits_empty(self.cluster.room(), &demand) {
            round.blocked.push(demand);
        }
        answer
    }

    /// Finds room that others leave, or have to leave.
    fn make_room(
        &mut self,
        ix: usize,
        request: &Request,
        demand: &Demand,
        room: &mut Cluster,
        short: String,
        round: &mut Round,
    ) -> Result<(), String> {
        if round.leaving.is_none() {
            round.leaving = Some(self.leaving());
        }
        for (node, amounts) in round.leaving.iter().flatten() {
            room.remove_pod(*node, amounts);
        }
        let room = behind(room, &round.blocked, demand);
        if place(&room, demand).is_ok() {
            return Err("waiting for pods that are ending to leave enough room".to_owned());
        }
        if demand.preemption == PreemptionPolicy::Never {
            return Err(format!("{short}; the gang may not preempt"));
        }
        if round.preemptions == 0 {
            self.wake_at(self.now);
            return Err(short);
        }
        round.preemptions -= 1;
        self.preempt(ix, request, demand, &room)?;
        round.leaving = None;
        Ok(())
    }

    fn preempt(&mut self, ix: usize, request: &Request, demand: &Demand, room: &Cluster) -> Result<(), String> {
        let table = self.units(ix);
        let options = self.settings.engine();
        let answer =
            preempt(room, &table.units, demand, &options).map_err(|reason| reason.describe(self.cluster.dims()))?;
        let runner_up = explain(room, &table.units, demand, &options, &answer).runner_up;
        let victims: Vec<Victim> = answer.victims.iter().filter_map(|&unit| self.victim(&table, unit)).collect();
        self.settle(ix, &request.assign(self.cluster, &answer.placement));
        self.targeted.extend(victims.iter().map(|v| v.uid.clone()));
        let cost = i64::try_from(answer.toll.lost).unwrap_or(i64::MAX);
        let explanation = messages::explanation(&victims, cost, answer.proven, runner_up.map(|r| r.toll.lost));
        let case = &mut self.cases[ix];
        let mut intent = Preemption {
            id: String::new(),
            preemptor_uid: case.uid.clone(),
            decided_at: self.now,
            placement: case.to_placement(self.now).map(|p| p.id).unwrap_or_default(),
            victims,
            explanation,
            cost,
        };
        intent.id = intent_id(&intent);
        case.status.preemption = Some(intent);
        Ok(())
    }

    /// What a gang asks for: members that have a seat keep it.
    fn request(&mut self, ix: usize, wish: Wish) -> Result<Request, String> {
        let constraint = self.cases[ix].group.spec.gang.scheduling_constraints.iter().flat_map(|c| &c.topology).next();
        let constraint = constraint.cloned();
        // Under replica scope a replica is asked for whole: the engine knows replicas of one size.
        let all = constraint.as_ref().is_some_and(|t| t.scope == TopologyScope::Replica);
        let cohorts = self.cohorts(ix, all)?;
        let case = &self.cases[ix];
        let node = |name: &String| self.cluster.ordinal(name);
        let fixed: BTreeMap<Member, NodeIx> = case
            .seated_members()
            .filter(|(m, _)| all || !case.done.contains(*m))
            .filter_map(|(m, n)| Some((m.clone(), node(n)?)))
            .collect();
        let least = match wish {
            Wish::More => fixed.len() as u32,
            Wish::Needed if case.gang.basic => fixed.len() as u32 + 1,
            Wish::Needed if all => case.gang.min_count.max(0) as u32,
            Wish::Needed => case.min_count(),
        };
        let excluded = self.excluded(ix).iter().filter_map(node).collect();
        Ok(Request {
            min_count: least.min(cohorts.iter().map(|c| c.members.len() as u32).sum()),
            cohorts,
            priority: case.priority(),
            preemption: if case.preempts() { PreemptionPolicy::LowerPriority } else { PreemptionPolicy::Never },
            topology: constraint,
            fixed,
            excluded,
        })
    }

    fn cohorts(&mut self, ix: usize, all: bool) -> Result<Vec<Cohort>, String> {
        let workload = Arc::clone(&self.cases[ix].workload);
        let mut cohorts = Vec::new();
        for group in &workload.spec.groups {
            let case = &self.cases[ix];
            let members: Vec<Member> = case
                .gang
                .members()
                .filter(|m| m.group == group.name && (all || !case.done.contains(*m)))
                .cloned()
                .collect();
            if !members.is_empty() {
                let requests = self.memory.requests(&workload, group)?;
                let eligible = self.memory.eligible(&workload, group, self.cluster);
                cohorts.push(Cohort { members, requests, eligible });
            }
        }
        Ok(cohorts)
    }

    fn settle(&mut self, ix: usize, nodes: &BTreeMap<Member, NodeIx>) {
        let seats = nodes.iter().map(|(m, &n)| (m.clone(), self.cluster.node_name(n).to_owned())).collect();
        self.take(ix, seats);
    }

    /// The room as a gang sees it. What kube-scheduler nominated for pods of lower priority does not bind it, as it does
    /// not bind kube-scheduler; and its own pods that wait for other seats than it has will go.
    fn room_for(&self, ix: usize) -> Cluster {
        let case = &self.cases[ix];
        let mut room = self.room.clone();
        for (node, priority, amounts) in &self.nominations {
            if *priority < case.priority() {
                room.remove_pod(*node, amounts);
            }
        }
        for pod in case.all_pods().filter(|p| p.bound.is_none() && !case.seated(p)) {
            if let Some(node) = pod.holds().and_then(|n| self.cluster.ordinal(n)) {
                room.remove_pod(node, &self.amounts(&pod.requests));
            }
        }
        room
    }

    /// Everything that may be evicted for a gang.
    fn units(&mut self, preemptor: usize) -> UnitTable {
        let priority = self.cases[preemptor].priority();
        let candidates: Vec<usize> = (0..self.cases.len())
            .filter(|&ix| {
                let case = &self.cases[ix];
                let leaves = case.released() || case.disrupted() || self.targeted.contains(&case.uid);
                ix != preemptor && case.priority() < priority && case.standing != Standing::Over && !leaves
            })
            .collect();
        let (whole, single): (Vec<usize>, Vec<usize>) = candidates.into_iter().partition(|&ix| self.cases[ix].whole());
        let gangs: Vec<_> = whole.into_iter().map(|ix| self.unit(ix)).collect();
        let mut builder = UnitsBuilder::new(self.cluster, &self.budgets, self.now);
        for gang in gangs.iter().filter(|g| !g.holds.is_empty()) {
            builder.add_gang(gang);
        }
        for case in single.into_iter().map(|ix| &self.cases[ix]) {
            let running = || case.all_pods().filter(|p| self.evictable(p));
            // Members of a gang restart together, whichever is evicted; pods of a basic group are on their own.
            let loss = running().map(|p| self.loss(case, p)).fold(0, u64::saturating_add);
            let cascade = (!case.gang.basic).then(|| builder.cascade(loss));
            for pod in running() {
                builder.add_pod(pod, case.priority(), self.loss(case, pod), cascade);
            }
        }
        let managed: BTreeSet<&str> = self.cases.iter().filter_map(|c| c.workload.metadata.uid.as_deref()).collect();
        for pod in (0..self.cluster.node_count()).flat_map(|node| self.cluster.pods_on(node)) {
            let foreign = pod.owner.as_deref().is_none_or(|o| !managed.contains(o));
            if foreign && pod.priority < priority && self.evictable(pod) {
                let loss = self.settings.costs.loss_of_pod(pod, self.now);
                builder.add_pod(pod, pod.priority, loss, None);
            }
        }
        builder.build()
    }

    fn evictable(&self, pod: &Pod) -> bool {
        pod.bound.is_some() && pod.alive() && !pod.protected && !self.targeted.contains(&pod.uid)
    }

    fn victim(&self, table: &UnitTable, unit: usize) -> Option<Victim> {
        let (source, of) = (table.sources.get(unit)?, table.units.units.get(unit)?);
        let (kind, namespace, name, uid) = match source {
            Source::Gang(ix) => {
                let case = &self.cases[*ix];
                ("PodGroup", &case.key.namespace, &case.key.name, &case.uid)
            }
            Source::Pod(pod) => ("Pod", &pod.namespace, &pod.name, &pod.uid),
        };
        Some(Victim {
            kind: kind.to_owned(),
            namespace: namespace.clone(),
            name: name.clone(),
            uid: uid.clone(),
            priority: of.priority,
            pods: of.pod_count() as i32,
            cost: i64::try_from(of.cost).unwrap_or(i64::MAX),
        })
    }
}

/// The room that a gang may use behind those that wait before it. Work that they may evict again takes nothing from them.
fn behind(room: &Cluster, blocked: &[Demand], demand: &Demand) -> Cluster {
    let ahead: Vec<&Demand> = blocked.iter().filter(|b| !can_take_back(b, demand.priority, true)).collect();
    if ahead.is_empty() { room.clone() } else { room_behind(room, &ahead) }
}

/// Id of an intent: it follows from the content, so that one that somebody else wrote or changed is told.
pub(super) fn intent_id(intent: &Preemption) -> String {
    let Preemption { id: _, preemptor_uid, decided_at, placement, victims, explanation: _, cost: _ } = intent;
    let mut parts = vec![preemptor_uid.clone(), placement.clone(), decided_at.timestamp_millis().to_string()];
    parts.extend(victims.iter().map(|v| format!("{}/{}", v.kind, v.uid)));
    short_hash(&parts.iter().map(String::as_str).collect::<Vec<_>>())
}
