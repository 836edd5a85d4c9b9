//! Gang placement and preemption over plain integers.
//!
//! The crate knows nodes, resources and running work as ordinals. It has no client, no clock, no
//! randomness and does no I/O: equal input gives equal answers, and every search is bounded by
//! steps, not by time. The caller keeps the tables between names and ordinals and evaluates
//! selectors, affinity and taints into sets of eligible nodes.
//!
//! - [`Cluster`]: nodes with what they offer and what is free, updated pod by pod.
//! - [`Demand`]: the gang to be placed. [`place`] puts it into free capacity or says what is
//!   missing ([`Infeasible`]).
//! - [`Units`]: the running work, in units of disruption. [`preempt`] frees capacity at the expense
//!   of units of lower priority; `docs/engine.md` says how.
//! - [`queue`]: the order of the queue, and what gangs behind a waiting one may do meanwhile.
//!   [`reserve`] chooses the nodes that are kept for it.
//!
//! # Example
//!
//! Two nodes of 4,000 milli-CPU and 8 accelerators, full of cheap and dear work; a gang of eight
//! wants one of them.
//!
//! ```
//! use lockstep_engine::{
//!     Cluster, ClusterNode, Demand, Pods, PreemptionOptions, Unit, Units, place, preempt,
//! };
//! use smallvec::smallvec;
//!
//! const CPU_AND_GPU: usize = 2;
//! let mut cluster = Cluster::new(CPU_AND_GPU, 0);
//! let mut units = Units::default();
//! for (node, cost) in [(0, 90_000), (1, 700)] {
//!     cluster.upsert_node(node, &ClusterNode { allocatable: smallvec![4000, 8], domains: vec![], schedulable: true });
//!     cluster.add_pod(node, &[1000, 8]);
//!     units.units.push(Unit {
//!         pods: vec![Pods { request: smallvec![1000, 8], nodes: vec![node] }],
//!         priority: 10,
//!         gang: false,
//!         cost,
//!         pdbs: smallvec![],
//!         start: 0,
//!         cascade: None,
//!         eligible: None,
//!         preempts: false,
//!     });
//! }
//! let gang = Demand::homogeneous([500, 1].as_slice(), 8, 100);
//!
//! let reason = place(&cluster, &gang).unwrap_err();
//! assert_eq!(reason.to_string(), "8 pods of shape 0 do not fit: resource 1 is short by 8");
//!
//! let answer = preempt(&cluster, &units, &gang, &PreemptionOptions::default())?;
//! assert_eq!(answer.victims, [1], "the unit that loses less work goes");
//! assert_eq!(answer.placement.assignments[0].node, 1);
//! # Ok::<(), lockstep_engine::Infeasible>(())
//! ```
//!
//! Ordinals that a caller passes must be within the tables it made; they are checked where the work
//! is not hot, and index otherwise.

mod cluster;
mod infeasible;
mod objective;
mod placement;
mod preempt;
mod problem;
pub mod queue;
mod reservation;
#[cfg(test)]
mod test_runner;

pub use cluster::{Cluster, ClusterNode};
pub use infeasible::{Infeasible, Names, Shortfall};
pub use objective::{Bound, EvictionCost};
pub use placement::{PLACEMENT_STEPS, place, place_if_it_fits, place_within};
pub use preempt::{
    Algorithm, Explanation, FollowOn, PreemptionAnswer, PreemptionOptions, Reasons, RunnerUp,
    Spared, Taken, VictimOrder, explain, preempt, preempt_kep_in_order,
};
pub use problem::{
    Amounts, Assignment, CascadeIx, Demand, DimIx, DomainIx, EvictionPolicy, GangPlacement, KeyIx,
    NodeIx, NodeSet, PdbIx, Pods, RunningMembers, Scope, Shape, ShapeIx, TopologyDemand,
    TopologyStrictness, Unit, UnitIx, Units,
};
pub use reservation::{Blocker, amounts_by_node, is_possible, reserve, starts_at};
