//! A story: a cluster, workloads, troubles between random steps, and rest.

use chrono::TimeDelta;
use lockstep_api::key::Key;
use lockstep_api::{NodeHealthMode, TrainingWorkload};
use lockstep_lifecycle::LifecycleSettings;
use lockstep_manager::stepped::WatchedKind;
use serde_json::json;

use super::{CLASSES, Mix, Trouble, TroubleKind, heal, nodes, report, signals, training, users};
use crate::SimCluster;
use crate::nodes::node;
use crate::oracle::{self, Oracles};

/// Longest wait for a deadline at the end of a story: longer than every deadline of the generated
/// workloads.
const PATIENCE: i64 = 1500;
/// Most rounds until a story is at rest.
const MOST_ROUNDS: usize = 2500;
/// Consecutive turns without a change that count as rest. A budget that refuses an eviction is
/// checked once a second, and all other deadlines must pass.
const MOST_QUIET: usize = 900;

/// Duration of training at the end, in which all hangs are handled.
const TRAINS: TimeDelta = TimeDelta::minutes(10);
const TURN: TimeDelta = TimeDelta::seconds(5);
/// Time from the announcement of a maintenance of all nodes until its start.
const ANNOUNCED: TimeDelta = TimeDelta::minutes(8);

/// Most minutes of [`TroubleKind::Minutes`].
const MOST_MINUTES: usize = 8;

/// Rounds until the first members run. The first training process then makes steps.
const STARTS_IN: usize = 40;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Chooses the cluster, the next actor, and jitter.
    pub seed: u64,
    /// Most steps after each trouble.
    pub steps: usize,
    /// True for stories about training that reports progress: the first workloads do.
    pub trains: bool,
    /// True if a maintenance of all nodes is announced at the end.
    pub announces: bool,
}

pub struct Story {
    pub cluster: SimCluster,
    pub oracles: Oracles,
    /// Number of played troubles.
    pub mix: Mix,
    /// Played troubles in order, for reports.
    told: Vec<String>,
    /// Seed and numbers of the troubles: they replay the story.
    numbers: Vec<u64>,
    steps: usize,
    announces: bool,
}

impl Story {
    /// A cluster of three to five nodes of two kinds, with priority classes and two workloads.
    pub fn new(settings: &Settings) -> Self {
        let mut rng = fastrand::Rng::with_seed(settings.seed);
        // Separate, so that the seed's other choices stay.
        let mut clocks = fastrand::Rng::with_seed(settings.seed.rotate_left(31));
        let mut cluster = SimCluster::with_settings(settings.seed, installation(settings.trains));
        for at in 0..rng.usize(3..=5) {
            let gpus = [2, 4, 4, 8][rng.usize(..4)].to_string();
            let rdma = ["0", "2"][rng.usize(..2)];
            let labels = json!({"zone": format!("z{}", at % 2)});
            let resources = [("nvidia.com/gpu", gpus.as_str()), ("rdma/hca", rdma)];
            let name = format!("n{at}");
            cluster.add_node(node(&name, &resources, &labels));
            cluster.node(&name).clock_ahead = nodes::any_clock(&mut clocks);
        }
        cluster.set_node_health(NodeHealthMode::Act);
        for (name, value) in CLASSES {
            users::make_class(&mut cluster, name, value);
        }
        for _ in 0..2 {
            if settings.trains {
                training::new_trainer(&mut cluster, &mut rng);
            } else {
                users::new_workload(&mut cluster, &mut rng);
            }
        }
        // Troubles of members need running members, and troubles of starts need starting ones.
        if settings.trains || rng.bool() {
            for _ in 0..STARTS_IN {
                cluster.round();
                cluster.later(1);
            }
        }
        Self {
            cluster,
            oracles: Oracles::default(),
            mix: Mix::default(),
            told: Vec::new(),
            numbers: vec![settings.seed],
            steps: settings.steps,
            announces: settings.announces,
        }
    }

    /// Plays a trouble, and then some steps.
    ///
    /// # Panics
    ///
    /// An invariant is violated.
    pub fn play(&mut self, trouble: Trouble) {
        self.numbers.push(trouble.number);
        if trouble.happen(&mut self.cluster) {
            self.mix.count(trouble.kind);
            let at = self.cluster.now().format("%H:%M:%S%.3f");
            self.told.push(format!("{at} {trouble:?}"));
        }
        self.cluster.reseed(trouble.number);
        if trouble.kind == TroubleKind::Minutes {
            let minutes = 2 + self.cluster.pick(MOST_MINUTES - 1);
            self.pass(TimeDelta::minutes(minutes as i64));
        }
        for _ in 0..self.cluster.pick(self.steps + 1) {
            self.cluster.step();
            self.look();
        }
    }

    /// Checks the invariants.
    ///
    /// # Panics
    ///
    /// One is violated.
    pub fn look(&mut self) {
        let broken = self.oracles.look(&mut self.cluster);
        self.hold(&broken);
    }

    /// Ends all faults, later all signals, waits for rest, and deletes every workload. Two kinds of workloads are
    /// deleted before the rest: with constraints of kube-scheduler, which are retried every five
    /// minutes, and with progress, which never rest.
    ///
    /// # Panics
    ///
    /// An invariant is violated.
    pub fn end(&mut self) {
        heal(&mut self.cluster);
        self.train();
        for node in self.cluster.node_names() {
            signals::end(&mut self.cluster, &node);
        }
        self.delete(|w| retried_for_ever(w) || tells_progress(w));
        self.settle();
        let broken = self.oracles.look_at_rest(&mut self.cluster);
        self.hold(&broken);
        self.delete(|_| true);
        self.settle();
        let broken = oracle::left(&self.cluster);
        self.hold(&broken);
    }

    /// Continues training for a while.
    fn train(&mut self) {
        if self.cluster.lives().next().is_none() {
            return;
        }
        // No move helps, so each running gang is asked before the deadline.
        let nodes = self.cluster.node_names().into_iter();
        for node in nodes.filter(|_| self.announces) {
            self.cluster.announce_maintenance(&node, ANNOUNCED);
        }
        self.pass(TRAINS);
        let broken = self.oracles.look_at_training(&self.cluster);
        self.hold(&broken);
    }

    /// Lets time pass, in which everything runs.
    fn pass(&mut self, time: TimeDelta) {
        for _ in 0..time.num_seconds() / TURN.num_seconds() {
            self.cluster.round();
            self.look();
            self.cluster.advance(TURN);
        }
    }

    fn delete(&mut self, which: impl Fn(&TrainingWorkload) -> bool) {
        let mut all = self.cluster.list::<TrainingWorkload>();
        all.retain(which);
        for workload in all {
            let key = Key::of(&workload);
            self.cluster.delete(WatchedKind::TrainingWorkload, &key);
        }
    }

    fn settle(&mut self) {
        (self.cluster.most_rounds, self.cluster.most_quiet) = (MOST_ROUNDS, MOST_QUIET);
        self.cluster.patience = TimeDelta::seconds(PATIENCE);
        self.cluster.longest_quiet = self.cluster.patience;
        let settled = self.cluster.try_settle();
        self.look();
        if let Err(why) = settled {
            self.hold(&[format!("I5: {why}")]);
        }
    }

    fn hold(&self, broken: &[String]) {
        assert!(
            broken.is_empty(),
            "{}\nSIM_STORY={:?}\n--- what happened\n{}\n--- workloads\n{}\n--- nodes\n{}\n--- last writes\n{}\n--- what they changed, the last one first\n{}",
            broken.join("\n"),
            self.numbers,
            self.told.join("\n"),
            report::workloads(&self.cluster),
            report::nodes(&self.cluster),
            self.cluster.story(60),
            report::changes(&self.cluster)
        );
    }
}

/// The manager's settings. Stories about training restart failed members quickly.
fn installation(trains: bool) -> LifecycleSettings {
    let usual = LifecycleSettings {
        supervisor_image: Some("lockstep-supervisor".into()),
        ..LifecycleSettings::default()
    };
    if !trains {
        return usual;
    }
    LifecycleSettings {
        incident_backoff: TimeDelta::seconds(1),
        incident_backoff_max: TimeDelta::seconds(3),
        healthy_reset: TimeDelta::seconds(20),
        ..usual
    }
}

/// True if a workload has constraints that placement does not see and kube-scheduler may refuse
/// forever: host ports, affinity between pods, spread constraints.
fn retried_for_ever(workload: &TrainingWorkload) -> bool {
    let templates = workload.spec.groups.iter().map(|g| &g.template);
    templates.into_iter().any(|template| {
        let spec = &serde_json::to_value(template).unwrap_or_default()["spec"];
        let ports = spec["containers"].as_array().into_iter().flatten();
        let host = ports
            .flat_map(|c| c["ports"].as_array().into_iter().flatten())
            .any(|port| !port["hostPort"].is_null());
        let apart = ["podAffinity", "podAntiAffinity"].map(|kind| &spec["affinity"][kind]);
        let spread = &spec["topologySpreadConstraints"];
        host || !spread.is_null() || apart.iter().any(|affinity| !affinity.is_null())
    })
}

fn tells_progress(workload: &TrainingWorkload) -> bool {
    workload.spec.failure_policy.progress.is_some()
}
