//! Random clusters.

use proptest::prelude::*;

/// A pod of another controller.
#[derive(Clone, Debug)]
pub(super) struct Foreign {
    pub node: usize,
    pub gpus: i64,
    pub priority: i32,
    pub age: i64,
    pub kind: ForeignKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ForeignKind {
    Plain,
    Guarded,
    Protected,
    Terminating,
    Nominated,
    Job,
    Unit,
}

#[derive(Clone, Debug)]
pub(super) struct GangThere {
    pub members: usize,
    pub gpus: i64,
    /// Accelerators of the member of a second group, if any.
    pub second: Option<i64>,
    pub priority: i32,
    pub age: i64,
    pub whole: bool,
    pub sticky: bool,
    pub state: GangThereState,
    /// Node at which the search for free nodes starts.
    pub first: usize,
    /// A node that kube-scheduler refused.
    pub refused: Option<usize>,
    /// A node that is reserved for its workers, or that its backfill must release.
    pub reserved: Option<usize>,
    /// Seconds from the start of its workload to its deadline.
    pub deadline: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GangThereState {
    Waiting,
    Running,
    PartlyPlaced,
    WithoutPods,
    Preempted,
    Terminating,
    Released,
}

#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub members: usize,
    pub gpus: i64,
    pub second: Option<i64>,
    pub topology: Option<&'static str>,
    pub never: bool,
    pub deadline: Option<i64>,
}

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub nodes: Vec<(bool, i64)>,
    pub foreign: Vec<Foreign>,
    pub gangs: Vec<GangThere>,
    pub allowed: i32,
    pub asked: Asked,
}

pub(super) fn scenarios() -> impl Strategy<Value = Scenario> {
    use ForeignKind::{Guarded, Job, Nominated, Plain, Protected, Terminating, Unit};
    let kind = prop_oneof![3 => Just(Plain), 1 => Just(Guarded), 1 => Just(Protected),
        1 => Just(Terminating), 1 => Just(Nominated), 3 => Just(Job),
        2 => Just(Unit)];
    let foreign = (0..8usize, 1..5i64, 0..140i32, 0..9000i64, kind).prop_map(
        |(node, gpus, priority, age, kind)| Foreign {
            node,
            gpus,
            priority,
            age,
            kind,
        },
    );
    let state = prop_oneof![
        3 => Just(GangThereState::Waiting), 4 => Just(GangThereState::Running),
        2 => Just(GangThereState::PartlyPlaced), 1 => Just(GangThereState::WithoutPods),
        1 => Just(GangThereState::Preempted), 1 => Just(GangThereState::Terminating),
        1 => Just(GangThereState::Released),
    ];
    let shape = (1..7usize, 1..5i64, prop::option::weighted(0.3, 1..5i64));
    let who = (
        0..14i32,
        0..9000i64,
        any::<bool>(),
        prop::bool::weighted(0.2),
    );
    let gang = (
        shape,
        who,
        state,
        0..8usize,
        prop::option::weighted(0.2, 0..8usize),
        prop::option::weighted(0.5, 0..8usize),
        prop::option::weighted(0.3, 9000..20_000i64),
    )
        .prop_map(
            |(
                (members, gpus, second),
                (priority, age, whole, sticky),
                state,
                first,
                refused,
                reserved,
                deadline,
            )| {
                GangThere {
                    members,
                    gpus,
                    second,
                    priority: priority * 10,
                    age,
                    whole,
                    sticky,
                    state,
                    first,
                    refused,
                    reserved,
                    deadline,
                }
            },
        );
    let topology =
        prop_oneof![2 => Just(None), 1 => Just(Some("Required")), 1 => Just(Some("Preferred"))];
    let asked = (
        1..5usize,
        1..5i64,
        prop::option::weighted(0.3, 1..5i64),
        topology,
        prop::bool::weighted(0.2),
        prop::option::weighted(0.3, 100..9000i64),
    )
        .prop_map(|(members, gpus, second, topology, never, deadline)| Asked {
            members,
            gpus,
            second,
            topology,
            never,
            deadline,
        });
    let nodes = prop::collection::vec((any::<bool>(), prop_oneof![Just(4i64), Just(8i64)]), 3..8);
    (
        nodes,
        prop::collection::vec(foreign, 0..8),
        prop::collection::vec(gang, 0..7),
        0..2i32,
        asked,
    )
        .prop_map(|(nodes, foreign, gangs, allowed, asked)| Scenario {
            nodes,
            foreign,
            gangs,
            allowed,
            asked,
        })
}
