//! Questions for the time and the instruction benchmarks.

use lockstep_engine::{
    Demand, GangPlacement, Infeasible, PreemptionOptions, PreemptionPlan, RunningMembers, Scope,
    Shape, TopologyDemand, TopologyStrictness, place, preempt,
};

use crate::scenes::{Scene, busy, gang, idle, pods_of};

/// Sizes of a cluster, in nodes.
pub const SIZES: [usize; 4] = [100, 1_000, 5_000, 15_000];
/// Gangs running on 1,000 nodes, for the growth by gangs.
pub const GANGS: [usize; 4] = [10, 50, 150, 500];
/// Pods of each running gang per node, on 1,000 nodes of 50 gangs, for the growth by pods.
pub const PODS: [usize; 4] = [1, 2, 4, 8];

/// A cluster and a gang to be placed there.
pub struct Question {
    scene: Scene,
    demand: Demand,
    may_evict: bool,
}

/// Answer of the engine.
pub enum Answer {
    /// For a gang that uses only free capacity.
    Placed(Result<GangPlacement, Infeasible>),
    /// For a gang that can preempt.
    Preempted(Result<PreemptionPlan, Infeasible>),
}

impl Question {
    /// Asks the engine.
    pub fn ask(&self) -> Answer {
        let Scene { cluster, units } = &self.scene;
        if self.may_evict {
            Answer::Preempted(preempt(
                cluster,
                units,
                &self.demand,
                &PreemptionOptions::default(),
            ))
        } else {
            Answer::Placed(place(cluster, &self.demand))
        }
    }

    fn place(scene: Scene, demand: Demand) -> Self {
        Self {
            scene,
            demand,
            may_evict: false,
        }
    }

    fn preempt(scene: Scene, demand: Demand) -> Self {
        Self {
            scene,
            demand,
            may_evict: true,
        }
    }
}

/// A row of the table: a question for each size of the cluster.
pub struct Row {
    /// Name in the benchmarks.
    pub name: &'static str,
    /// Description in the table.
    pub what: &'static str,
    /// The question for a cluster of this number of nodes.
    pub question: fn(usize) -> Question,
}

/// The rows of the table.
pub const ROWS: [Row; 10] = [
    Row {
        name: "gang_of_a_fifth",
        what: "place a gang on a fifth of the nodes",
        question: gang_of_a_fifth,
    },
    Row {
        name: "thousand_pods",
        what: "place 1,000 pods of one GPU",
        question: thousand_pods,
    },
    Row {
        name: "replicas",
        what: "place replicas of four nodes, each in one rack",
        question: replicas,
    },
    Row {
        name: "no_fit",
        what: "say that a gang does not fit, and what is missing",
        question: no_fit,
    },
    Row {
        name: "replace",
        what: "replace one lost member",
        question: replace,
    },
    Row {
        name: "preempt_10",
        what: "preempt for a tenth of the nodes, 10 gangs running",
        question: preempt_10,
    },
    Row {
        name: "preempt_50",
        what: "the same, 50 gangs running",
        question: preempt_50,
    },
    Row {
        name: "preempt_500",
        what: "the same, 500 gangs running",
        question: preempt_500,
    },
    Row {
        name: "preempt_driver",
        what: "the same, 50 gangs, and the gang has a driver pod of another shape",
        question: preempt_driver,
    },
    Row {
        name: "preempt_rack",
        what: "preempt for 8 nodes of one rack, 50 gangs running",
        question: preempt_rack,
    },
];

/// A gang of whole nodes on a fifth of an idle cluster.
pub fn gang_of_a_fifth(nodes: usize) -> Question {
    Question::place(idle(nodes), gang(8, fifth(nodes)))
}

/// A thousand members of one GPU on an idle cluster.
pub fn thousand_pods(nodes: usize) -> Question {
    Question::place(idle(nodes), gang(1, 1_000))
}

/// Replicas of four nodes on a fifth of an idle cluster, each within a rack.
pub fn replicas(nodes: usize) -> Question {
    let mut demand = gang(8, fifth(nodes) / 4 * 4);
    demand.shapes[0].replica_size = 4;
    demand.topology = vec![one_rack(Scope::Replica)];
    Question::place(idle(nodes), demand)
}

/// A gang that does not fit into a busy cluster.
pub fn no_fit(nodes: usize) -> Question {
    Question::place(busy(nodes, 50), gang(8, fifth(nodes)))
}

/// A gang with only one member not running, on the first nodes.
pub fn replace(nodes: usize) -> Question {
    let members = fifth(nodes);
    let mut demand = gang(1, members);
    demand.shapes[0].running = (0..members as usize - 1)
        .map(|node| RunningMembers {
            replica: 0,
            node,
            count: 1,
        })
        .collect();
    Question::place(idle(nodes), demand)
}

/// A gang that needs a tenth of the nodes, with this number of running gangs.
pub fn preempt_beside(nodes: usize, gangs: usize) -> Question {
    Question::preempt(busy(nodes, gangs), gang(8, tenth(nodes)))
}

/// With ten gangs running.
pub fn preempt_10(nodes: usize) -> Question {
    preempt_beside(nodes, 10)
}

/// With fifty gangs running.
pub fn preempt_50(nodes: usize) -> Question {
    preempt_beside(nodes, 50)
}

/// With five hundred gangs running.
pub fn preempt_500(nodes: usize) -> Question {
    preempt_beside(nodes, 500)
}

/// On 1,000 nodes, with this number of running gangs.
pub fn preempt_by_gangs(gangs: usize) -> Question {
    preempt_beside(1_000, gangs)
}

/// On 1,000 nodes with 50 gangs, each with this number of pods on each of its nodes.
pub fn preempt_by_pods(pods: usize) -> Question {
    Question::preempt(pods_of(1_000, 50, pods), gang(8, tenth(1_000)))
}

/// With fifty gangs running, for a gang with an additional driver of another shape.
pub fn preempt_driver(nodes: usize) -> Question {
    let mut demand = gang(8, tenth(nodes));
    demand
        .shapes
        .push(Shape::new([2_000, 8 << 30, 1, 0].as_slice(), 1));
    demand.min_count += 1;
    Question::preempt(busy(nodes, 50), demand)
}

/// With fifty gangs running, for a gang that must stay within a rack.
pub fn preempt_rack(nodes: usize) -> Question {
    Question::preempt(
        busy(nodes, 50),
        Demand {
            topology: vec![one_rack(Scope::Gang)],
            ..gang(8, 8)
        },
    )
}

/// A gang of four replicas of four nodes, in one block of 16 racks, each replica within a rack. With
/// `preempts`, fifty gangs run.
pub fn two_levels(nodes: usize, preempts: bool) -> Question {
    let mut demand = gang(8, 16);
    demand.shapes[0].replica_size = 4;
    let block = TopologyDemand {
        key: 1,
        ..one_rack(Scope::Gang)
    };
    demand.topology = vec![block, one_rack(Scope::Replica)];
    if preempts {
        Question::preempt(busy(nodes, 50), demand)
    } else {
        Question::place(idle(nodes), demand)
    }
}

fn fifth(nodes: usize) -> u32 {
    (nodes as u32 / 5).max(10)
}

fn tenth(nodes: usize) -> u32 {
    (nodes as u32 / 10).max(10)
}

fn one_rack(scope: Scope) -> TopologyDemand {
    TopologyDemand {
        key: 0,
        mode: TopologyStrictness::Required,
        scope,
    }
}
