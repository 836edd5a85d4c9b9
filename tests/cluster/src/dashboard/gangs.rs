//! The workloads of the cluster: what runs, and what waits.

use lockstep_cluster::manifests::{gang, merge, pin_to_pool};
use serde_json::{Value, json};

/// Nodes of all workloads but [`PROBE`].
pub const POOL: &str = "node";
/// Nodes of [`PROBE`], which no other workload may use.
pub const PROBE_POOL: &str = "probe";
/// The gang that the benchmark starts, in [`PROBE_NAMESPACE`].
const PROBE: &str = "probe";
const PROBE_NAMESPACE: &str = "batch";
/// Its members, each on a whole node.
pub const PROBE_NODES: usize = 32;
pub const NAMESPACES: [&str; 5] = ["ml", "vision", "speech", "research", PROBE_NAMESPACE];
pub const CLASSES: [(&str, &str); 4] = [
    ("low", "100"),
    ("normal", "500"),
    ("high", "1000"),
    ("urgent", "10000"),
];
/// Running gangs whose members fail: the largest. No gang preempts them.
pub const FAILING: usize = 7;
/// Waiting gangs.
pub const WAITING: usize = 30;
const MODELS: [&str; 10] = [
    "llama", "vit", "whisper", "sweep", "rerank", "mixtral", "dino", "tts", "ablation", "embed",
];
/// Accelerators of a node.
const GPUS: i32 = 8;
/// Rank of the largest gang in the law of Zipf by which sizes fall.
const FIRST_RANK: usize = 3;
const LONG_GRACE_SECONDS: i64 = 3600;

/// A workload and its namespace.
#[derive(Debug)]
pub struct Workload {
    pub namespace: &'static str,
    pub name: String,
    pub manifest: Value,
}

impl Workload {
    fn new(number: usize, name: String, members: i32, gpus: i32, patch: Value) -> Self {
        let mut manifest = gang(&name, members, gpus, patch);
        pin_to_pool(&mut manifest, POOL);
        Self {
            namespace: NAMESPACES[number % NAMESPACES.len()],
            name,
            manifest,
        }
    }

    fn with_pods(mut self, patch: Value) -> Self {
        merge(
            &mut self.manifest["spec"]["groups"][0]["template"]["spec"],
            patch,
        );
        self
    }

    /// Its pods ignore SIGTERM, and their grace period is the longest of a victim by default.
    fn with_long_end(self) -> Self {
        let mut workload =
            self.with_pods(json!({"terminationGracePeriodSeconds": LONG_GRACE_SECONDS}));
        let pod = &mut workload.manifest["spec"]["groups"][0]["template"]["spec"];
        pod["containers"][0]["env"] = json!([{"name": "HOLLOW_ON_TERM", "value": "ignore"}]);
        workload
    }
}

/// Running gangs, the largest first: few large and many small ones on about this number of nodes.
/// Their deadlines, priorities and sizes of members differ. Gangs that can be preempted do not end
/// when they are evicted.
pub fn running(gangs: usize, nodes: usize) -> Vec<Workload> {
    let weight = |rank: usize| 1.0 / (rank + FIRST_RANK) as f64;
    let sum: f64 = (0..gangs).map(weight).sum();
    let size = |rank| (nodes as f64 * weight(rank) / sum).round().max(1.0) as i32;
    (0..gangs)
        .map(|rank| {
            let workload = started(rank, size(rank));
            if rank < FAILING {
                workload
            } else {
                workload.with_long_end()
            }
        })
        .collect()
}

fn started(number: usize, nodes: i32) -> Workload {
    let (class, _) = match number {
        0..FAILING => CLASSES[3],
        _ => CLASSES[2 - number % 3],
    };
    let name = match number {
        0..10 => MODELS[number].to_owned(),
        _ => format!("{}-{number}", MODELS[number % MODELS.len()]),
    };
    // Some members leave accelerators that are too few for any waiting gang.
    let (members, gpus) = match number % 5 {
        3 => (nodes, GPUS - 2),
        4 => (2 * nodes, GPUS / 2),
        _ => (nodes, GPUS),
    };
    let hours = 2 + number * 7 % 48;
    let rack = json!({"key": "topology.kubernetes.io/rack", "mode": "Preferred"});
    let patch = json!({
        "priorityClassName": class,
        "activeDeadlineSeconds": hours * 3600,
        "failurePolicy": {"rules": [{"name": "bad-arguments", "action": "FailWorkload",
            "match": {"exitCodes": {"operator": "In", "values": [2]}}}]},
        "scheduling": {"topology": if number.is_multiple_of(4) { rack } else { Value::Null }},
    });
    Workload::new(number, name, members, gpus, patch)
}

/// A waiting gang with a reservation, larger than what is free.
pub fn reserving(nodes: usize) -> Workload {
    waiting("pretrain", 0, (nodes / 6) as i32, "high")
}

/// A gang that preempts, and waits for the end of its victims.
pub fn preempting(nodes: usize) -> Workload {
    let patch = json!({"priorityClassName": "urgent"});
    Workload::new(0, "release".into(), (nodes / 9) as i32, GPUS, patch)
}

/// The other waiting gangs. One lacks a claim, and one is larger than the cluster.
pub fn queued(nodes: usize) -> Vec<Workload> {
    let claim =
        json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "imagenet"}}]});
    let mut all = vec![
        waiting("finetune-data", 1, 4, "normal").with_pods(claim),
        waiting("everything", 3, 2 * nodes as i32, "low"),
    ];
    let others = WAITING - all.len() - 2;
    all.extend((0..others).map(|number| {
        let (class, _) = CLASSES[2 - number % 3];
        let name = format!("{}-next-{number}", MODELS[number % MODELS.len()]);
        waiting(&name, number, 2 + (number * 5 % 13) as i32, class)
    }));
    all
}

fn waiting(name: &str, number: usize, members: i32, class: &str) -> Workload {
    let patch = json!({"priorityClassName": class, "scheduling": {"preemptionPolicy": "Never"}});
    Workload::new(number, name.to_owned(), members, GPUS, patch)
}

/// The suspended gang that the benchmark starts.
pub fn probe() -> Workload {
    let patch = json!({"priorityClassName": "high", "suspend": true});
    let mut manifest = gang(PROBE, PROBE_NODES as i32, GPUS, patch);
    pin_to_pool(&mut manifest, PROBE_POOL);
    Workload {
        namespace: PROBE_NAMESPACE,
        name: PROBE.to_owned(),
        manifest,
    }
}
