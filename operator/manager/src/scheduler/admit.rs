//! Who gets room next, and at whose expense.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use lockstep_api::member::Member;
use lockstep_api::names::short_hash;
use lockstep_api::scheduling::{Preemption, Victim};
use lockstep_engine::queue::standing;
use lockstep_engine::{Amounts, Cluster, Demand, Infeasible, NodeIx, PreemptionPolicy, place};
use lockstep_model::attempt::may_not_preempt;
use lockstep_model::gang::Standing;
use lockstep_model::{Ahead, Cohort, Eviction, Request, Seats, Source, Turn};

use super::elastic::REJECTED;
use super::memory::Hopeless;
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
    /// The cluster and its gangs as a number.
    world: u64,
    /// Whether somebody was left without one.
    unfinished: bool,
    /// What is about to leave; looked up when it first matters, and again after each preemption.
    leaving: Option<Vec<(NodeIx, Amounts)>>,
    /// Gangs that wait: those behind them leave alone what only they could use.
    ahead: Ahead,
}

impl Pass<'_> {
    /// Goes through the queue: gives room to who fits, makes room for who may preempt, tells the others what is short.
    ///
    /// A search for victims that found none is not made again before something has changed. Where there are more gangs than
    /// searches in a pass, those that were left out come first in the next, so that nobody waits for a search for ever.
    pub fn admit(&mut self) {
        self.enqueue();
        self.note_seekers();
        let queue = self.queue();
        self.asking = queue.len();
        if queue.is_empty() {
            self.memory.hopeless.clear();
            self.memory.unfinished = false;
            return;
        }
        let (world, now) = (self.world(), self.now);
        if !self.memory.unfinished {
            self.memory.hopeless.retain(|_, h| h.world == world && h.until.is_none_or(|until| now < until));
        }
        let mut round = Round { world, unfinished: false, leaving: None, ahead: Ahead::default() };
        for (ix, wish) in queue {
            if let Err(text) = self.seek(ix, wish, &mut round) {
                self.cases[ix].note = Some(text);
            }
        }
        if round.unfinished || self.memory.hopeless.values().any(|h| h.world != world) {
            self.wake_at(now);
        }
        for until in self.memory.hopeless.values().filter_map(|h| h.until).collect::<Vec<_>>() {
            self.wake_at(until);
        }
        self.memory.unfinished = round.unfinished;
    }

    /// Everything that decides whether victims can be found, as a number.
    fn world(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.cluster.version().hash(&mut hasher);
        for case in &self.cases {
            let status = &case.status;
            let placement = case.placement().map(|p| &p.id);
            let intent = status.preemption.as_ref().map(|p| &p.id);
            (&case.uid, case.workload.metadata.generation, case.standing, case.preemption_priority).hash(&mut hasher);
            (placement, intent, case.released(), case.disrupted(), status.queued_at).hash(&mut hasher);
            (case.generation(), case.wanted().count(), self.excluded(case)).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Gives a gang free room, if there is enough.
    pub fn seek_free(&mut self, ix: usize) -> bool {
        let Ok(request) = self.request(ix, Wish::Needed) else { return false };
        let Ok(demand) = request.demand(self.cluster) else { return false };
        place(&self.room_for(ix), &demand).is_ok_and(|placement| {
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
            let lacking = seated < case.min_count() as usize && !case.seekers.growing;
            if case.seats.is_none() || lacking || (case.gang.basic && seated < wanted) {
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
        let room = self.room_for(ix);
        let turn = self.turn(ix, &demand, &round.ahead);
        let short = match turn.now(&room) {
            Ok(placement) => {
                self.settle(ix, &request.assign(self.cluster, &placement));
                return Ok(());
            }
            Err(short) => short,
        };
        if wish == Wish::More {
            return Ok(());
        }
        // Only gangs ahead make the room smaller than it is; without them the first answer stands.
        let kept = !round.ahead.is_empty() && place(&room, &demand).is_ok();
        let answer = self.make_room(ix, &request, &demand, room, short, round);
        let answer = if kept { answer.map_err(|_| messages::AHEAD.to_owned()) } else { answer };
        if answer.is_err() {
            round.ahead.push(self.cluster.room(), &demand);
        }
        answer
    }

    pub(super) fn turn<'d>(&self, ix: usize, demand: &'d Demand, ahead: &'d Ahead) -> Turn<'d> {
        // Once it runs, its class may make it count for more.
        let standing = standing(demand.priority, self.cases[ix].preemption_priority);
        Turn { demand, standing, evictable: self.settings.rules.evictable_at_once(), ahead }
    }

    /// Finds room that others leave, or have to leave.
    fn make_room(
        &mut self,
        ix: usize,
        request: &Request,
        demand: &Demand,
        room: Cluster,
        short: Infeasible,
        round: &mut Round,
    ) -> Result<(), String> {
        if round.leaving.is_none() {
            round.leaving = Some(self.leaving());
        }
        let turn = self.turn(ix, demand, &round.ahead);
        let (room, soon) = turn.soon(room, round.leaving.as_deref().unwrap_or_default());
        if soon.is_some() {
            return Err("waiting for pods that are ending to leave enough room".to_owned());
        }
        let describe = |short: Infeasible, pass: &Self| short.describe(pass.cluster.dims());
        if demand.preemption == PreemptionPolicy::Never {
            return Err(describe(may_not_preempt(short), self));
        }
        if let Some(until) = self.usable_again(ix, request, &room, &round.ahead) {
            self.wake_at(until);
            return Err(REJECTED.to_owned());
        }
        if let Some(known) = self.memory.hopeless.get(&self.cases[ix].uid) {
            return Err(known.text.clone());
        }
        if self.searches == self.settings.searches_per_pass {
            round.unfinished = true;
            return Err(describe(short, self));
        }
        self.searches += 1;
        let table = self.occupancy().units(Some(ix), demand.priority);
        let until = table.shielded_until;
        match turn.by_force(&room, table, &self.settings.rules) {
            Ok(eviction) => {
                self.intend(ix, request, &eviction);
                round.leaving = None;
                Ok(())
            }
            Err(short) => {
                let text = messages::hopeless(&describe(short, self), until);
                let hopeless = Hopeless { world: round.world, until, text: text.clone() };
                self.memory.hopeless.insert(self.cases[ix].uid.clone(), hopeless);
                Err(text)
            }
        }
    }

    /// Gives a gang the seats of its victims, and notes the intent to evict them.
    fn intend(&mut self, ix: usize, request: &Request, eviction: &Eviction) {
        let answer = &eviction.answer;
        let victims: Vec<Victim> = answer.victims.iter().filter_map(|&unit| self.victim(eviction, unit)).collect();
        self.settle(ix, &request.assign(self.cluster, &answer.placement));
        self.targeted.extend(victims.iter().map(|v| v.uid.clone()));
        let next_best = eviction.reasons.runner_up.as_ref().map(|next| {
            let victims: Vec<Victim> = next.victims.iter().filter_map(|&unit| self.victim(eviction, unit)).collect();
            messages::next_best(&victims, whole(next.toll.lost))
        });
        let case = &mut self.cases[ix];
        let mut intent = Preemption {
            id: String::new(),
            preemptor_uid: case.uid.clone(),
            decided_at: self.now,
            placement: case.to_placement(self.now).map(|p| p.id).unwrap_or_default(),
            victims,
            explanation: String::new(),
            cost: whole(answer.toll.lost),
            at_least: whole(answer.bound.lost),
            proven: answer.proven,
            next_best,
        };
        intent.id = intent_id(&intent);
        let caused = answer.explanation.follow_on.iter().map(|f| f.lost).sum();
        intent.explanation = messages::explanation(&intent, answer.toll.pdb_excess, caused);
        case.status.preemption = Some(intent);
    }

    /// What a gang asks for: members that have a seat keep it.
    fn request(&mut self, ix: usize, wish: Wish) -> Result<Request, String> {
        let turnout = self.cases[ix].turnout();
        let cohorts = self.cohorts(ix, turnout.by_group)?;
        let case = &self.cases[ix];
        let node = |name: &String| self.cluster.ordinal(name);
        let fixed: BTreeMap<Member, NodeIx> = case
            .seated_members()
            .filter(|(m, _)| turnout.all || !case.done.contains(*m))
            .filter_map(|(m, n)| Some((m.clone(), node(n)?)))
            .collect();
        let least = match wish {
            Wish::More => turnout.needed.max(fixed.len() as u32),
            Wish::Needed if case.gang.basic => fixed.len() as u32 + 1,
            Wish::Needed => turnout.needed,
        };
        let excluded = self.excluded(case).iter().filter_map(node).collect();
        Ok(Request {
            min_count: least.min(cohorts.iter().map(|c| c.members.len() as u32).sum()),
            cohorts,
            priority: case.priority(),
            preemption: if case.preempts() { PreemptionPolicy::LowerPriority } else { PreemptionPolicy::Never },
            topology: case.view().topology().cloned(),
            fixed,
            excluded,
        })
    }

    fn cohorts(&mut self, ix: usize, by_group: Vec<(usize, Vec<Member>)>) -> Result<Vec<Cohort>, String> {
        let workload = &self.cases[ix].workload;
        let mut cohorts = Vec::new();
        for (number, members) in by_group {
            let Some(group) = workload.spec.groups.get(number) else { continue };
            let requests = self.memory.requests(workload, group)?;
            let eligible = self.memory.eligible(workload, group, self.cluster);
            cohorts.push(Cohort { members, requests, eligible });
        }
        Ok(cohorts)
    }

    fn settle(&mut self, ix: usize, nodes: &BTreeMap<Member, NodeIx>) {
        let seats = nodes.iter().map(|(m, &n)| (m.clone(), self.cluster.node_name(n).to_owned())).collect();
        self.take(ix, seats);
    }

    /// The room as a gang sees it: its own pods that wait for other seats than it has will go.
    fn room_for(&mut self, ix: usize) -> Cluster {
        let mut room = self.room_above(self.cases[ix].priority());
        let case = &self.cases[ix];
        for pod in case.all_pods().filter(|p| p.bound.is_none() && !case.seated(p)) {
            if let Some(node) = pod.holds().and_then(|n| self.cluster.ordinal(n)) {
                room.remove_pod(node, &self.amounts(&pod.requests));
            }
        }
        room
    }

    fn victim(&self, eviction: &Eviction, unit: usize) -> Option<Victim> {
        let (source, of) = (eviction.table.sources.get(unit)?, eviction.table.units.units.get(unit)?);
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

/// Accelerator-seconds as objects hold them.
fn whole(lost: u128) -> i64 {
    i64::try_from(lost).unwrap_or(i64::MAX)
}

/// Id of an intent: it follows from the content, so that one that somebody else wrote or changed is told.
pub(super) fn intent_id(intent: &Preemption) -> String {
    let Preemption { preemptor_uid, decided_at, placement, victims, .. } = intent;
    let mut parts = vec![preemptor_uid.clone(), placement.clone(), decided_at.timestamp_millis().to_string()];
    parts.extend(victims.iter().map(|v| format!("{}/{}", v.kind, v.uid)));
    short_hash(&parts.iter().map(String::as_str).collect::<Vec<_>>())
}
