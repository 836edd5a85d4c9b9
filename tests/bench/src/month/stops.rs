//! How gangs stop, restart and move, and what that costs.

use super::alarms::CLEARED_AFTER;
use super::inputs::{Alarm, Fault};
use super::report::{Cause, Spent};
use super::world::{COLLECT, Event, Gang, LEAD, LEAST_GAIN, World};
use super::{ACCELERATORS, Arm, DAY, HOUR, MINUTE, Time};

/// `checkpoint.onRequest.timeoutSeconds`. One in `TIMES_OUT` requests takes longer.
const TIMEOUT: Time = 2 * MINUTE;
const TIMES_OUT: u64 = 10;
/// A job without steps counts as hanging after this time.
const HANGS: Time = 10 * MINUTE;
/// Hold time of signals of faults.
const HOLD: Time = 30;
/// A node without heartbeat is NotReady after this time.
const SILENT: Time = 50;
/// A node returns from repair, and from maintenance, after this time.
const REPAIR: Time = DAY;
const MAINTENANCE: Time = 2 * HOUR;

/// Steps since the last start or restart.
struct Steps {
    saved: Time,
    unsaved: Time,
    saving: Time,
}

fn steps(gang: &Gang<'_>, until: Time) -> Steps {
    let (interval, save) = (gang.job.interval, gang.job.save);
    let elapsed = (until - gang.resumes).max(0);
    let (cycles, rest) = (elapsed / (interval + save), elapsed % (interval + save));
    Steps {
        saved: cycles * interval,
        unsaved: rest.min(interval),
        saving: cycles * save + (rest - interval).max(0),
    }
}

impl World<'_> {
    fn spent(&mut self, gang: usize) -> (Time, &mut Spent) {
        let members = self.gangs[gang].job.members;
        let spent = self.outcome.sizes.entry(members).or_default();
        (members as Time * ACCELERATORS, spent)
    }

    fn asks(&self, gang: &Gang<'_>) -> bool {
        self.arm >= Arm::Requests && gang.job.answers
    }

    /// Accelerator-seconds of work that a stop now destroys.
    pub fn cost_of_stop(&self, gang: &Gang<'_>) -> Time {
        let unsaved = steps(gang, self.now).unsaved;
        let lost = if self.asks(gang) {
            unsaved.min(gang.job.save)
        } else {
            unsaved
        };
        lost * gang.job.members as Time
    }

    /// Accounts for the time since the start or restart. `keeps`: unsaved steps are not lost.
    fn account(&mut self, gang: usize, until: Time, keeps: bool, cause: Cause) {
        let of = &self.gangs[gang];
        let (down, why, steps) = (until.min(of.resumes) - of.began, of.cause, steps(of, until));
        let kept = steps.saved + if keeps { steps.unsaved } else { 0 };
        self.gangs[gang].done += kept;
        let (accelerators, spent) = self.spent(gang);
        *spent.restarts.entry(why).or_default() += down * accelerators;
        spent.useful += kept * accelerators;
        spent.saves += steps.saving * accelerators;
        if !keeps {
            *spent.work.entry(cause).or_default() += steps.unsaved * accelerators;
        }
    }

    /// Time that passes before the restart begins.
    fn lose(&mut self, gang: usize, time: Time, cause: Cause) {
        let (accelerators, spent) = self.spent(gang);
        *spent.work.entry(cause).or_default() += time * accelerators;
    }

    /// Stops a gang that continues later. Returns when it has stopped.
    pub fn stop(&mut self, gang: usize, cause: Cause) -> Time {
        let of = &self.gangs[gang];
        let (save, begins) = (of.job.save, self.now.max(of.began));
        let requested = cause != Cause::Failure && begins > of.resumes && self.asks(of);
        let mut takes = 0;
        let mut saved = false;
        if requested {
            self.gangs[gang].requests += 1;
            let number = gang as u64 * 31 + self.gangs[gang].requests * 17;
            saved = !number.is_multiple_of(TIMES_OUT);
            takes = if saved { save } else { TIMEOUT };
        }
        self.account(gang, begins, saved, cause);
        self.lose(gang, takes, cause);
        let (_, spent) = self.spent(gang);
        spent.interruptions += 1;
        let of = &mut self.gangs[gang];
        of.epoch += 1;
        of.cause = cause;
        (of.began, of.resumes) = (begins + takes, begins + takes);
        begins + takes
    }

    /// A stopped gang gives its nodes back.
    pub fn release(&mut self, gang: usize, until: Time) {
        let of = &mut self.gangs[gang];
        let held = until - of.held_since;
        let idle = until - of.began;
        for node in std::mem::take(&mut of.nodes) {
            self.nodes[node].owner = None;
        }
        let (accelerators, spent) = self.spent(gang);
        spent.held += (held - idle) * accelerators;
    }

    pub fn complete(&mut self, gang: usize) {
        let until = self.now.max(self.gangs[gang].began);
        self.account(gang, until, true, Cause::Start);
        self.gangs[gang].began = until;
        self.release(gang, until);
    }

    /// Starts a gang on these nodes, which are free from then on.
    pub fn start(&mut self, gang: usize, nodes: Vec<usize>, from: Time) {
        for &node in &nodes {
            self.nodes[node].owner = Some(gang);
        }
        let takes = Arm::NewPods.restart(nodes.len(), true) + self.inputs.setting.pull;
        let of = &mut self.gangs[gang];
        (of.nodes, of.held_since, of.began) = (nodes, from, from);
        self.resume(gang, from + takes);
    }

    fn restart(&mut self, gang: usize, from: Time, changes_nodes: bool) {
        let pull = if changes_nodes {
            self.inputs.setting.pull
        } else {
            0
        };
        let members = self.gangs[gang].nodes.len();
        self.resume(gang, from + self.arm.restart(members, changes_nodes) + pull);
    }

    /// All processes run from then on, and load the checkpoint.
    fn resume(&mut self, gang: usize, run: Time) {
        let of = &mut self.gangs[gang];
        of.resumes = run + of.job.load;
        of.epoch += 1;
        let left = of.job.work - of.done;
        let saves = (left - 1).max(0) / of.job.interval * of.job.save;
        let (at, epoch) = (of.resumes + left + saves, of.epoch);
        self.at(at, Event::Finishes { gang, epoch });
    }

    pub fn fail(&mut self, node: usize, fault: Fault) {
        if fault != Fault::Process {
            self.take_out(node, self.now + REPAIR);
        }
        let Some(gang) = self.nodes[node].owner else {
            return;
        };
        let stopped = self.stop(gang, Cause::Failure);
        if fault == Fault::Process {
            return self.restart(gang, stopped, false);
        }
        let of = &self.gangs[gang];
        let again = self.arm.restart(of.nodes.len(), false) + of.job.load;
        let by_signal = HOLD + COLLECT;
        let signals = self.arm == Arm::Signals;
        let known = match fault {
            // Without a signal, the first restart fails on the same node.
            Fault::Device if signals => by_signal.min(again),
            Fault::Device => again,
            Fault::Hang if signals => by_signal,
            Fault::Hang => HANGS,
            Fault::Node | Fault::Process => SILENT,
        };
        self.lose(gang, known, Cause::Failure);
        self.gangs[gang].began = stopped + known;
        self.replace(gang, &[node], stopped + known);
    }

    pub fn maintain(&mut self, node: usize) {
        self.take_out(node, self.now + MAINTENANCE);
        if let Some(gang) = self.nodes[node].owner {
            let stopped = self.stop(gang, Cause::Maintenance);
            self.replace(gang, &[node], stopped);
        }
    }

    /// A stopped gang gets other nodes instead of these, or waits in the queue.
    fn replace(&mut self, gang: usize, lost: &[usize], stopped: Time) {
        let before = lost.iter().filter_map(|&node| self.leaves_by(node)).min();
        if let Some((new, ready)) = self.find(gang, lost.len(), before) {
            self.swap(gang, lost, &new, ready.max(stopped));
        } else {
            self.release(gang, stopped);
            self.requeue(gang);
        }
    }

    /// Other nodes, free or by preemption, and when they are free. `before`: nodes that leave about
    /// then gain nothing.
    fn find(
        &mut self,
        gang: usize,
        count: usize,
        before: Option<Time>,
    ) -> Option<(Vec<usize>, Time)> {
        let leaving: Vec<Option<Time>> = (0..self.nodes.len())
            .map(|node| self.leaves_by(node))
            .collect();
        let gains = |node: usize| match (leaving[node], before) {
            (Some(at), Some(before)) => at >= before + LEAST_GAIN,
            _ => true,
        };
        let usable = |world: &Self| {
            let mut free = world.free();
            free.retain(|&node| gains(node));
            free
        };
        let mut free = usable(self);
        let mut ready = self.now;
        if free.len() < count {
            let priority = self.gangs[gang].job.priority;
            ready = self.preempt(priority, count - free.len(), gains)?;
            free = usable(self);
        }
        free.truncate(count);
        Some((free, ready))
    }

    fn swap(&mut self, gang: usize, lost: &[usize], new: &[usize], from: Time) {
        for (old, new) in lost.iter().zip(new) {
            self.nodes[*old].owner = None;
            self.nodes[*new].owner = Some(gang);
            let mut nodes = self.gangs[gang].nodes.iter_mut();
            if let Some(at) = nodes.find(|node| *node == old) {
                *at = *new;
            }
        }
        self.restart(gang, from, true);
    }

    /// A gang without requests moves after its first checkpoint from now on.
    pub fn leave_early(&mut self, node: usize, interval: Time) {
        let Some(gang) = self.nodes[node].owner else {
            return;
        };
        let of = &self.gangs[gang];
        if of.job.interval != interval || self.asks(of) {
            return;
        }
        let cycle = interval + of.job.save;
        let cycles = (self.now - of.resumes).max(0) / cycle + 1;
        let (saved, epoch) = (of.resumes + cycles * cycle, of.epoch);
        if saved <= self.nodes[node].deadline - LEAD {
            self.at(saved, Event::LeavesAt { gang, epoch, node });
        }
    }

    /// The gang leaves this node and all that end within the horizon, if other nodes are found.
    /// Otherwise it saves. True if it moves.
    pub fn leave(&mut self, gang: usize, faulty: Option<usize>, cause: Cause) -> bool {
        let nodes = self.gangs[gang].nodes.iter().copied();
        let lost: Vec<usize> = nodes
            .filter(|&node| Some(node) == faulty || self.leaves_by(node).is_some())
            .collect();
        let before = lost.iter().filter_map(|&node| self.leaves_by(node)).min();
        let before = before.filter(|_| faulty.is_none());
        let Some((new, ready)) = self.find(gang, lost.len(), before) else {
            if cause == Cause::Maintenance && self.asks(&self.gangs[gang]) {
                self.save(gang, cause);
            }
            return false;
        };
        let stopped = self.stop(gang, cause);
        self.outcome.idle += (stopped - self.now) * new.len() as Time * ACCELERATORS;
        self.outcome.moves += usize::from(cause == Cause::Maintenance);
        self.swap(gang, &lost, &new, ready.max(stopped));
        true
    }

    /// The gang saves on request and continues.
    fn save(&mut self, gang: usize, cause: Cause) {
        let of = &self.gangs[gang];
        if self.now <= of.resumes {
            return;
        }
        self.account(gang, self.now, true, cause);
        let (now, save) = (self.now, self.gangs[gang].job.save);
        self.lose(gang, save, cause);
        let of = &mut self.gangs[gang];
        of.began = now + save;
        let run = of.began - of.job.load;
        self.resume(gang, run);
    }

    pub fn alarmed(&mut self, node: usize, alarm: Alarm) {
        self.take_out(node, self.now + CLEARED_AFTER);
        let Some(gang) = self.nodes[node].owner else {
            return;
        };
        if self.leave(gang, Some(node), Cause::FalseAlarm) {
            match alarm {
                Alarm::Stands => self.outcome.false_moves += 1,
                Alarm::Noise | Alarm::Short => self.outcome.moves_by_noise += 1,
            }
        }
    }
}
