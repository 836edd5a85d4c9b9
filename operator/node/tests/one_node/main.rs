//! Random histories of one node's agent. They vary supervision, exits and restarts of containers,
//! how long ended containers are listed, orders, and the lag of the agent's watch. Faults are
//! crashes of the agent with and without its file or with unwritten reports, failures of the
//! runtime and of links to supervisors, and replaced pods.

// `cfg(test)` always holds here. It allows unwrap in helpers (clippy).
#![cfg(test)]

mod step;
mod truth;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::restart_order::DomainOrder;
use lockstep_api::{NodeAgentStatus, RestartOrderSpec};
use lockstep_node::{
    ChildEnd, NodePlan, NodePod, NodeView, ObservedContainer, Records, SupervisorCommand,
    SupervisorState, decide,
};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use step::{Step, steps};
use truth::{Container, Truth};

const PODS: usize = 3;

/// Runs are deterministic, unless `PROPTEST_CASES` or `PROPTEST_RNG_SEED` is set.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(40);
    let mut config = ProptestConfig {
        cases,
        max_shrink_iters: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(1);
    }
    config
}

/// A node, its agent and the manager's orders.
struct Node {
    supervised: bool,
    pods: Vec<Truth>,
    /// Pods as of the last list of the runtime.
    listed: Vec<NodePod>,
    order: DomainOrder,
    /// State of the agent's watch. `None`: up to date.
    shown: Option<DomainOrder>,
    records: Records,
    published: NodeAgentStatus,
    written: NodeAgentStatus,
    now: i64,
    lives: i64,
}

type Check = Result<(), TestCaseError>;

impl Node {
    fn new(supervised: bool) -> Self {
        let pods = (0..PODS as i32).map(|i| Truth::new(i, 0, 1, supervised));
        let order = DomainOrder {
            key: "d".into(),
            attempt: 1,
            members: vec![format!("g/0/0-{}", PODS - 1)],
            world: PODS as i32,
            restarts_seen: -1,
            ..DomainOrder::default()
        };
        Self {
            supervised,
            pods: pods.collect(),
            listed: Vec::new(),
            order,
            shown: None,
            records: Records::default(),
            published: NodeAgentStatus::default(),
            written: NodeAgentStatus::default(),
            now: 1,
            lives: 0,
        }
    }

    fn at(&self) -> DateTime<Utc> {
        DateTime::from_timestamp(self.now, 0).unwrap()
    }

    /// Applies a step. True if anything changed.
    fn apply(&mut self, step: Step) -> Result<bool, TestCaseError> {
        self.now += 1;
        let at = self.at();
        let done = match step {
            Step::Exit(i, code) if self.supervised => self.child_ends(i, code),
            Step::Exit(i, code) => self.pods[i].end(code, at),
            Step::Kill(i) => {
                self.pods[i].note_child_ends();
                self.pods[i].end(137, at)
            }
            Step::Start(i) => self.start(i),
            Step::Remove(i) => {
                let containers = &mut self.pods[i].containers;
                let before = containers.len();
                containers.retain(|c| c.seen.exit.is_none());
                containers.len() < before
            }
            Step::Replace(i) => {
                self.lives += 1;
                let attempt = self.order.attempt;
                self.pods[i] = Truth::new(i as i32, self.lives, attempt, self.supervised);
                true
            }
            Step::Order => self.next_attempt(),
            Step::Alone(i) => self.answer_alone(i),
            Step::Lag => {
                let before = self.shown.is_some();
                self.shown.get_or_insert(self.order.clone());
                !before
            }
            Step::CatchUp => self.shown.take().is_some(),
            Step::Pass(listed) => self.pass(listed)?,
            Step::Write => {
                let news = self.written != self.published;
                self.written = self.published.clone();
                self.release();
                news
            }
            Step::Unlink(i) => std::mem::take(&mut self.pods[i].linked),
            Step::Crash | Step::Forget => {
                self.published = self.written.clone();
                self.listed.clear();
                // A new watch begins with the current state.
                self.shown = None;
                self.pods.iter_mut().for_each(|p| p.linked = false);
                if matches!(step, Step::Forget) {
                    self.records = Records::from_published(&self.written);
                    self.forget_what_is_untold();
                }
                true
            }
            Step::Tick(seconds) => {
                self.now += seconds;
                true
            }
            Step::Calm => {
                self.calm(4)?;
                true
            }
        };
        if self.shown.is_some() {
            for container in self.pods.iter_mut().flat_map(|p| &mut p.containers) {
                container.in_time = false;
            }
        }
        Ok(done)
    }

    fn forget_what_is_untold(&mut self) {
        let arrivals = self.written.arrivals.iter().flat_map(|a| &a.pods);
        let reports = self.written.reports.iter();
        let ids = arrivals.map(|p| &p.container_id);
        let told: BTreeSet<&String> = ids.chain(reports.map(|r| &r.container_id)).collect();
        for container in self.pods.iter_mut().flat_map(|p| &mut p.containers) {
            container.came_to = container
                .came_to
                .filter(|_| told.contains(&container.seen.id));
        }
    }

    fn child_ends(&mut self, pod: usize, code: i32) -> bool {
        let at = self.at();
        let truth = &mut self.pods[pod];
        truth.note_child_ends();
        let Some(attempt) = truth.supervisor.running.take() else {
            return false;
        };
        let end = ChildEnd {
            attempt,
            at,
            code,
            reason: "Error".into(),
            message: String::new(),
        };
        truth.supervisor.exit = Some(end);
        true
    }

    fn start(&mut self, pod: usize) -> bool {
        let (at, in_time) = (self.at(), self.shown.is_none());
        let truth = &mut self.pods[pod];
        if truth.running().is_some() {
            return false;
        }
        let restarts = truth.started;
        truth.started += 1;
        truth.containers.push(Container {
            seen: ObservedContainer {
                id: format!("{}c{restarts}", truth.pod.uid),
                restarts,
                created_at: at,
                exit: None,
            },
            in_time,
            came_to: None,
        });
        truth.supervisor.held = self.supervised.then_some(0);
        true
    }

    fn next_attempt(&mut self) -> bool {
        let before = self.order.attempt;
        let mut exceptions = Vec::new();
        for truth in &mut self.pods {
            let restarts = truth.restarts_seen(before, &self.written.reports);
            truth.seen.insert(before + 1, restarts);
            exceptions.push(truth.with_restarts(restarts));
        }
        self.order = DomainOrder {
            attempt: before + 1,
            exceptions,
            alone: Vec::new(),
            since: Some(self.at()),
            ..self.order.clone()
        };
        true
    }

    fn answer_alone(&mut self, pod: usize) -> bool {
        let truth = &self.pods[pod];
        let attempt = self.order.attempt;
        let Some((_, restarts)) = truth.ended.iter().rfind(|(a, _)| *a == attempt) else {
            return false;
        };
        let new = truth.with_restarts(*restarts);
        self.order.alone.retain(|a| a.members != new.members);
        self.order.alone.push(new);
        true
    }

    /// The manager releases domains whose agent has reported all arrivals.
    fn release(&mut self) {
        let arrival = self.written.arrivals.first();
        let all = arrival
            .is_some_and(|a| (a.attempt, a.pods.len()) == (self.order.attempt, self.pods.len()));
        if all {
            self.order.released_attempt = self.order.attempt;
        }
    }

    fn pass(&mut self, listed: bool) -> Result<bool, TestCaseError> {
        if listed {
            self.pods
                .iter_mut()
                .for_each(|p| p.linked = p.running().is_some());
            self.listed = self.pods.iter().map(Truth::listed).collect();
        } else if self.listed.is_empty() {
            return Ok(false);
        }
        let plan = self.decide(listed);
        let done = plan != NodePlan::default();
        if let Some(records) = plan.records {
            self.records = records;
        }
        if let Some(status) = plan.status {
            self.published = status;
        }
        let again = self.decide(listed);
        prop_assert_eq!((again.records, again.status), (None, None), "said again");
        self.check_published()?;
        self.note_arrivals();
        for stop in plan.stop {
            self.check_stop(&stop.pod_uid, &stop.container_id)?;
            let at = self.at();
            let stopped = self.pods.iter_mut().find(|p| p.pod.uid == stop.pod_uid);
            if let Some(truth) = stopped {
                truth.end(137, at);
            }
        }
        for message in plan.messages {
            self.receive(&message.pod_uid, &message.command)?;
        }
        Ok(done)
    }

    fn decide(&self, listed: bool) -> NodePlan {
        let order = self.shown.as_ref().unwrap_or(&self.order);
        let spec = RestartOrderSpec {
            workload_uid: "w".into(),
            domains: vec![order.clone()],
        };
        let view = NodeView {
            node: "n",
            orders: &BTreeMap::from([((String::new(), "w".into()), spec)]),
            pods: &self.listed,
            listed,
            records: &self.records,
            published: &self.published,
        };
        decide(&view, self.at())
    }

    /// Containers newer than the last order belong to its attempt, and are never stopped.
    fn check_stop(&self, uid: &str, id: &str) -> Check {
        prop_assert!(!self.supervised, "a supervised container is never stopped");
        let truth = self.pods.iter().find(|p| p.pod.uid == uid);
        let Some(truth) = truth else { return Ok(()) };
        let container = truth.containers.iter().find(|c| c.seen.id == id);
        let seen = truth.seen.get(&self.order.attempt).copied();
        let newer = container.filter(|c| c.in_time && seen.is_none_or(|n| c.seen.restarts > n));
        prop_assert!(
            newer.is_none(),
            "{id} is stopped although it is newer than the order"
        );
        Ok(())
    }

    fn check_published(&self) -> Check {
        let mut ends = BTreeSet::new();
        for r in &self.published.reports {
            let end = (&r.container_id, r.attempt, r.supervised);
            prop_assert!(ends.insert(end), "told twice: {r:?}");
        }
        let arrivals = self.published.arrivals.iter();
        let came = arrivals.flat_map(|a| a.pods.iter().map(|p| (a.attempt, p)));
        for (attempt, pod) in came.filter(|_| !self.supervised) {
            let truth = self.pods.iter().find(|p| p.pod.uid == pod.pod_uid);
            let older = truth
                .and_then(|t| t.seen.get(&attempt))
                .is_some_and(|seen| pod.restarts <= *seen);
            prop_assert!(!older, "{} has not come to {attempt}", pod.container_id);
            let failed = truth.is_some_and(|t| t.failed_before(attempt, pod.restarts));
            prop_assert!(
                !failed,
                "{} has come to {attempt}, in which its member failed",
                pod.container_id
            );
        }
        Ok(())
    }

    fn note_arrivals(&mut self) {
        for arrival in &self.published.arrivals {
            let came =
                |c: &&mut Container| arrival.pods.iter().any(|p| p.container_id == c.seen.id);
            let containers = self.pods.iter_mut().flat_map(|p| &mut p.containers);
            for container in containers.filter(came) {
                container.came_to = Some(arrival.attempt);
            }
        }
    }

    /// Sends a message to a supervisor, which executes it if it can.
    fn receive(&mut self, uid: &str, command: &SupervisorCommand) -> Check {
        let alone = self.shown.as_ref().unwrap_or(&self.order).alone.clone();
        let told = self.written.reports.clone();
        let at = self.at();
        let Some(truth) = self.pods.iter_mut().find(|p| p.pod.uid == uid) else {
            return Ok(());
        };
        if !truth.linked {
            return Ok(());
        }
        let exit = truth.supervisor.exit.as_ref().map(|e| (e.attempt, e.code));
        match command {
            SupervisorCommand::Hold { attempt } => {
                truth.supervisor = SupervisorState {
                    held: Some(*attempt),
                    ..SupervisorState::default()
                };
            }
            SupervisorCommand::Release { attempt, .. } => {
                if truth.supervisor.held != Some(*attempt) {
                    return Ok(());
                }
                prop_assert!(self.order.released_attempt >= *attempt);
                let number = truth.started - 1;
                let answered = alone
                    .iter()
                    .any(|a| a.restarts < number && *a == truth.with_restarts(a.restarts));
                for (_, earlier) in truth.ended.iter().filter(|(a, _)| a == attempt) {
                    let id = format!("{uid}c{earlier}");
                    let known = told.iter().any(|r| r.container_id == id)
                        || truth.containers.iter().any(|c| c.seen.id == id);
                    prop_assert!(
                        answered || !known,
                        "{uid} begins again in attempt {attempt}, in which {id} has ended"
                    );
                }
                truth.supervisor.held = None;
                truth.supervisor.running = Some(*attempt);
            }
            SupervisorCommand::Checkpoint { .. } | SupervisorCommand::Stop { .. } => {
                prop_assert!(false, "the orders request nothing");
            }
            SupervisorCommand::Complete { attempt } | SupervisorCommand::Exit { attempt } => {
                if let Some((_, code)) = exit.filter(|(ended, _)| ended == attempt) {
                    truth.end(code, at);
                }
            }
        }
        Ok(())
    }

    fn calm(&mut self, turns: usize) -> Check {
        for _ in 0..turns {
            for pod in 0..PODS {
                self.apply(Step::Start(pod))?;
            }
            self.apply(Step::Pass(true))?;
            self.apply(Step::Write)?;
        }
        Ok(())
    }

    /// After the faults, all members arrive at the next attempt.
    fn converges(&mut self) -> Check {
        self.apply(Step::CatchUp)?;
        self.apply(Step::Order)?;
        self.calm(12)?;
        let arrival = self.written.arrivals.first();
        let came = arrival
            .map(|a| (a.attempt, a.pods.iter().map(|p| p.container_id.clone())))
            .map(|(attempt, ids)| (attempt, ids.collect::<BTreeSet<_>>()));
        let running = self
            .pods
            .iter()
            .flat_map(|p| &p.containers)
            .filter(|c| c.seen.exit.is_none());
        let all = running.map(|c| c.seen.id.clone()).collect::<BTreeSet<_>>();
        prop_assert_eq!(came, Some((self.order.attempt, all)));
        for truth in &self.pods {
            let ended = truth.containers.iter().filter(|c| c.seen.exit.is_some());
            let last = ended.max_by_key(|c| c.seen.restarts);
            let told = &self.written.reports;
            if let Some(last) = last {
                prop_assert!(
                    told.iter().any(|r| r.container_id == last.seen.id),
                    "nobody was told how {} has ended",
                    last.seen.id
                );
            }
        }
        Ok(())
    }
}

#[test]
fn lost_records_and_delayed_orders_stop_no_newer_container_and_end_failed_attempts() {
    let config = ProptestConfig {
        cases: config().cases * 10,
        max_shrink_iters: 2000,
        ..config()
    };
    let cases = config.cases as usize;
    let played = RefCell::new(BTreeMap::<&str, usize>::new());
    let held = TestRunner::new(config).run(&(any::<bool>(), steps()), |(supervised, steps)| {
        let mut node = Node::new(supervised);
        for step in steps {
            if node.apply(step)? {
                *played.borrow_mut().entry(step.name()).or_default() += 1;
            }
        }
        node.converges()
    });
    if let Err(why) = held {
        panic!("{why}");
    }
    let played = played.into_inner();
    println!("{cases} histories: {played:?}");
    let rare = |name: &&str| played.get(*name).copied().unwrap_or(0) < cases / 10;
    let rare: Vec<_> = Step::NAMES.into_iter().filter(|n| rare(n)).collect();
    assert_eq!(rare, Vec::<&str>::new(), "these hardly happened");
}
