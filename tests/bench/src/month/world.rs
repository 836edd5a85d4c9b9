//! The cluster in the course of the month: events, the queue, placements and preemptions.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::alarms::counts_after;
use super::inputs::{Alarm, Happening, Inputs, Job};
use super::report::{Cause, Outcome};
use super::{Arm, DAY, HOUR, MINUTE, Time};

/// `nodeHealth.leadTime` and `nodeHealth.moveHorizon`. No save and stop takes longer than the lead.
pub(super) const LEAD: Time = 10 * MINUTE;
pub(super) const HORIZON: Time = DAY;
/// A gang moves to a node that leaves only if that node stays so much longer.
pub(super) const LEAST_GAIN: Time = HOUR;
/// Signals are collected for this time.
pub(super) const COLLECT: Time = 10;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Arrives(usize),
    Happens(usize),
    Finishes {
        gang: usize,
        epoch: u64,
    },
    /// A node takes pods again.
    Returns,
    /// A regular checkpoint of gangs with this interval now makes their move due.
    LeavesEarly(usize, Time),
    LeavesAt {
        gang: usize,
        epoch: u64,
        node: usize,
    },
    LeavesDue(usize),
    Alarmed(usize, Alarm),
}

pub(super) struct Gang<'i> {
    pub job: &'i Job,
    /// Empty while it waits.
    pub nodes: Vec<usize>,
    /// Number of its stops and starts.
    pub epoch: u64,
    /// Saved seconds of training.
    pub done: Time,
    pub held_since: Time,
    /// Begin of the start or restart, its cause, and its end.
    pub began: Time,
    pub cause: Cause,
    pub resumes: Time,
    pub requests: u64,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Node {
    pub owner: Option<usize>,
    pub out_until: Time,
    /// Announced maintenance.
    pub deadline: Time,
}

pub(super) struct World<'i> {
    pub inputs: &'i Inputs,
    pub arm: Arm,
    pub now: Time,
    pub gangs: Vec<Gang<'i>>,
    pub nodes: Vec<Node>,
    queue: Vec<usize>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    number: u64,
    pub outcome: Outcome,
}

/// Plays the month with an arm.
pub fn play(inputs: &Inputs, arm: Arm) -> Outcome {
    let end = inputs.setting.days * DAY;
    let mut world = World::new(inputs, arm);
    while let Some(Reverse((at, _, event))) = world.events.pop() {
        if at > end {
            break;
        }
        world.now = at;
        world.happen(event);
    }
    world.now = end;
    for gang in 0..world.gangs.len() {
        if !world.gangs[gang].nodes.is_empty() {
            world.complete(gang);
        }
    }
    world.outcome
}

impl<'i> World<'i> {
    fn new(inputs: &'i Inputs, arm: Arm) -> Self {
        let gang = |job: &'i Job| Gang {
            job,
            nodes: Vec::new(),
            epoch: 0,
            done: 0,
            held_since: 0,
            began: 0,
            cause: Cause::Start,
            resumes: 0,
            requests: 0,
        };
        let mut world = Self {
            inputs,
            arm,
            now: 0,
            gangs: inputs.jobs.iter().map(gang).collect(),
            nodes: vec![Node::default(); inputs.setting.nodes],
            queue: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            outcome: Outcome::default(),
        };
        for (gang, job) in inputs.jobs.iter().enumerate() {
            world.at(job.arrives, Event::Arrives(gang));
        }
        for (number, (at, node, happening)) in inputs.happenings.iter().enumerate() {
            world.at(*at, Event::Happens(number));
            if *happening == Happening::Maintenance {
                world.announce(*node, *at);
            }
        }
        world
    }

    /// Maintenance is announced more than `HORIZON` ahead.
    fn announce(&mut self, node: usize, deadline: Time) {
        self.nodes[node].deadline = deadline;
        if self.arm == Arm::Signals {
            let due = deadline - LEAD;
            self.at(due, Event::LeavesDue(node));
            let intervals: BTreeSet<Time> = self.inputs.jobs.iter().map(|j| j.interval).collect();
            for interval in intervals {
                self.at(due - interval, Event::LeavesEarly(node, interval));
            }
        }
    }

    pub fn at(&mut self, time: Time, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, event)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives(gang) => self.queue.push(gang),
            Event::Happens(number) => {
                let (_, node, happening) = self.inputs.happenings[number];
                match happening {
                    Happening::Fails(fault) => self.fail(node, fault),
                    Happening::Maintenance => self.maintain(node),
                    Happening::Alarm(alarm) => {
                        let after = counts_after(alarm, number);
                        if let Some(after) = after.filter(|_| self.arm == Arm::Signals) {
                            self.at(self.now + after + COLLECT, Event::Alarmed(node, alarm));
                        }
                    }
                }
            }
            Event::Finishes { gang, epoch } => {
                if self.gangs[gang].epoch == epoch {
                    self.complete(gang);
                }
            }
            Event::Returns => {}
            Event::LeavesEarly(node, interval) => self.leave_early(node, interval),
            Event::LeavesAt { gang, epoch, node } => {
                if self.gangs[gang].epoch == epoch && self.gangs[gang].nodes.contains(&node) {
                    self.leave(gang, None, Cause::Maintenance);
                }
            }
            Event::LeavesDue(node) => {
                if let Some(gang) = self.nodes[node].owner {
                    self.leave(gang, None, Cause::Maintenance);
                }
            }
            Event::Alarmed(node, alarm) => self.alarmed(node, alarm),
        }
        self.serve_queue();
    }

    /// The node takes no pods until then.
    pub fn take_out(&mut self, node: usize, until: Time) {
        let out = &mut self.nodes[node].out_until;
        *out = until.max(*out);
        self.at(until, Event::Returns);
    }

    pub fn requeue(&mut self, gang: usize) {
        self.queue.push(gang);
    }

    fn is_free(&self, node: usize) -> bool {
        self.nodes[node].owner.is_none() && self.nodes[node].out_until <= self.now
    }

    /// Free nodes. With signals, those that leave soon come last.
    pub fn free(&self) -> Vec<usize> {
        let all = 0..self.nodes.len();
        let mut free: Vec<usize> = all.filter(|&node| self.is_free(node)).collect();
        if self.arm == Arm::Signals {
            free.sort_by_key(|&node| (self.leaves_by(node).map(Reverse), node));
        }
        free
    }

    /// The deadline of a node that leaves within the horizon.
    pub fn leaves_by(&self, node: usize) -> Option<Time> {
        let soon = self.now + 1..=self.now + HORIZON;
        Some(self.nodes[node].deadline).filter(|at| soon.contains(at))
    }

    fn serve_queue(&mut self) {
        let mut queue = std::mem::take(&mut self.queue);
        queue.sort_by_key(|&gang| (Reverse(self.gangs[gang].job.priority), gang));
        let mut free = self.free();
        // A larger gang of the same or a lower priority does not fit either.
        let mut failed = usize::MAX;
        for gang in queue {
            let (members, priority) = (self.gangs[gang].job.members, self.gangs[gang].job.priority);
            let mut ready = self.now;
            if free.len() < members && members < failed && priority > 0 {
                let usable = |_: usize| true;
                match self.preempt(priority, members - free.len(), usable) {
                    Some(halted) => {
                        ready = halted;
                        free = self.free();
                    }
                    None => failed = members,
                }
            }
            if free.len() < members {
                self.queue.push(gang);
                continue;
            }
            let nodes = free.drain(..members).collect();
            self.start(gang, nodes, ready);
        }
    }

    /// Stops gangs of lower priority that lose the least work, until so many usable nodes are free.
    /// Returns when the last has stopped.
    pub fn preempt(
        &mut self,
        priority: i32,
        nodes: usize,
        usable: impl Fn(usize) -> bool,
    ) -> Option<Time> {
        let running = self.gangs.iter().enumerate();
        let lower = running.filter(|(_, g)| !g.nodes.is_empty() && g.job.priority < priority);
        let count = |gang: &Gang<'_>| {
            let up = |&&node: &&usize| self.nodes[node].out_until <= self.now && usable(node);
            gang.nodes.iter().filter(up).count()
        };
        let mut victims: Vec<(Time, usize, usize)> = lower
            .map(|(at, gang)| (self.cost_of_stop(gang), at, count(gang)))
            .filter(|(_, _, freed)| *freed > 0)
            .collect();
        victims.sort_unstable();
        let mut chosen = Vec::new();
        let mut sum = 0;
        for victim in victims {
            if sum >= nodes {
                break;
            }
            sum += victim.2;
            chosen.push(victim);
        }
        if sum < nodes {
            return None;
        }
        // The most expensive that is not needed stays.
        for at in (0..chosen.len()).rev() {
            if sum - chosen[at].2 >= nodes {
                sum -= chosen.remove(at).2;
            }
        }
        let mut last = self.now;
        for (_, gang, _) in chosen {
            last = last.max(self.stop(gang, Cause::Preemption));
            self.release(gang, last);
            self.requeue(gang);
        }
        Some(last)
    }
}
