//! The place in the queue in the status of waiting gangs: what it says, and how often it is written.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::NodeState;
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::scheduling::{Placement, QueueStatus};
use lockstep_model::{ClusterModel, Constraints, Node, Pod, Resources, Weights};
use lockstep_scheduler::input::{GangInput, SchedulingInput};
use lockstep_scheduler::{IdleAccelerators, Memory, SchedulerSettings, Step, schedule};

use crate::inputs;

/// Accelerators of the only node.
const GPUS: usize = 600;

/// Gangs of one member with one accelerator each, behind a pod that no gang may evict.
struct Waiting {
    model: ClusterModel,
    gangs: Vec<GangInput>,
    memory: Memory,
    now: DateTime<Utc>,
    idle: IdleAccelerators,
}

impl Waiting {
    fn new(gangs: usize) -> Self {
        let mut model = ClusterModel::default();
        model.upsert_node(Node {
            allocatable: amounts(GPUS),
            state: NodeState::default(),
            ..Node::bare("n".parse().unwrap())
        });
        let mut waiting = Self {
            model,
            gangs: (0..gangs).map(gang).collect(),
            memory: Memory::default(),
            now: DateTime::UNIX_EPOCH + TimeDelta::days(20_000),
            idle: IdleAccelerators::default(),
        };
        waiting.holds(GPUS, None);
        waiting
    }

    /// The pod holds this many accelerators, at most until then.
    fn holds(&mut self, gpus: usize, ends: Option<DateTime<Utc>>) {
        self.model.upsert_pod(Pod {
            bound: Some("n".parse().unwrap()),
            requests: Arc::new(amounts(gpus)),
            priority: 1000,
            protected: true,
            may_end: ends.is_some(),
            ends,
            ..Pod::bare("web", "service", "service".parse().unwrap())
        });
    }

    /// Runs a cycle. Returns the number of written statuses of gangs that still wait.
    fn cycle(&mut self) -> usize {
        let input = SchedulingInput {
            cluster: self.model.snapshot(),
            gangs: self.gangs.iter().cloned().map(Arc::new).collect(),
            budgets: Vec::new(),
            quotas: Vec::new(),
            weights: Arc::new(Weights::default()),
        };
        // Otherwise messages change with the turn in which victims are sought.
        let settings = SchedulerSettings {
            preemption_enabled: false,
            ..SchedulerSettings::default()
        };
        let cycle = schedule(&input, &mut self.memory, &settings, self.now);
        self.idle = cycle.plan.idle;
        let mut written = 0;
        for step in cycle.plan.steps {
            let Step::Status(write) = step else { continue };
            let placement = write.status.placement.as_ref();
            written += usize::from(placement.is_none());
            let mut gangs = self.gangs.iter_mut();
            let gang = gangs.find(|g| g.key == write.key).unwrap();
            gang.group.assigned = placement.map(Placement::assignments).map(Arc::new);
            gang.group.status = Arc::new(write.status);
        }
        written
    }

    fn place(&self, gang: usize) -> Option<&QueueStatus> {
        self.gangs[gang].group.status.queue.as_ref()
    }

    fn ahead(&self, gang: usize) -> Option<i32> {
        self.place(gang).map(|place| place.ahead)
    }

    fn later(&mut self, seconds: i64) -> usize {
        self.now += TimeDelta::seconds(seconds);
        self.cycle()
    }
}

fn amounts(gpus: usize) -> Resources {
    let amounts = [("gpu.example/a".to_owned(), Quantity(gpus.to_string()))].into();
    Resources::parse(&amounts).unwrap()
}

fn gang(number: usize) -> GangInput {
    let name = format!("gang-{number:03}");
    let uids = ["group", "workload"].map(|of| format!("{name}-{of}").parse().unwrap());
    let template = inputs::template("w", amounts(1), Constraints::default());
    let (key, members) = (Key::new("ml", name.as_str()), vec![Member::new("w", 0, 0)]);
    inputs::gang(key, uids, [template].into(), members)
}

#[test]
fn a_waiting_gang_shows_how_many_gangs_wait_before_it_until_it_waits_no_more() {
    let mut world = Waiting::new(4);
    world.cycle();
    let ahead = |world: &Waiting| [0, 1, 2, 3].map(|gang| world.ahead(gang));
    assert_eq!(ahead(&world), [Some(0), Some(1), Some(2), Some(3)]);
    world.holds(GPUS - 2, None);
    world.later(10);
    assert_eq!(ahead(&world), [None, None, Some(0), Some(1)]);
}

#[test]
fn a_place_that_changes_by_one_is_written_within_a_minute_and_not_again() {
    let mut world = Waiting::new(3);
    world.cycle();
    world.holds(GPUS - 1, None);
    world.later(10);
    assert_eq!([1, 2].map(|gang| world.ahead(gang)), [Some(1), Some(2)]);
    world.later(50);
    assert_eq!([1, 2].map(|gang| world.ahead(gang)), [Some(0), Some(1)]);
    let written: usize = (0..100).map(|_| world.later(10)).sum();
    assert_eq!(written, 0);
}

#[test]
fn the_latest_start_is_that_of_the_reservation() {
    let mut world = Waiting::new(1);
    let ends = world.now + TimeDelta::hours(1);
    for (ends, shown) in [(0, 0), (30, 0), (120, 120)].map(|(a, b)| {
        let after = |seconds| ends + TimeDelta::seconds(seconds);
        (after(a), after(b))
    }) {
        world.holds(GPUS, Some(ends));
        world.later(10);
        let place = world.place(0).unwrap();
        assert_eq!(place.starts_by, Some(shown));
    }
}

#[test]
fn writes_to_500_waiting_gangs_stay_bounded_while_one_starts_each_second() {
    let mut world = Waiting::new(500);
    world.cycle();
    assert_eq!((world.ahead(99), world.ahead(100)), (Some(99), None));
    let written: usize = (1..=60)
        .map(|started| {
            world.holds(GPUS - started, None);
            world.later(1)
        })
        .sum();
    // 100 gangs at a time, each at most every 5 s; and the first place of 60 more.
    assert!((1000..=1260).contains(&written), "{written} writes");
    world.later(5);
    assert_eq!((world.ahead(60), world.ahead(159)), (Some(0), Some(99)));
}

#[test]
fn idle_accelerators_are_counted_by_the_reason_why_no_pod_holds_them() {
    let idle = |reserved, fragmented, no_demand, unusable| IdleAccelerators {
        reserved,
        fragmented,
        no_demand,
        unusable,
    };
    let mut world = Waiting::new(0);
    world.holds(GPUS - 3, None);
    world.cycle();
    assert_eq!(world.idle, idle(0, 0, 3, 0), "no gang waits");
    let template = inputs::template("w", amounts(4), Constraints::default());
    let mut large = gang(0);
    Arc::make_mut(&mut large.workload).templates = [template].into();
    world.gangs.push(large);
    world.later(1);
    assert_eq!(
        world.idle,
        idle(0, 3, 0, 0),
        "a gang needs four on one node"
    );
    world.holds(GPUS - 3, Some(world.now + TimeDelta::hours(1)));
    world.later(1);
    assert_eq!(world.idle, idle(3, 0, 0, 0), "the gang holds a reservation");
    let mut node = Node {
        allocatable: amounts(GPUS),
        ..Node::bare("n".parse().unwrap())
    };
    node.read_cordon(true);
    world.model.upsert_node(node);
    world.later(1);
    assert_eq!(world.idle, idle(0, 0, 0, 3), "the node is cordoned");
}
