//! Gang placement and preemption over plain integers.
//!
//! Nodes, resources and running work are ordinals. The crate has no client, no clock, no randomness
//! and does no I/O. Equal input gives equal plans, and searches are bounded by steps, not by
//! time. The caller maps names to ordinals, and evaluates selectors, affinity and taints into sets
//! of eligible nodes.
//!
//! - [`Cluster`]: nodes with offered and free capacity, updated pod by pod.
//! - [`Demand`]: the gang to place. [`place`] finds free capacity, or returns the shortage
//!   ([`Infeasible`]).
//! - [`Units`]: the running work as units of disruption. [`preempt`] frees capacity by evicting
//!   units of lower priority; see `docs/engine.md`.
//! - [`queue`]: the order of the queue, and the capacity that gangs behind a waiting gang may use.
//!   [`reserve`] chooses nodes to reserve.
//!
//! # Example
//!
//! Two nodes of 4,000 milli-CPU and 8 accelerators run work of different cost. A gang of eight pods
//! needs one of them.
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
//! let plan = preempt(&cluster, &units, &gang, &PreemptionOptions::default())?;
//! assert_eq!(plan.victims, [1], "the unit that loses less work goes");
//! assert_eq!(plan.placement.assignments[0].node, 1);
//! # Ok::<(), lockstep_engine::Infeasible>(())
//! ```
//!
//! Ordinals must be within the caller's tables. They are checked outside of hot paths, and used as
//! indices otherwise.

#![deny(missing_docs)]

mod cluster;
mod infeasible;
mod method;
mod objective;
mod placement;
mod preempt;
mod problem;
pub mod queue;
mod reservation;
#[cfg(test)]
mod test_runner;

pub use cluster::{Cluster, ClusterNode};
pub use infeasible::{DomainPath, Infeasible, Names, Shortfall};
pub use method::Method;
pub use objective::{Bound, EvictionCost};
pub use placement::{PLACEMENT_STEPS, place, place_if_it_fits, place_within};
pub use preempt::{
    Algorithm, Explanation, FollowOn, PreemptionOptions, PreemptionPlan, Reasons, RunnerUp, Spared,
    Taken, VictimOrder, explain, preempt, preempt_kep_in_order,
};
pub use problem::{
    Amounts, Assignment, CascadeIx, Demand, DimIx, DomainIx, EvictionPolicy, GangPlacement, KeyIx,
    NodeIx, NodeSet, PdbIx, Pods, RunningMembers, Scope, Shape, ShapeIx, TopologyDemand,
    TopologyStrictness, Unit, UnitIx, Units,
};
pub use reservation::{Blocker, amounts_by_node, is_possible, reserve, starts_at};
