//! Would a workload fit, where, and at whose expense: the engine's answer over a snapshot.

mod answer;
mod render;
mod scene;

use anyhow::Result;
use lockstep_api::TrainingWorkload;
use lockstep_engine::queue::standing;
use lockstep_engine::{Cluster, Demand, Infeasible, PreemptionPolicy};
use lockstep_model::attempt::may_not_preempt;
use lockstep_model::snapshot::GangRecord;
use lockstep_model::{Ahead, Eviction, Node, Request, Rules, SnapshotFile, Turn};

pub use answer::{Answer, GangAnswer, NextBest, OnNode, Verdict, Victim};
use scene::Scene;

use crate::gangs;

/// Asks about each gang that a manifest would make, one after the other: each finds what those before it have left.
///
/// The workload is taken as new and as the last in the queue among its equals. One of the same name that waits already is
/// not counted; one that runs is.
pub fn what_if(file: &SnapshotFile, workload: &TrainingWorkload, rules: &Rules) -> Result<Answer> {
    let nodes: Vec<Node> = file.nodes.iter().map(lockstep_model::snapshot::NodeRecord::to_node).collect();
    let asked = gangs::asked(workload, &file.priority_classes, &nodes)?;
    let keys = asked.iter().filter_map(|(_, gang)| gang.topology.as_ref()).map(|t| t.key.as_str());
    let priority = asked.first().map_or(0, |(_, gang)| gang.priority);
    let mut question = Question { scene: Scene::new(file, keys, rules), rules, ahead: Ahead::default() };
    if let Some((_, gang)) = asked.first() {
        question.serve_those_ahead(gang);
    }
    let gangs: Vec<GangAnswer> = asked.iter().map(|(key, gang)| question.ask(key, gang)).collect();
    Ok(Answer {
        namespace: workload.metadata.namespace.clone().unwrap_or_default(),
        workload: workload.metadata.name.clone().unwrap_or_default(),
        priority,
        taken_at: file.taken_at,
        fits: gangs.iter().all(|g| g.verdict != Verdict::DoesNotFit),
        gangs,
        only_namespace: file.namespace.clone(),
    })
}

struct Question<'a> {
    scene: Scene<'a>,
    rules: &'a Rules,
    /// Gangs that wait before the asked one: it leaves alone what only they could use.
    ahead: Ahead,
}

impl Question<'_> {
    /// Seats the gangs whose turn comes first where they fit, and notes those that do not.
    fn serve_those_ahead(&mut self, asked: &GangRecord) {
        for gang in self.scene.waiting_before(asked) {
            let request = self.scene.request(gang);
            let Ok(demand) = request.demand(&self.scene.cluster) else { continue };
            match self.turn(gang, &demand).now(&self.scene.room_for(gang.priority)) {
                Ok(placement) => self.scene.room.reserve(&demand.shapes, &placement),
                Err(_) => self.ahead.push(self.scene.cluster.room(), &demand),
            }
        }
    }

    fn turn<'d>(&'d self, gang: &GangRecord, demand: &'d Demand) -> Turn<'d> {
        let standing = standing(demand.priority, gang.preemption_priority);
        Turn { demand, standing, evictable: self.rules.evictable_at_once(), ahead: &self.ahead }
    }

    fn ask(&mut self, key: &str, gang: &GangRecord) -> GangAnswer {
        let request = self.scene.request(gang);
        let mut answer = GangAnswer::new(key, gang);
        match request.demand(&self.scene.cluster) {
            Ok(demand) => {
                if let Err(reason) = self.decide(gang, &request, &demand, &mut answer) {
                    answer.reason = Some(reason.describe(self.scene.cluster.dims()));
                }
            }
            Err(unmet) => answer.reason = Some(unmet.to_string()),
        }
        answer
    }

    /// The steps of the scheduler: free room, room that others are leaving, room that others have to leave.
    fn decide(
        &mut self,
        gang: &GangRecord,
        request: &Request,
        demand: &Demand,
        answer: &mut GangAnswer,
    ) -> Result<(), Infeasible> {
        let room = self.scene.room_for(gang.priority);
        let short = match self.turn(gang, demand).now(&room) {
            Ok(placement) => {
                answer.verdict = Verdict::Fits;
                self.settle(request, demand, &placement, answer);
                return Ok(());
            }
            Err(short) => short,
        };
        let (room, soon) = self.turn(gang, demand).soon(room, &self.scene.leaving());
        if let Some(placement) = soon {
            answer.verdict = Verdict::FitsOnceOthersHaveLeft;
            self.settle(request, demand, &placement, answer);
            return Ok(());
        }
        if demand.preemption == PreemptionPolicy::Never {
            return Err(may_not_preempt(short));
        }
        self.evict(gang, request, demand, &room, answer)
    }

    fn evict(
        &mut self,
        gang: &GangRecord,
        request: &Request,
        demand: &Demand,
        room: &Cluster,
        answer: &mut GangAnswer,
    ) -> Result<(), Infeasible> {
        let table = self.scene.units(gang.priority);
        let Eviction { table, answer: found, reasons } = self.turn(gang, demand).by_force(room, table, self.rules)?;
        answer.verdict = Verdict::Preempts;
        let nodes = |unit| reasons.taken.iter().find(|t| t.unit == unit).map(|t| t.nodes.as_slice());
        let victim = |&unit: &usize| self.scene.victim(&table, unit, nodes(unit).unwrap_or_default());
        answer.victims = found.victims.iter().filter_map(victim).collect();
        answer.lost = amount(found.toll.lost);
        answer.pods_beyond_budgets = found.toll.pdb_excess;
        answer.proven = found.proven;
        answer.at_least = amount(found.bound.lost);
        answer.next_best = reasons.runner_up.map(|other| NextBest {
            lost: amount(other.toll.lost),
            pods_beyond_budgets: other.toll.pdb_excess,
            victims: other.victims.iter().filter_map(|&u| self.scene.victim(&table, u, &[])).collect(),
        });
        let leaving: Vec<String> = answer.victims.iter().map(|v| v.uid.clone()).collect();
        self.scene.leaving.extend(leaving);
        self.settle(request, demand, &found.placement, answer);
        Ok(())
    }

    fn settle(
        &mut self,
        request: &Request,
        demand: &Demand,
        placement: &lockstep_engine::Placement,
        answer: &mut GangAnswer,
    ) {
        let nodes = request.assign(&self.scene.cluster, placement);
        answer.placed = nodes.len();
        answer.nodes = self.scene.on_nodes(request, &nodes);
        self.scene.room.reserve(&demand.shapes, placement);
    }
}

fn amount(lost: u128) -> u64 {
    u64::try_from(lost).unwrap_or(u64::MAX)
}
