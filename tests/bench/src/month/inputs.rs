//! What happens in the month, the same for all arms.

use fastrand::Rng;

use super::{DAY, HOUR, MINUTE, Time};

/// A month's size and rates.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Equal seeds lead to equal inputs.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of days.
    pub days: i64,
    /// Failures per 1,000 node-days.
    pub failures: f64,
    /// Seconds to pull the image on a node that has not run the gang.
    pub pull: Time,
}

/// A training job.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub arrives: Time,
    /// Members, each on a node of its own.
    pub members: usize,
    pub priority: i32,
    /// Seconds of training.
    pub work: Time,
    /// Seconds of training between two regular checkpoints.
    pub interval: Time,
    pub save: Time,
    pub load: Time,
    /// True if it answers requests.
    pub answers: bool,
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The process fails, and the node is sound.
    Process,
    /// A device fails, and the process ends.
    Device,
    /// A device fails, and the job hangs.
    Hang,
    /// The node is gone.
    Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alarm {
    /// Not a signal by the rules.
    Noise,
    /// A signal that ends within its hold time.
    Short,
    /// A signal that stands.
    Stands,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    Fails(Fault),
    Maintenance,
    Alarm(Alarm),
}

/// All inputs of a run.
pub struct Inputs {
    pub(crate) setting: Setting,
    pub(crate) jobs: Vec<Job>,
    /// Time, node, and what happens there, sorted.
    pub(crate) happenings: Vec<(Time, usize, Happening)>,
}

/// Share of the cluster's time that jobs without the urgent ones request.
const LOAD: f64 = 0.95;
/// Time between two urgent gangs, which preempt others, and their work.
const URGENT: (Time, Time) = (2 * HOUR, HOUR);
/// False alarms a day on 1,250 nodes, and their kinds in percent.
const ALARMS: f64 = 17.0;
const KINDS_OF_ALARMS: [(Alarm, u32); 3] =
    [(Alarm::Noise, 60), (Alarm::Short, 30), (Alarm::Stands, 10)];
/// Causes of failures in percent.
const FAULTS: [(Fault, u32); 4] = [
    (Fault::Process, 36),
    (Fault::Device, 40),
    (Fault::Hang, 10),
    (Fault::Node, 14),
];
/// Nodes that are maintained one after the other, and the time between two of them.
const RACK: (usize, Time) = (16, 10 * MINUTE);

impl Inputs {
    /// The inputs of a setting.
    pub fn new(setting: &Setting) -> Self {
        let mut rng = Rng::with_seed(setting.seed);
        let end = setting.days * DAY;
        let mut happenings = Vec::new();
        for rack in 0..setting.nodes.div_ceil(RACK.0) {
            let begins = rng.i64(DAY..end - RACK.0 as Time * RACK.1);
            let nodes = (rack * RACK.0..setting.nodes).take(RACK.0);
            let each = nodes.zip(0..);
            happenings.extend(
                each.map(|(node, at)| (begins + at * RACK.1, node, Happening::Maintenance)),
            );
        }
        let node_days = setting.nodes as f64 * setting.days as f64;
        for _ in 0..(node_days * setting.failures / 1000.0).round() as usize {
            let fault = one_of(&mut rng, &FAULTS);
            let node = rng.usize(0..setting.nodes);
            happenings.push((rng.i64(0..end), node, Happening::Fails(fault)));
        }
        for _ in 0..(node_days * ALARMS / 1250.0).round() as usize {
            let alarm = one_of(&mut rng, &KINDS_OF_ALARMS);
            let node = rng.usize(0..setting.nodes);
            happenings.push((rng.i64(0..end), node, Happening::Alarm(alarm)));
        }
        happenings.sort_unstable();
        Self {
            setting: *setting,
            jobs: jobs(&mut rng, setting),
            happenings,
        }
    }
}

/// Gangs of 1 to 1,024 nodes. Each size requests the same share of the cluster.
fn jobs(rng: &mut Rng, setting: &Setting) -> Vec<Job> {
    let end = setting.days * DAY;
    let sizes: Vec<usize> = (0..=10)
        .map(|power| 1 << power)
        .filter(|size| *size <= setting.nodes)
        .collect();
    let share = LOAD * setting.nodes as f64 * end as f64 / sizes.len() as f64;
    let mut jobs = Vec::new();
    for members in sizes {
        let each = if members <= 64 { DAY } else { 3 * DAY };
        let count = (share / (members as f64 * each as f64)).round().max(1.0) as usize;
        let work = (share / (members * count) as f64) as Time;
        for _ in 0..count {
            let priority = match rng.u32(0..10) {
                0..6 => 0,
                6..9 => 1,
                _ => 2,
            };
            let priority = if members > 128 { 2 } else { priority };
            let arrives = rng.i64(0..(end - work / 2).max(1));
            jobs.push(job(rng, (arrives, members, priority, work)));
        }
    }
    let (every, work) = URGENT;
    for number in 1..end / every {
        let members = (8 << rng.u32(0..4)).min(setting.nodes / 4);
        jobs.push(job(rng, (number * every, members, 3, work)));
    }
    jobs.sort_by_key(|job| job.arrives);
    jobs
}

fn job(rng: &mut Rng, (arrives, members, priority, work): (Time, usize, i32, Time)) -> Job {
    Job {
        arrives,
        members,
        priority,
        work,
        interval: [10, 30, 60][rng.usize(0..3)] * MINUTE,
        save: rng.i64(10..=60),
        load: rng.i64(2 * MINUTE..=5 * MINUTE),
        answers: rng.u32(0..100) < 80,
    }
}

fn one_of<T: Copy>(rng: &mut Rng, kinds: &[(T, u32)]) -> T {
    let mut left = rng.u32(0..100);
    for (kind, percent) in kinds {
        match left.checked_sub(*percent) {
            None => return *kind,
            Some(rest) => left = rest,
        }
    }
    kinds[0].0
}
